"""SIGINT and SIGTERM in the midst of a batch: it is given up, so that Python's handler runs at once and not at its end.

The handler runs where it always does, between two steps of Python: never inside of llama.cpp, whose objects it may
close. If it raises nothing the batch is decoded again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import llama_cpp

from ._native import ffi, lib

__all__ = ["can_give_up", "interruptible", "watch"]

T = TypeVar("T")


def watch(llm: Any) -> None:
    """Gives a context that was just made the callback that llama.cpp asks whether to give up a batch.

    A context has one. A host that sets its own later replaces this; a context that somebody else has made is left
    alone, since it may have the host's.
    """
    if not llm.context_params.abort_callback:
        address = int(ffi.cast("uintptr_t", ffi.addressof(lib, "dspark_interrupt_callback")))
        llama_cpp.llama_set_abort_callback(llm._ctx.ctx, llama_cpp.ggml_abort_callback(address), None)


def can_give_up(llm: Any) -> bool:
    """True if the memory takes back any batch that it has begun, without decoding what was before it again."""
    model = llm._model.model
    if llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model):
        return False
    # the second part of a batch takes the place of what only the first one looks at
    ctx = llm._ctx.ctx
    return not llama_cpp.llama_model_n_swa(model) or llama_cpp.llama_n_batch(ctx) <= llama_cpp.llama_n_ubatch(ctx)


def interruptible(call: Callable[..., T], *args: Any) -> T:
    """Makes a call that decodes and returns something true if it fails, and may then be made again.

    Only the main thread runs handlers; calls of others are not interrupted.
    """
    if threading.get_ident() != threading.main_thread().ident:
        return call(*args)
    try:
        lib.dspark_interrupts_begin()
        failure = call(*args)  # if the handler of a signal raises, then behind this call
    finally:
        given_up = lib.dspark_interrupts_end()
    return call(*args) if given_up and failure else failure
