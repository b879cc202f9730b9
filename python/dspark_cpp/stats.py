"""What a session counts."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from typing import Any

__all__ = ["Depth", "Round", "Stats"]


@dataclass(frozen=True)
class Round:
    """One round: the anchor and its drafts, verified in one target batch.

    ``confidence`` holds P(accepted | all earlier accepted) of each draft, or is None; ``next`` is the target's own
    token after the accepted ones (the correction or bonus), None while it has not been sampled.
    """

    position: int
    anchor: int
    drafted: tuple[int, ...]
    confidence: tuple[float, ...] | None
    n_accepted: int
    next: int | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Depth:
    """What the automatic draft length is chosen from, as estimated for the present length of the sequence."""

    #: whether the length is automatic
    automatic: bool
    #: whether drafting is paused, since it does not pay now
    paused: bool
    #: seconds of a proposal
    t_draft: float
    #: seconds of a target batch of 1 + k rows, for k = 0, 1, ... up to the longest proposal
    t_rows: tuple[float, ...]
    #: P(draft k stands, if all before it do) where the confidence head is sure
    survival: tuple[float, ...]


@dataclass(frozen=True)
class Stats:
    """Counters of a session since its creation or the last reset. Times are in seconds.

    ``draft_n`` counts drafted tokens that were put before the target, ``draft_n_accepted`` those that stood,
    ``n_by_rejection`` those that rejection sampling decided about (0 with verify="match").
    """

    n_prompt: int
    n_emitted: int
    n_rounds: int
    n_proposals: int
    n_rounds_drafted: int
    draft_n: int
    draft_n_accepted: int
    n_by_rejection: int
    n_drafted_at: tuple[int, ...]
    n_accepted_at: tuple[int, ...]
    t_prompt: float
    t_inject: float
    t_draft: float
    t_draft_compute: float
    t_verify: float
    t_sample: float

    @property
    def mean_accepted_length(self) -> float:
        """Tokens a round that drafted gave, the target's own (bonus) included: 1 + accepted / rounds; 0 without any."""
        return 1 + self.draft_n_accepted / self.n_rounds_drafted if self.n_rounds_drafted else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted / drafted; 0 without drafts."""
        return self.draft_n_accepted / self.draft_n if self.draft_n else 0.0

    @property
    def acceptance_per_position(self) -> tuple[float, ...]:
        """Share of the rounds that drafted slot k in which slot k was accepted."""
        return tuple(a / d for a, d in zip(self.n_accepted_at, self.n_drafted_at, strict=True) if d)

    @classmethod
    def zero(cls) -> Stats:
        """Nothing counted yet."""
        values: dict[str, Any] = {f.name: () if f.name.endswith("_at") else 0 for f in fields(cls)}
        return cls(**values)

    def since(self, earlier: Stats) -> Stats:
        """What was counted between an earlier copy of the same counters and this one."""
        values: dict[str, Any] = {}
        for f in fields(self):
            now, then = getattr(self, f.name), getattr(earlier, f.name)
            if isinstance(now, tuple):
                values[f.name] = tuple(a - b for a, b in zip_longest(now, then, fillvalue=0))
            else:
                values[f.name] = now - then
        return Stats(**values)

    def as_dict(self) -> dict[str, Any]:
        rates = [round(rate, 4) for rate in self.acceptance_per_position]
        return {
            **asdict(self),
            "n_drafted_at": list(self.n_drafted_at[: len(rates)]),
            "n_accepted_at": list(self.n_accepted_at[: len(rates)]),
            "mean_accepted_length": self.mean_accepted_length,
            "acceptance_rate": self.acceptance_rate,
            "acceptance_per_position": rates,
        }
