"""Quantising with ggml itself, since gguf-py can only read most of the types."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

_lib = llama_cpp.llama_cpp._lib
_lib.ggml_quantize_chunk.restype = ctypes.c_size_t
_lib.ggml_quantize_chunk.argtypes = [
    ctypes.c_int,
    ctypes.c_void_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_void_p,
]


def quantise(x: NDArray[np.float32], kind: GGMLQuantizationType) -> NDArray[np.generic]:
    """(rows, n) float32 to the type; for block types the bytes (rows, bytes per row)."""
    if kind == GGMLQuantizationType.F32:
        return x
    if kind == GGMLQuantizationType.F16:
        return x.astype(np.float16)
    block, size = GGML_QUANT_SIZES[kind]
    rows, n = x.shape
    assert n % block == 0, f"rows of {n} numbers cannot be of type {kind.name}, whose blocks have {block}"
    x = np.ascontiguousarray(x)
    out = np.zeros((rows, n // block * size), dtype=np.uint8)
    importance = np.ones(n, dtype=np.float32)  # some types need one
    written = _lib.ggml_quantize_chunk(kind, x.ctypes.data, out.ctypes.data, 0, rows, n, importance.ctypes.data)
    assert written == out.nbytes, f"ggml wrote {written} bytes of {kind.name}, expected {out.nbytes}"
    return out
