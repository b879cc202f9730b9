"""Drafters whose proposals are known in advance."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

#: BOS and the beginning of the text that the tiny targets know by heart
PROMPT = [256, *b"The lighthouse at the end of the "]


@dataclass
class Proposed:
    """One call of propose(), with the context rows that the drafter held then."""

    anchor: int
    position: int
    n_max: int
    ids: list[int]
    n_context: int


@dataclass
class Recorder:
    """Proposes what `choose(anchor, position, n_max)` says and records everything that it is told."""

    choose: Callable[[int, int, int], Sequence[int]]
    n_draft_max: int = 7
    target_layers: Sequence[int] = ()
    proposed: list[Proposed] = field(default_factory=list)
    appended: list[tuple[int, int]] = field(default_factory=list)
    rewound: list[int] = field(default_factory=list)
    rows: list[np.ndarray] = field(default_factory=list)

    def propose(self, anchor: int, position: int, n_max: int) -> list[int]:
        ids = [int(t) for t in self.choose(anchor, position, n_max)][:n_max]
        self.proposed.append(Proposed(anchor, position, n_max, ids, len(self.rows)))
        return ids

    def append(self, features: np.ndarray, position: int) -> None:
        self.appended.append((position, len(features)))
        assert position == len(self.rows), "rows arrive in order"
        self.rows.extend(features.copy())

    def rewind(self, n_past: int) -> None:
        self.rewound.append(n_past)
        del self.rows[n_past:]

    def features(self) -> np.ndarray:
        return np.stack(self.rows)


def scripted(
    sequence: Sequence[int], pattern: Sequence[int], *, n_draft_max: int = 7, n_vocab: int = 320, **settings: object
) -> Recorder:
    """The drafter SCR(pattern): in round i the first pattern[i] proposals are right, the next is wrong on purpose.

    `sequence` is the prompt with the target's own continuation; the pattern is repeated.
    """

    def choose(anchor: int, position: int, n_max: int) -> list[int]:
        k = pattern[len(drafter.proposed) % len(pattern)]
        ids = list(sequence[position + 1 : position + 1 + k])
        while len(ids) < n_max:
            at = position + 1 + len(ids)
            truth = sequence[at] if at < len(sequence) else 0
            ids.append((truth + 1) % n_vocab)
        return ids

    drafter = Recorder(choose, n_draft_max, **settings)  # type: ignore[arg-type]
    return drafter


def copying(sequence: Sequence[int], *, n_draft_max: int = 7, **settings: object) -> Recorder:
    """Proposes what the target will write."""

    def choose(anchor: int, position: int, n_max: int) -> Sequence[int]:
        return sequence[position + 1 : position + 1 + n_max]

    return Recorder(choose, n_draft_max, **settings)  # type: ignore[arg-type]


def constant(token: int, *, n_draft_max: int = 7, **settings: object) -> Recorder:
    """Always proposes the same token."""
    return Recorder(lambda anchor, position, n_max: [token] * n_max, n_draft_max, **settings)  # type: ignore[arg-type]
