"""A target opened for many sequences at once, and the generation of all of them side by side."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import llama_cpp
import numpy as np
from llama_cpp import llama_cpp as api

from .. import errors, kernels
from .._native import BaseLlama
from ..sampling import Sampler

__all__ = ["Generated", "Request", "generate", "loop_end", "open_batched"]

_lock = threading.Lock()

#: a loop is looked for whenever so many tokens have come
_LOOK_EVERY = 16
#: tokens that three equal parts must have together before they count as a loop
_LOOP_MIN = 24
#: longest part that is looked for
_LOOP_PERIOD = 64


@dataclass(frozen=True)
class Request:
    """One response to be generated. Its tokens depend on these values and the target, and on nothing else."""

    index: int
    prompt: Sequence[int]
    temperature: float
    seed: int


@dataclass(frozen=True)
class Generated:
    index: int
    tokens: list[int]
    #: "stop" (the last token ends the generation), "length", or "loop" (cut behind its second repeat)
    finish: str


def open_batched(model_path: str | os.PathLike[str], n_parallel: int, n_ctx: int, n_threads: int) -> Any:
    """A llama_cpp.Llama with room for n_parallel sequences of n_ctx tokens each, computed by our kernels."""
    kernels.install("auto", model_path)
    original = api.llama_context_default_params
    opener = threading.get_ident()

    def for_many() -> Any:
        params = original()
        if threading.get_ident() == opener:
            params.n_seq_max = n_parallel
            params.kv_unified = False  # every sequence attends to cells of its own; nobody pays for the others' length
        return params

    # as in open_target(): Llama has no keyword for these two
    with _lock:
        api.llama_context_default_params = for_many
        llama_cpp.llama_context_default_params = for_many
        try:
            return BaseLlama(
                os.fspath(model_path),
                n_ctx=n_parallel * (-(-n_ctx // 256) * 256),
                n_batch=max(512, n_parallel),
                n_ubatch=max(512, n_parallel),
                n_threads=n_threads,
                n_threads_batch=n_threads,
                flash_attn=True,
                verbose=False,
            )
        finally:
            api.llama_context_default_params = original
            llama_cpp.llama_context_default_params = original


class _Batch:
    """A llama_batch over numpy arrays, one sequence a token."""

    def __init__(self, capacity: int) -> None:
        self._token = np.zeros(capacity, np.int32)
        self._pos = np.zeros(capacity, np.int32)
        self._n_seq_id = np.ones(capacity, np.int32)
        self._seq = np.zeros(capacity, np.int32)
        self._seq_id = self._seq.ctypes.data + 4 * np.arange(capacity, dtype=np.uintp)  # a pointer to each
        self._logits = np.zeros(capacity, np.int8)

    def decode(self, ctx: Any, tokens: Any, pos: Any, seq: Any, logits: Any) -> None:
        n = len(tokens)
        self._token[:n], self._pos[:n], self._seq[:n], self._logits[:n] = tokens, pos, seq, logits
        batch = llama_cpp.llama_batch()
        batch.n_tokens = n
        for name, array in (
            ("token", self._token),
            ("pos", self._pos),
            ("n_seq_id", self._n_seq_id),
            ("seq_id", self._seq_id),
            ("logits", self._logits),
        ):
            kind = dict(llama_cpp.llama_batch._fields_)[name]
            setattr(batch, name, ctypes.cast(array.ctypes.data, kind))
        status = llama_cpp.llama_decode(ctx, batch)
        if status:
            raise errors.BackendError(f"llama_decode returned {status} for {n} tokens of {len(set(seq))} sequences")


@dataclass
class _Slot:
    request: Request
    sampler: Sampler | None
    tokens: list[int] = field(default_factory=list)


def generate(llm: Any, requests: Iterable[Request], *, n_parallel: int, max_tokens: int) -> Iterator[Generated]:
    """Generates the responses of all requests, up to n_parallel at a time, and yields each when it ends.

    A place that becomes free is taken by the next request at once. With our kernels no row of a batch depends on the
    others, so a response is the same in whatever company it is generated.

    Args:
        llm: Of open_batched(), with room for n_parallel sequences.
        max_tokens: Longest response.

    Raises:
        ContextFullError: A prompt and its response would not fit into a sequence's part of the context.
    """
    ctx, vocab, n_vocab = llm.ctx, llm._model.vocab, llm.n_vocab()
    memory = llama_cpp.llama_get_memory(ctx)
    room = llama_cpp.llama_n_ctx(ctx) // llama_cpp.llama_n_seq_max(ctx)
    batch = _Batch(llama_cpp.llama_n_batch(ctx))
    slots: list[_Slot | None] = [None] * n_parallel
    waiting = iter(requests)
    llama_cpp.llama_memory_clear(memory, False)

    def choose(slot: _Slot, row: int, logits: Any) -> None:
        if slot.sampler is None:
            slot.tokens.append(int(np.argmax(logits)))
        else:
            slot.tokens.append(llama_cpp.llama_sampler_sample(slot.sampler.sampler, ctx, row))

    def begin(i: int) -> _Slot | None:
        request = next(waiting, None)
        if request is None:
            return None
        prompt = np.asarray(request.prompt, np.int32)
        if len(prompt) + max_tokens > room:
            raise errors.ContextFullError(
                f"a prompt of {len(prompt)} tokens and a response of {max_tokens} do not fit into {room}"
            )
        if not len(prompt) or prompt.min() < 0 or prompt.max() >= n_vocab:
            raise errors.ArgumentError(f"prompt {request.index} is empty or has a token outside [0, {n_vocab})")
        llama_cpp.llama_memory_seq_rm(memory, i, -1, -1)
        for at in range(0, len(prompt), llm.n_batch):
            part = prompt[at : at + llm.n_batch]
            wanted = np.zeros(len(part), np.int8)
            wanted[-1] = 1
            batch.decode(ctx, part, np.arange(at, at + len(part)), np.full(len(part), i), wanted)
        temperature = request.temperature
        slot = _Slot(request, Sampler(temp=temperature, seed=request.seed) if temperature > 0 else None)
        choose(slot, len(part) - 1, _logits(ctx, len(part) - 1, n_vocab))
        return slot

    def finish(slot: _Slot) -> str | None:
        n = len(slot.tokens)
        if llama_cpp.llama_vocab_is_eog(vocab, slot.tokens[-1]):
            return "stop"
        if n % _LOOK_EVERY == 0 and (end := loop_end(slot.tokens)):
            del slot.tokens[end:]
            return "loop"
        return "length" if n >= max_tokens else None

    while True:
        for i in range(n_parallel):
            slot = slots[i]
            while reason := finish(slot) if slot else "empty":
                if slot is not None:
                    if slot.sampler is not None:
                        slot.sampler.close()
                    yield Generated(slot.request.index, slot.tokens, reason)
                slot = begin(i)
                if slot is None:
                    break
            slots[i] = slot
        active = [(i, slot) for i, slot in enumerate(slots) if slot is not None]
        if not active:
            return
        batch.decode(
            ctx,
            [slot.tokens[-1] for _, slot in active],
            [len(slot.request.prompt) + len(slot.tokens) - 1 for _, slot in active],
            [i for i, _ in active],
            1,
        )
        for row, (_, slot) in enumerate(active):
            choose(slot, row, _logits(ctx, row, n_vocab))


def _logits(ctx: Any, row: int, n_vocab: int) -> Any:
    return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, row), shape=(n_vocab,))


def loop_end(tokens: Sequence[int]) -> int:
    """Where to cut tokens that end in a loop, so that what repeats stays twice; 0: they do not end in one.

    A loop is a part that comes three times in a row at the end, 24 tokens or more together.
    """
    values = np.asarray(tokens)
    for period in range(1, min(_LOOP_PERIOD, len(values) // 3) + 1):
        differ = np.nonzero(values[period:] != values[:-period])[0]
        start = int(differ[-1]) + 1 if len(differ) else 0  # of the first part
        if len(values) - start >= max(3 * period, _LOOP_MIN):
            return start + 2 * period
    return 0
