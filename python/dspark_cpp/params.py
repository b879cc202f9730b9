"""Python arguments to the C library's parameter structs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from . import errors
from ._native import ffi, lib, text

__all__ = ["GGML_TYPES", "context_params", "devices"]

#: ggml_type numbers of what a draft's cache may have
GGML_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q5_0": 6, "q5_1": 7, "q8_0": 8, "bf16": 30}


def devices() -> list[tuple[str, str]]:
    """(name, kind) of every ggml device; kind is "cpu", "gpu", "igpu" or "accel"."""
    return [
        (text(lib.dspark_device_name(i)), text(lib.dspark_device_kind(i))) for i in range(lib.dspark_device_count())
    ]


def ggml_type(name: str) -> int:
    if not isinstance(name, str) or name not in GGML_TYPES:
        raise errors.ArgumentError(f"the cache type is {name!r}, expected one of {', '.join(GGML_TYPES)}")
    return GGML_TYPES[name]


def integer(value: Any, what: str) -> int:
    """An int that C's int32 holds; refuses floats, bools and strings by name."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise errors.ArgumentError(f"{what} is {value!r}, expected an integer")
    number = int(value.__index__())
    if not -(2**31) <= number < 2**31:
        raise errors.ArgumentError(f"{what} is {number}, expected a 32-bit integer")
    return number


def number(
    value: Any, what: str, wanted: str = "a finite number", ok: Callable[[float], bool] = math.isfinite
) -> float:
    """A finite float for which ok holds; refuses anything else by name."""
    x = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not math.isfinite(x) or not ok(x):
        raise errors.ArgumentError(f"{what} is {value!r}, expected {wanted}")
    return x


def fill_context_params(params: Any, *, n_threads: int | None, type_k: str, type_v: str, n_ctx: int | None) -> None:
    if n_threads is not None:
        params.n_threads = integer(n_threads, "n_threads")
    params.type_k = ggml_type(type_k)
    params.type_v = ggml_type(type_v)
    params.n_ctx = 0 if n_ctx is None else integer(n_ctx, "n_ctx of the draft")


def context_params(**settings: Any) -> Any:
    """dspark_draft_context_params *"""
    params = ffi.new("dspark_draft_context_params *")
    lib.dspark_draft_context_params_init(params)
    fill_context_params(params, **settings)
    return params
