"""Comparisons whose message tells where and by how much."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def max_abs(seen: ArrayLike, wanted: ArrayLike, what: str) -> tuple[float, tuple[int, ...]]:
    """Largest absolute difference and its index; the shapes must agree and neither side may hold a NaN."""
    a, b = np.atleast_1d(np.asarray(seen, dtype=np.float64)), np.atleast_1d(np.asarray(wanted, dtype=np.float64))
    assert a.shape == b.shape, f"{what}: shape {a.shape}, expected {b.shape}"
    if a.size == 0:
        return 0.0, ()
    diff = np.abs(a - b)
    diff[np.isnan(diff)] = np.inf
    at = np.unravel_index(int(diff.argmax()), diff.shape)
    return float(diff[at]), tuple(int(i) for i in at)


def assert_close(seen: ArrayLike | None, wanted: ArrayLike, atol: float, what: str) -> float:
    """max-abs <= atol, which is returned."""
    assert seen is not None, f"{what}: there is no such value"
    diff, at = max_abs(seen, wanted, what)
    assert diff <= atol, (
        f"{what}: max-abs {diff:.3g} at {at} "
        f"({np.atleast_1d(seen)[at]:.7g}, expected {np.atleast_1d(wanted)[at]:.7g}), allowed {atol:.3g}"
    )
    return diff


def assert_same_ids(seen: Sequence[int], wanted: ArrayLike, what: str) -> None:
    a, b = [int(i) for i in seen], [int(i) for i in np.asarray(wanted)]
    where = next((k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    assert a == b, f"{what}: ids {a}, expected {b}; they part at index {where}"


def assert_same_bits(seen: Any, wanted: Any, what: str) -> None:
    """Equal, bit for bit: bytes, arrays, or proposals (dicts of them)."""
    if isinstance(wanted, dict):
        assert seen.keys() == wanted.keys(), f"{what}: {sorted(seen)}, expected {sorted(wanted)}"
        for key in wanted:
            assert_same_bits(seen[key], wanted[key], f"{what}, {key}")
        return
    if isinstance(wanted, bytes):
        seen, wanted = np.frombuffer(seen, np.uint8), np.frombuffer(wanted, np.uint8)
    a, b = np.asarray(seen), np.asarray(wanted)
    if a.dtype.kind == "f":
        diff, at = max_abs(a, b, what)
        same = a.tobytes() == b.astype(a.dtype).tobytes()
        assert same, f"{what}: not bit-equal, max-abs {diff:.3g} at {at}"
        return
    assert a.shape == b.shape, f"{what}: shape {a.shape}, expected {b.shape}"
    where = np.argwhere(a != b)
    assert len(where) == 0, f"{what}: {len(where)} of {a.size} entries differ, the first at {where[:1].tolist()}"


def assert_same_chain(
    seen: dict[str, Any], logits: NDArray[np.float64], ids: NDArray[np.int64], budget: float, what: str
) -> None:
    """A proposal against the reference's, where weights or cache are rounded.

    Logits agree within the budget slot after slot; a different id is allowed where the reference's own choice hangs on
    less than twice the budget, and ends the comparison, since the chain goes another way from there.
    """
    for k in range(len(ids)):
        assert_close(seen["logits"][k], logits[k], budget, f"{what}, logits of slot {k}")
        if seen["ids"][k] != ids[k]:
            top = np.sort(logits[k])[-2:]
            assert top[1] - top[0] <= 2 * budget, (
                f"{what}: id {seen['ids'][k]} at slot {k}, expected {ids[k]}, which leads by {top[1] - top[0]:.3g}"
            )
            return
