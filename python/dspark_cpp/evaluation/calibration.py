"""Whether the confidence head says truly how likely drafts are to stand.

What is judged at position k is the product of the first k confidences, a promise that the whole prefix stands, as
DeepSpec does; the sum of these products is what automatic draft lengths are chosen by.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .rounds import Rounds

__all__ = ["N_BINS", "calibration", "expected_calibration_error", "products"]

N_BINS = 20

_Floats = npt.NDArray[np.float64]
_Bools = npt.NDArray[np.bool_]


def products(logits: _Floats, temperature: Sequence[float]) -> _Floats:
    """Of logits (R, K): the product of sigmoid(logit_i / T_i) up to each position, (R, K)."""
    scaled = logits / np.asarray(temperature, np.float64)
    whole: _Floats = np.cumprod(0.5 * (1 + np.tanh(0.5 * scaled)), axis=1, dtype=np.float64)
    return whole


def expected_calibration_error(promised: _Floats, stood: _Bools) -> float:
    """Of R promises in [0, 1]: |mean promise - share that stood| in each of 20 equal bins, weighted by their rounds."""
    index = _bins(promised)
    gaps = np.bincount(index, promised, N_BINS) - np.bincount(index, stood, N_BINS)
    return float(np.abs(gaps).sum() / len(promised))


def calibration(rounds: Rounds, logits: _Floats, temperature: Sequence[float]) -> list[dict[str, Any]]:
    """Of each position, as plain values: how the product of confidences agrees with the prefixes that stood.

    ``ece_by_chance`` is what the error would be, on average, if every promise were true: a smaller one says nothing.
    ``auc`` is the chance that of two rounds the one that stood was promised more; None where all or none stood.
    """
    found = []
    promises = products(logits, temperature)
    for k in range(1, promises.shape[1] + 1):
        seen = rounds.n_seen >= k
        promised, stood = promises[seen, k - 1], rounds.n_accepted[seen] >= k
        if not len(promised):
            continue
        found.append(
            {
                "position": k,
                "n_rounds": len(promised),
                "promised": round(float(promised.mean()), 4),
                "stood": round(float(stood.mean()), 4),
                "ece": round(expected_calibration_error(promised, stood), 4),
                "ece_by_chance": round(_error_by_chance(promised), 4),
                "auc": _auc(promised, stood),
                "brier": round(float(np.square(promised - stood).mean()), 4),
                "bins": _reliability(promised, stood),
            }
        )
    return found


def _bins(promised: _Floats) -> npt.NDArray[np.int64]:
    return np.minimum((promised * N_BINS).astype(np.int64), N_BINS - 1)


def _error_by_chance(promised: _Floats) -> float:
    # the mean of |x| of a normal x is sqrt(2 / pi) times its standard deviation
    variance = np.bincount(_bins(promised), promised * (1 - promised), N_BINS)
    return float(np.sqrt(2 / math.pi * variance).sum() / len(promised))


def _auc(promised: _Floats, stood: _Bools) -> float | None:
    n_stood = int(stood.sum())
    n_fell = len(stood) - n_stood
    if not n_stood or not n_fell:
        return None
    _, index, counts = np.unique(promised, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[index]  # equal promises share a rank
    return round(float((ranks[stood].sum() - n_stood * (n_stood + 1) / 2) / (n_stood * n_fell)), 4)


def _reliability(promised: _Floats, stood: _Bools) -> list[dict[str, Any]]:
    index = _bins(promised)
    n = np.bincount(index, minlength=N_BINS)
    sums = np.bincount(index, promised, N_BINS), np.bincount(index, stood, N_BINS)
    return [
        {"n": int(n[b]), "promised": round(sums[0][b] / n[b], 4), "stood": round(sums[1][b] / n[b], 4)}
        for b in np.nonzero(n)[0]
    ]
