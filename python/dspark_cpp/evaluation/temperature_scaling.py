"""Sequential temperature scaling of the confidence head (paper, section 3.2)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from .calibration import expected_calibration_error, products
from .rounds import Rounds

__all__ = ["fit_temperatures", "head_logits"]

# Heads are over-confident as a rule; a step is three per cent.
_GRID = np.geomspace(0.25, 8.0, 118)

_MIN_ROUNDS = 100
_MIN_STOOD = 100  # prefixes; with fewer, chance decides: halves of the same prompts have given 0.25 and 4


def head_logits(rounds: Rounds, temperature: Sequence[float] | None) -> npt.NDArray[np.float64]:
    """The head's own logits (R, K) of confidences that were handed out with a file's temperatures."""
    if rounds.confidence is None:
        raise ArgumentError("the draft has no confidence head, so there is nothing to calibrate")
    c = np.clip(rounds.confidence, 1e-12, 1 - 1e-12)
    return (np.log(c) - np.log1p(-c)) * (1.0 if temperature is None else np.array(temperature))


def fit_temperatures(rounds: Rounds, logits: npt.NDArray[np.float64]) -> list[float]:
    """The temperature of each position: in order, the one of the least error with those before it fixed.

    The error is the expected calibration error of the product of confidences against prefixes that stood. A position
    whose prefixes stood in fewer than a hundred rounds takes after the one before it.

    Shapes:
        logits: (R, K), the head's own. Returns: K temperatures.
    Raises:
        ArgumentError: There are fewer than 100 rounds.
    """
    if len(rounds) < _MIN_ROUNDS:
        raise ArgumentError(
            f"there are {len(rounds)} rounds to calibrate on, expected {_MIN_ROUNDS} or more: "
            "give more prompts or tokens"
        )
    nearest_to_one_first = _GRID[np.argsort(np.abs(np.log(_GRID)), kind="stable")]
    found: list[float] = []
    for k in range(1, logits.shape[1] + 1):
        seen = rounds.n_seen >= k
        stood = rounds.n_accepted[seen] >= k
        if stood.sum() < _MIN_STOOD:
            found.append(found[-1] if found else 1.0)
            continue

        def error(t: float, seen: npt.NDArray[np.bool_] = seen, stood: npt.NDArray[np.bool_] = stood) -> float:
            return expected_calibration_error(products(logits[seen, : len(found) + 1], [*found, t])[:, -1], stood)

        found.append(float(min(nearest_to_one_first, key=error)))
    return [round(t, 4) for t in found]
