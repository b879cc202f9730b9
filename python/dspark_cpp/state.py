"""Saved states of a Llama that carry the draft's side too."""

from __future__ import annotations

import ctypes
import logging
from typing import Any

import llama_cpp
import numpy as np

from . import errors
from .engines import DraftEngine

__all__ = ["load", "save"]

log = logging.getLogger("dspark_cpp")


def save(llm: Any, state: llama_cpp.LlamaState) -> llama_cpp.LlamaState:
    """Adds the draft's side to a state that the base has just saved: an attribute that other readers ignore."""
    engine = llm._engine
    if isinstance(engine, DraftEngine):
        state.dspark = engine.session.save_state()
    if not llm._logits_all:
        # one row stands for all in numpy's assignment, whatever the size of the reader's own buffer
        state.scores = np.zeros((1, llm._n_vocab), np.single)
    return state


def load(llm: Any, state: llama_cpp.LlamaState) -> None:
    """Takes back a state, the draft's side with it if it is there and of this draft.

    Raises:
        RuntimeError: The state is of another model or context (the sequence is forgotten then).
        ContextFullError: It has more tokens than this context.
    """
    n = int(state.n_tokens)
    if n > len(llm.input_ids):
        raise errors.ContextFullError(f"the saved state has {n} tokens, the context holds {len(llm.input_ids)}")
    size = int(state.llama_state_size)
    data = (ctypes.c_uint8 * size).from_buffer_copy(state.llama_state)
    llm.n_tokens = 0
    llm._requires_eval = True
    if llama_cpp.llama_state_set_data(llm._ctx.ctx, data, size) != size:
        raise RuntimeError(
            "Failed to set llama state data: it is of another model, or of a context with other settings "
            "(flash_attn, which is on by default where the kernels are, type_k, type_v)"
        )
    llm.input_ids[:n] = state.input_ids[:n]
    llm.n_tokens = n
    llm._seed = state.seed
    if llm._logits_all:
        rows = state.scores[:n]
        llm.scores[: len(rows)] = rows
    engine = llm._engine
    if not isinstance(engine, DraftEngine):
        return
    blob = getattr(state, "dspark", None)
    if blob is not None:
        try:
            engine.session.load_state(blob)
            return
        except (errors.MismatchError, errors.FormatError, errors.StateError) as exception:
            log.info("the state's draft is not used: %s", exception)
    engine.follow(trusting=True)
