"""Quantising with ggml itself, since gguf-py can only read most of the types."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np
from gguf import GGML_QUANT_SIZES
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize
from numpy.typing import NDArray

_quantize_chunk = llama_cpp.llama_cpp._lib.ggml_quantize_chunk
_quantize_chunk.restype = ctypes.c_size_t
# type, source, destination, first, rows, numbers per row, importance
_quantize_chunk.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3, ctypes.c_void_p]

# ggml searches seconds for the best grid points of these, and any bytes are valid blocks of them
SLOW = (T.IQ1_S, T.IQ1_M, T.IQ2_XXS, T.IQ2_XS, T.IQ2_S, T.IQ3_XXS, T.IQ3_S)


def quantise(x: NDArray[np.float32], kind: T) -> NDArray[np.generic]:
    """(rows, n) float32 to the type; for block types the bytes (rows, bytes per row)."""
    if kind == T.F32:
        return x
    if kind == T.F16:
        return x.astype(np.float16)
    block, size = GGML_QUANT_SIZES[kind]
    rows, n = x.shape
    assert n % block == 0, f"rows of {n} numbers cannot be of type {kind.name}, whose blocks have {block}"
    if kind in SLOW:
        return _random_blocks(rows, n, kind, float(x.std()))
    x = np.ascontiguousarray(x)
    out = np.zeros((rows, n // block * size), dtype=np.uint8)
    importance = np.ones(n, dtype=np.float32)  # some types need one
    written = _quantize_chunk(kind, x.ctypes.data, out.ctypes.data, 0, rows, n, importance.ctypes.data)
    assert written == out.nbytes, f"ggml wrote {written} bytes of {kind.name}, expected {out.nbytes}"
    return out


def _random_blocks(rows: int, n: int, kind: T, spread: float) -> NDArray[np.uint8]:
    block, size = GGML_QUANT_SIZES[kind]
    out = np.random.default_rng(rows).integers(0, 256, (rows, n // block * size), dtype=np.uint8)
    blocks = out.reshape(-1, size)

    def set_scale(value: float) -> None:
        """The f16 scale: the first two bytes, or in IQ1_M the upper nibbles of the last four 16-bit words."""
        scale = np.frombuffer(np.float16(value).tobytes(), np.uint8)
        if kind == T.IQ1_M:
            nibbles = np.array([scale[0] & 15, scale[0] >> 4, scale[1] & 15, scale[1] >> 4], np.uint8)
            blocks[:, -7::2] = blocks[:, -7::2] & 15 | nibbles << 4
        else:
            blocks[:, :2] = scale

    set_scale(1.0)
    set_scale(spread / dequantize(out, kind).std())
    return out
