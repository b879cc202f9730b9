"""How many drafted tokens stand: by position in the block, by set and by the length of the context."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .rounds import Rounds

__all__ = ["acceptance", "by_depth"]

_FIRST_BOUND = 128  # tokens; each bucket of context depth is twice as wide as the one before


def acceptance(rounds: Rounds, n_draft_max: int) -> dict[str, Any]:
    """Counts and rates of some rounds, as plain values.

    ``mean_accepted_length`` is tokens a round, the target's own (bonus) included. Of position k, ``conditional`` is the
    share of the rounds whose earlier drafts stood in which draft k stood too, ``cumulative`` that of all rounds that
    drafted it. Each comes with its standard error (None for a single prompt), prompts taken as the independent unit.
    """
    ones = np.ones(len(rounds))
    length, error = _ratio(rounds, rounds.n_accepted, ones)
    rate, _ = _ratio(rounds, rounds.n_accepted, rounds.n_seen)
    positions = []
    for k in range(1, n_draft_max + 1):
        seen = rounds.n_seen >= k
        stood = rounds.n_accepted >= k
        reached = seen & (rounds.n_accepted >= k - 1)
        conditional, conditional_error = _ratio(rounds, stood, reached)
        cumulative, cumulative_error = _ratio(rounds, stood, seen)
        positions.append(
            {
                "position": k,
                "n_rounds": int(seen.sum()),
                "n_reached": int(reached.sum()),
                "n_accepted": int(stood.sum()),
                "conditional": conditional,
                "conditional_error": conditional_error,
                "cumulative": cumulative,
                "cumulative_error": cumulative_error,
            }
        )
    return {
        "n_prompts": len(np.unique(rounds.prompt)),
        "n_rounds": len(rounds),
        "n_tokens": int(rounds.n_accepted.sum()) + len(rounds),
        "draft_n": int(rounds.n_seen.sum()),
        "draft_n_accepted": int(rounds.n_accepted.sum()),
        "mean_accepted_length": None if length is None else round(1 + length, 4),
        "standard_error": error,
        "acceptance_rate": rate,
        "positions": positions,
    }


def by_depth(rounds: Rounds, n_draft_max: int) -> list[dict[str, Any]]:
    """The same for rounds of similar context length: anchors at positions 0 to 127, 128 to 255, 256 to 511, ..."""
    buckets = []
    start, stop = 0, _FIRST_BOUND
    while len(rounds) and start <= rounds.position.max():
        inside = rounds.where((start <= rounds.position) & (rounds.position < stop))
        if len(inside):
            buckets.append({"from": start, "to": stop - 1, **acceptance(inside, n_draft_max)})
        start, stop = stop, 2 * stop
    return buckets


def _ratio(
    rounds: Rounds, numerator: npt.NDArray[Any], denominator: npt.NDArray[Any]
) -> tuple[float | None, float | None]:
    """Sum over sum, and its standard error by the spread between prompts (the usual one of a ratio of sums)."""
    n_prompts = int(rounds.prompt.max(initial=-1)) + 1
    above = np.bincount(rounds.prompt, numerator, n_prompts)
    below = np.bincount(rounds.prompt, denominator, n_prompts)
    above, below = above[below > 0], below[below > 0]
    if not len(below):
        return None, None
    ratio = above.sum() / below.sum()
    if len(below) < 2:
        return round(float(ratio), 4), None
    spread = np.square(above - ratio * below).sum() * len(below) / (len(below) - 1)
    return round(float(ratio), 4), round(math.sqrt(spread) / float(below.sum()), 4)
