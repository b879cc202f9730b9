"""Draft models of llama_cpp's own kind (prompt lookup) as drafters of a session."""

from __future__ import annotations

import weakref
from typing import Any

__all__ = ["LookupDrafter"]


class LookupDrafter:
    """Asks a LlamaDraftModel, which wants the whole history, for what may follow it."""

    #: more than any of them proposes; a batch and the context set the limit
    n_draft_max = 31

    def __init__(self, model: Any, llm: Any) -> None:
        self._model = model
        self._llm = weakref.ref(llm)

    def propose(self, anchor: int, position: int, n_max: int) -> list[int]:
        llm = self._llm()
        assert llm is not None, "a session ends before its Llama"
        llm.input_ids[position] = anchor
        return [int(token) for token in self._model(llm.input_ids[: position + 1])[:n_max]]
