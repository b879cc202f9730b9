"""What moves a Llama's sequence forward: llama_cpp's own decoding, or a session with a draft.

Both keep the Llama's public record (``n_tokens``, ``input_ids``, and ``scores`` where logits_all asks for it) as plain
decoding does. The record leads: a host may assign it, or decode on the context itself, and the engine follows.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from . import errors
from ._native import check, ffi, lib
from .session import Session

__all__ = ["DraftEngine", "PlainEngine"]

log = logging.getLogger("dspark_cpp")

Row = npt.NDArray[np.single]


class PlainEngine:
    """llama_cpp's eval() and sampling."""

    def __init__(self, llm: Any) -> None:
        # not the Llama itself: it owns the engine, and a cycle would keep its weights until the collector runs
        self.llm: Any = weakref.proxy(llm)

    def follow(self, *, trusting: bool) -> None:
        """Brings the engine to the sequence that the Llama's public record claims."""

    def append(self, tokens: npt.NDArray[np.int32]) -> None:
        """Decodes tokens behind the sequence."""
        self.llm._eval_plainly(tokens.tolist())

    def keep(self, n: int) -> bool:
        """Cuts the sequence to n tokens; False if the memory cannot, which is then to be reset."""
        if llama_cpp.llama_n_rs_seq(self.llm._ctx.ctx) and n != self.llm.n_tokens:
            return False  # llama.cpp would go back to snapshots that decoding one by one does not make
        if not self.llm._ctx.kv_cache_seq_rm(-1, n, -1):
            return False
        self.llm.n_tokens = n
        self.llm._requires_eval = True
        return True

    def has_logits(self) -> bool:
        """True if the logits that follow the sequence are at hand."""
        return not self.llm._requires_eval

    def choose(self, sampler: Any, pending: int | None, n_after: int) -> int:
        """Samples the next token; the one chosen before, if given, becomes part of the sequence first.

        No more than n_after tokens will be wanted after it.
        """
        if pending is not None:
            self.llm._eval_plainly([pending])
        return int(sampler.sample(self.llm._ctx, -1))

    def logits(self) -> Row:
        """The logits from which choose() has chosen, (n_vocab,)."""
        return self._row(-1)

    def _row(self, i: int) -> Row:
        pointer = llama_cpp.llama_get_logits_ith(self.llm._ctx.ctx, i)
        return np.ctypeslib.as_array(pointer, shape=(self.llm._n_vocab,))

    def settle(self) -> None:
        """Takes what was decoded ahead of the record back out of the memory."""

    def has_last_row(self) -> bool:
        """True if the last row of the context's output is that of the last token, as it is in plain decoding."""
        return True


