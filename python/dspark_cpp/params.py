"""Python arguments to the C library's parameter structs."""

from __future__ import annotations

import math
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
    value: Any, what: str, *, above: float = -math.inf, least: float = -math.inf, most: float = math.inf
) -> float:
    """A finite float in its range; refuses anything else by name."""
    number = float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else math.nan
    if not (math.isfinite(number) and number > above and least <= number <= most):
        low = f"more than {above:g}" if above > -math.inf else f"{least:g} or more" if least > -math.inf else ""
        high = f"at most {most:g}" if most < math.inf else ""
        wanted = " and ".join(filter(None, (low, high))) or "a finite number"
        if -math.inf < least and most < math.inf:
            wanted = f"{least:g} to {most:g}"
        raise errors.ArgumentError(f"{what} is {value!r}, expected {wanted}")
    return number


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
