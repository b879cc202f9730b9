"""What /metrics tells Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

from ..stats import Stats
from .timings import Timings

__all__ = ["Metrics"]


class Metrics:
    """Counters over all completions since the server began, by model; in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(f"dspark_{name}", what, ["model", *labels], registry=self.registry)

        self._completions = counter("completions", "Completions, those cut short included")
        self._prompt_tokens = counter("prompt_tokens", "Tokens of prompts, those found in the cache included")
        self._prompt_seconds = counter("prompt_seconds", "Time to first tokens, without waiting")
        self._predicted_tokens = counter("predicted_tokens", "Generated tokens")
        self._predicted_seconds = counter("predicted_seconds", "Time of all tokens after first ones")
        self._draft_rounds = counter("draft_rounds", "Rounds that verified drafted tokens")
        self._draft_tokens = counter("draft_tokens", "Drafted tokens that were verified")
        self._draft_accepted = counter("draft_accepted_tokens", "Drafted tokens that were accepted")
        self._drafted_at = counter("draft_position_tokens", "Drafted tokens by place in the proposal", "position")
        self._accepted_at = counter("draft_position_accepted_tokens", "Accepted ones of those", "position")
        self._drafting = Gauge("dspark_drafting", "1 if the model drafts, 0 if not", ["model"], registry=self.registry)

    def model_loaded(self, model: str, drafting: bool) -> None:
        self._drafting.labels(model).set(drafting)

    def count(self, model: str, call: Timings, draft: Stats) -> None:
        """One generation, ended in whatever way."""
        self._completions.labels(model).inc()
        self._prompt_tokens.labels(model).inc(call.prompt_n)
        self._prompt_seconds.labels(model).inc(call.prompt_s)
        self._predicted_tokens.labels(model).inc(call.predicted_n)
        self._predicted_seconds.labels(model).inc(call.predicted_s)
        self._draft_rounds.labels(model).inc(draft.n_rounds_drafted)
        self._draft_tokens.labels(model).inc(draft.draft_n)
        self._draft_accepted.labels(model).inc(draft.draft_n_accepted)
        for position, (drafted, accepted) in enumerate(zip(draft.n_drafted_at, draft.n_accepted_at, strict=True)):
            if drafted:
                self._drafted_at.labels(model, position).inc(drafted)
                self._accepted_at.labels(model, position).inc(accepted)

    def render(self) -> bytes:
        return generate_latest(self.registry)