class DraftEngine(PlainEngine):
    """A session, which decodes the drafted tokens of a round with the next one."""

    def __init__(self, llm: Any, make_session: Callable[..., Session]) -> None:
        super().__init__(llm)
        if self._last_position() + 1 < llm.n_tokens:
            llm.n_tokens = 0  # somebody has emptied the memory
        held = np.clip(llm.input_ids[: llm.n_tokens], 0, llm._n_vocab - 1)
        self.session = make_session(self.llm, tokens=held, logits_all=llm._logits_all)
        self._automatic = False  # how the session chooses its draft lengths

    def _tokens(self) -> npt.NDArray[np.int32]:
        session = self.session
        ids: npt.NDArray[np.int32] = np.empty(session.n_tokens + 1, np.int32)
        count = ffi.new("int32_t *")
        pointer = ffi.cast("int32_t *", ids.ctypes.data)
        check(lib.dspark_session_get_tokens(session._handle(), pointer, len(ids), count))
        return ids[: count[0]]

    def _last_position(self) -> int:
        return int(llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(self.llm._ctx.ctx), 0))

    def follow(self, *, trusting: bool) -> None:
        """The record may have been assigned, and others may have decoded on the context: guidance and the multimodal
        handlers do. One that moved the memory without a word in the record is believed only if ``trusting``."""
        llm, session = self.llm, self.session
        session.settle()
        held, n, last = self._tokens(), int(llm.n_tokens), self._last_position()
        untouched = last == len(held) - 1
        if untouched:
            n = min(n, len(held))  # a call that was interrupted may have announced one more
        same = n <= len(held) and np.array_equal(held[:n], llm.input_ids[:n])
        if untouched and same:
            if n < len(held):
                session.rewind(n)
        elif last < 0 or (same and n == len(held) and not trusting):
            log.info("the target's memory was changed from outside: its tokens are decoded again")
            n = 0
            session.rewind(0)
        elif last + 1 >= n:
            log.info("the target's memory was changed from outside: the draft goes on from position %d", n)
            # the tokens of an image were never written
            session.adopt(np.clip(llm.input_ids[:n], 0, llm._n_vocab - 1))
        llm.n_tokens = n

    def append(self, tokens: npt.NDArray[np.int32]) -> None:
        llm = self.llm
        if len(tokens) and self._last_position() + 1 < llm.n_tokens:
            # behind an image, whose last position may be less than its tokens, only the base can go on
            llm._eval_plainly(tokens.tolist())
            self.follow(trusting=True)
            return
        for i in range(0, len(tokens), llm.n_batch):
            batch = tokens[i : i + llm.n_batch]
            first = llm.n_tokens
            if first + len(batch) > len(llm.input_ids):
                raise errors.ContextFullError(
                    f"{len(batch)} more tokens after {first} do not fit into a context of {len(llm.input_ids)}"
                )
            # before it is decoded, so that an interrupt leaves nothing in the memory that is not in the record
            llm.input_ids[first : first + len(batch)] = batch
            self.session.append(batch)  # type: ignore[arg-type]
            if llm._logits_all:
                rows = llama_cpp.llama_get_logits(llm._ctx.ctx)
                llm.scores[first : first + len(batch)] = np.ctypeslib.as_array(rows, (len(batch), llm._n_vocab))
            llm.n_tokens = first + len(batch)
            llm._requires_eval = False

    def keep(self, n: int) -> bool:
        if n > self.session.n_tokens:
            return n == int(self.llm.n_tokens)  # behind an image there is nothing to cut
        self.session.rewind(n)
        self.llm.n_tokens = n
        self.llm._requires_eval = True
        return True

    def has_logits(self) -> bool:
        # a pending token would be decoded first
        return self.session.logits_row is not None and self.session.pending is None

    def choose(self, sampler: Any, pending: int | None, n_after: int) -> int:
        llm = self.llm
        if pending is not None and pending != self.session.pending:
            self.append(np.array([pending], np.int32))
        elif pending is not None:
            if llm.n_tokens >= len(llm.input_ids):
                raise errors.ContextFullError(f"the context of {len(llm.input_ids)} tokens is full")
            llm.input_ids[llm.n_tokens] = pending
            llm.n_tokens += 1
        if self.session.logits_row is None and pending is None:
            return super().choose(sampler, None, 0)  # the base has decoded
        self.session.warn_beyond_training(llm.n_tokens)
        automatic = llm.draft_n_max is None
        if automatic is not self._automatic:
            self.session.auto_depth = self._automatic = automatic
        limit = n_after if llm.draft_n_max is None else min(n_after, llm.draft_n_max)
        token = self.session.next(sampler, n_draft_max=limit)
        if llm._logits_all:
            llm.scores[llm.n_tokens - 1] = self.logits()
        return token

    def logits(self) -> Row:
        row = self.session.logits_row
        return self._row(-1 if row is None else row)

    def settle(self) -> None:
        if not self.session.closed:
            self.session.settle()
            self.llm.n_tokens = self.session.n_tokens

    def has_last_row(self) -> bool:
        return self.session.last_round is None
