"""The loop behind Llama.generate(): what llama_cpp's does, over an engine that may decode several tokens at once.

Nothing is sampled before the consumer asks for it, by the very sampler chain that the base builds, from the logits of
the row that follows the history. So whatever looks at the history (penalties, grammars, processors, stopping criteria)
sees what it would see in plain decoding, and may act on it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from . import errors
from ._native import tokens as as_tokens

__all__ = ["generate", "restore_logits"]

Ids = npt.NDArray[np.int32]


def generate(
    llm: Any,
    prompt: Sequence[int],
    *,
    reset: bool,
    stopping_criteria: Any,
    logits_processor: Any,
    sampling: dict[str, Any],
) -> Generator[int, Sequence[int] | None, None]:
    """Yields tokens; at each, the Llama's record holds the prompt and all yielded before this one."""
    _ = llm.ctx  # refuses a closed one
    engine, speculation = llm._engine, llm.speculation
    n_wanted, llm._n_wanted = llm._n_wanted or 0, None
    if n_wanted <= 0:
        n_wanted = len(llm.input_ids)
    raised: list[BaseException] = []
    sampler = llm._init_sampler(logits_processor=relay(logits_processor, raised), **sampling)
    llm._sampler = sampler
    ids = as_tokens(prompt if isinstance(prompt, np.ndarray) else list(prompt), "the prompt")
    engine.follow(trusting=not reset)
    todo = reuse_prefix(llm, engine, ids) if reset else ids
    if not len(todo) and not llm.n_tokens:
        raise errors.ArgumentError("the prompt is empty, expected at least one token")
    sequence = [*llm._input_ids.tolist(), *todo.tolist()]
    n_prompt = len(sequence)
    pending: int | None = None
    epoch = llm._turns.epoch
    speculation.begin_call()
    try:
        while True:
            if len(todo):
                engine.append(todo)
                pending = None
            elif pending is None:
                restore_logits(llm, engine)
            # drafts past the last token wanted would be verified for nothing
            token = engine.choose(sampler, pending, max(0, n_wanted - len(sequence) + n_prompt - 1))
            if raised:
                raise raised[0]
            if stopping_criteria is not None and stopping_criteria(llm._input_ids, latest_scores(llm, engine)):
                return
            sent = yield token
            pending, todo = token, ids[:0]
            sequence.append(token)
            if sent is not None and len(sent):
                sequence += [int(t) for t in sent]
                n_prompt += len(sent)
                todo = as_tokens([token, *sent], "what was sent")
            if llm._turns.epoch != epoch:  # other calls have used the Llama since
                engine = llm._engine
                engine.follow(trusting=False)
                pending, todo = None, reuse_prefix(llm, engine, as_tokens(sequence))
                llm._sampler = sampler
                epoch = llm._turns.epoch
    finally:
        if llm._turns.epoch == epoch:
            engine.settle()
            speculation.end_call()


def relay(processors: Any, raised: list[BaseException]) -> Any:
    """The processors, keeping what they raise: ctypes would print and forget it, an interrupt too."""

    def one(processor: Callable[..., Any]) -> Callable[..., Any]:
        def call(ids: Any, scores: Any) -> Any:
            try:
                return processor(ids, scores)
            except BaseException as exception:
                raised.append(exception)
                return scores

        return call

    return None if processors is None else llama_cpp.LogitsProcessorList([one(p) for p in processors])


def reuse_prefix(llm: Any, engine: Any, ids: Ids) -> Ids:
    """Keeps what the sequence shares with the new one, and returns what is left to decode."""
    n = common_prefix(llm._input_ids, ids)
    if 0 < n == len(ids) == llm.n_tokens and engine.has_logits():
        say(llm, "full prompt already cached, skipping reset")
        return ids[n:]
    # the logits of the last token are needed in any case
    keep = n - 1 if n == len(ids) else n
    if keep > 0:
        if engine.keep(keep):
            say(llm, f"{keep} prefix-match hit, remaining {len(ids) - keep} prompt tokens to eval")
            return ids[keep:]
        say(llm, f"{keep} prefix-match found but partial kv removal not supported, re-evaluating full prompt")
    llm.reset()
    engine.keep(0)
    return ids


def common_prefix(a: Ids, b: Ids) -> int:
    n = min(len(a), len(b))
    differ = np.nonzero(a[:n] != b[:n])[0]
    return int(differ[0]) if len(differ) else n


def restore_logits(llm: Any, engine: Any) -> None:
    """Makes the logits that follow the sequence the last row of the context's output, decoding its end again."""
    if not (engine.has_logits() and engine.has_last_row()):
        ids = np.array(llm._input_ids)
        if engine.keep(len(ids) - 1):
            ids = ids[-1:]
        else:
            llm.reset()
        engine.append(ids)


def latest_scores(llm: Any, engine: Any) -> Any:
    """The logits from which the last token was chosen, as the last row of ``llm._scores``."""
    row = llm._scores[-1]
    row[:] = engine.logits()
    return row


def say(llm: Any, what: str) -> None:
    if llm.verbose:
        print(f"Llama.generate: {what}", file=sys.stderr)
