"""What a Llama's draft has brought: llm.speculation."""

from __future__ import annotations

from .engines import DraftEngine, PlainEngine
from .session import Session
from .stats import Depth, Stats

__all__ = ["Speculation"]


class Speculation:
    """What drafting has brought, and why it is off where it is.

    ``last`` counts the last call that generated (or the one that runs), ``total`` all since the draft was attached.
    Both are Stats: ``draft_n``, ``draft_n_accepted``, ``mean_accepted_length``, ``acceptance_per_position``, and the
    seconds of each phase.
    """

    def __init__(self, engine: PlainEngine, reason: str | None, n_max: int | None) -> None:
        self._session: Session | None = engine.session if isinstance(engine, DraftEngine) else None
        self._reason = reason
        #: llm.draft_n_max
        self.n_max = n_max
        self._total = self._start = self._end = Stats.zero()
        self._running = False
        self._exact = True

    @property
    def disabled_reason(self) -> str | None:
        """Why nothing is drafted; None if something is."""
        if self._session is None:
            return self._reason
        if self._session.closed:
            return "the Llama is closed"
        return "draft_n_max is 0" if self.n_max == 0 else self._session.disabled_reason

    @property
    def match_reason(self) -> str | None:
        """Why the last token was verified by match although draft_verify is "rejection"; None if it was not."""
        return None if self._session is None or self._session.closed else self._session.match_reason

    @property
    def feature_source(self) -> str:
        """Where the draft's features come from: "layer taps", "evaluation callback" or "none"."""
        return "none" if self._session is None or self._session.closed else self._session.feature_source

    @property
    def exact(self) -> bool:
        """True if no draft can have changed a bit of any logits so far; see Session.exact."""
        if self._session is not None and not self._session.closed:
            self._exact = self._session.exact
        return self._exact

    @property
    def depth(self) -> Depth | None:
        """What automatic draft lengths are chosen from, and whether drafting is paused; None without drafting."""
        return None if self._session is None or self._session.closed else self._session.depth

    @property
    def total(self) -> Stats:
        if self._session is not None and not self._session.closed:
            self._total = self._session.stats
        return self._total

    @property
    def last(self) -> Stats:
        return (self.total if self._running else self._end).since(self._start)

    def begin_call(self) -> None:
        self._start = self.total
        self._running = True

    def end_call(self) -> None:
        self._end = self.total
        self._running = False

    def __repr__(self) -> str:
        if self.disabled_reason is not None:
            return f"<Speculation: off, {self.disabled_reason}>"
        total = self.total
        return f"<Speculation: {total.draft_n_accepted} of {total.draft_n} drafted tokens accepted>"
