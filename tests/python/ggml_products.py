"""Single matrix products through ggml's CPU device, with ctypes alone: what a model's graph would run, in any shape."""

from __future__ import annotations

import ctypes
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

TYPES = {"F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q8_0": 8, "Q4_K": 12, "Q5_K": 13, "Q6_K": 14, "BF16": 30}

P, I64, SIZE, INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_size_t, ctypes.c_int
_lib = llama_cpp.llama_cpp._lib


class _InitParams(ctypes.Structure):
    _fields_ = [("mem_size", SIZE), ("mem_buffer", P), ("no_alloc", ctypes.c_bool)]


def _function(name: str, result: Any, *arguments: Any) -> Any:
    f = getattr(_lib, name)
    f.restype, f.argtypes = result, arguments
    return f


init = _function("ggml_init", P, _InitParams)
free = _function("ggml_free", None, P)
new_tensor = _function("ggml_new_tensor_4d", P, P, INT, I64, I64, I64, I64)
permute = _function("ggml_permute", P, P, P, INT, INT, INT, INT)
mul_mat = _function("ggml_mul_mat", P, P, P, P)
new_graph = _function("ggml_new_graph", P, P)
expand = _function("ggml_build_forward_expand", None, P, P)
row_size = _function("ggml_row_size", SIZE, INT, I64)
quantize = _function("ggml_quantize_chunk", SIZE, INT, P, P, I64, I64, I64, P)
cpu_init = _function("ggml_backend_cpu_init", P)
cpu_threads = _function("ggml_backend_cpu_set_n_threads", None, P, INT)
backend_free = _function("ggml_backend_free", None, P)
compute = _function("ggml_backend_graph_compute", INT, P, P)
alloc = _function("ggml_backend_alloc_ctx_tensors_from_buft", P, P, P)
buffer_free = _function("ggml_backend_buffer_free", None, P)
tensor_set = _function("ggml_backend_tensor_set", None, P, P, SIZE, SIZE)
tensor_get = _function("ggml_backend_tensor_get", None, P, P, SIZE, SIZE)
cpu_buft = _function("ggml_backend_cpu_buffer_type", P)
buft_name = _function("ggml_backend_buft_name", ctypes.c_char_p, P)
by_type = _function("ggml_backend_dev_by_type", P, INT)
device_reg = _function("ggml_backend_dev_backend_reg", P, P)
proc_address = _function("ggml_backend_reg_get_proc_address", P, P, ctypes.c_char_p)


def packed_buft() -> int | None:
    """The kernels' buffer type, if models are offered it."""
    cpu = by_type(0)
    extra = ctypes.CFUNCTYPE(ctypes.POINTER(P), P)(proc_address(device_reg(cpu), b"ggml_backend_dev_get_extra_bufts"))(
        cpu
    )
    at = 0
    while extra[at]:
        if buft_name(extra[at]) == b"CPU_DSPARK":
            return extra[at]
        at += 1
    return None


def stored(kind: str, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
    """Weights as ggml stores them, a row after another."""
    weights = np.ascontiguousarray(weights, np.float32)
    n_k = weights.shape[-1]
    n_rows = weights.size // n_k
    if kind == "F32":
        return weights.view(np.uint8).reshape(-1)
    out = np.zeros(n_rows * row_size(TYPES[kind], n_k), np.uint8)
    quantize(TYPES[kind], weights.ctypes.data, out.ctypes.data, 0, n_rows, n_k, None)
    return out


def product(
    kind: str,
    rows: npt.NDArray[np.uint8],
    shape: tuple[int, ...],
    x: npt.NDArray[np.float32],
    n_threads: int = 1,
    packed: bool = False,
    swapped: bool = False,
) -> npt.NDArray[np.float32]:
    """W x^T for weights of NumPy shape (.., n_rows, n_k) and columns (.., n_cols, n_k), as (.., n_cols, n_rows).

    packed: the weights lie in the kernels' buffer type. swapped: both are stored with their second and third last
    dimensions exchanged, as heads beside each other in a cache, and the graph permutes them back.
    """
    shape = (1,) * (4 - len(shape)) + shape
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    contexts = [init(_InitParams(1 << 20, None, True)) for _ in range(2)]
    order = (0, 2, 1, 3)
    placed = [tuple(s[i] for i in (0, 2, 1, 3)) if swapped else s for s in (shape, x.shape)]
    w_t = new_tensor(contexts[0], TYPES[kind], *reversed(placed[0]))
    x_t = new_tensor(contexts[1], 0, *reversed(placed[1]))
    w_in, x_in = (permute(contexts[1], t, *order) if swapped else t for t in (w_t, x_t))
    y_t = mul_mat(contexts[1], w_in, x_in)
    graph = new_graph(contexts[1])
    expand(graph, y_t)
    buffers = [alloc(contexts[0], packed_buft() if packed else cpu_buft()), alloc(contexts[1], cpu_buft())]
    backend = cpu_init()
    cpu_threads(backend, n_threads)
    try:
        tensor_set(w_t, rows.ctypes.data, 0, rows.nbytes)
        data = np.ascontiguousarray(x.transpose(0, 2, 1, 3) if swapped else x, np.float32)
        tensor_set(x_t, data.ctypes.data, 0, data.nbytes)
        assert compute(backend, graph) == 0
        y = np.zeros((*x.shape[:3], shape[2]), np.float32)
        tensor_get(y_t, y.ctypes.data, 0, y.nbytes)
        back = np.zeros_like(rows)
        tensor_get(w_t, back.ctypes.data, 0, back.nbytes)
        assert np.array_equal(back, rows)
        return y
    finally:
        backend_free(backend)
        for buffer in buffers:
            buffer_free(buffer)
        for context in contexts:
            free(context)
