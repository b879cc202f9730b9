"""Comparing what llama_cpp.Llama and dspark_cpp.Llama return."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

#: log-probabilities of a token decoded alone and in a block of several, f32 weights and cache
TOLERANCE = 1e-4


def collect(result: Any) -> Any:
    """A response as plain values: chunks as a list, without what differs by nature."""
    if hasattr(result, "__next__"):
        return [collect(chunk) for chunk in result]
    return (
        {k: v for k, v in result.items() if k not in ("id", "created", "model")} if isinstance(result, dict) else result
    )


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Where two responses differ; floats by more than TOLERANCE."""
    if isinstance(a, (float, np.floating)) and isinstance(b, (float, np.floating)):
        return [] if math.isclose(a, b, abs_tol=TOLERANCE, rel_tol=TOLERANCE) or a == b else [f"{path}: {a} != {b}"]
    if isinstance(a, dict) and isinstance(b, dict) and set(a) == set(b):
        # the names of functions that were called carry a random part
        return [d for k in a if k not in ("id", "created") for d in differences(a[k], b[k], f"{path}.{k}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{path}[{i}]")]
    return [] if type(a) is type(b) and a == b else [f"{path}: {a!r} != {b!r}"]
