"""A target driven with a draft: tokens in, tokens out."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Any

import llama_cpp
import numpy as np

from . import errors
from ._native import check, context_pointer, ffi, lib, require_llama, text
from ._native import tokens as as_tokens
from .draft import Draft
from .drafters import Bridge, Drafter
from .interrupts import interruptible
from .params import fill_context_params, integer, number
from .sampling import sampler_pointer
from .stats import Depth, Round, Stats
from .target import feature_tap

__all__ = ["Session"]

log = logging.getLogger("dspark_cpp")

SOURCES = {"auto": 0, "taps": 1, "eval": 2}
_VERIFY = {"match": 0, "rejection": 1}


def verify_rule(value: Any, what: str) -> str:
    """A way of verifying drafts, by name."""
    if not isinstance(value, str) or value not in _VERIFY:
        raise errors.ArgumentError(f"{what} is {value!r}, expected one of {', '.join(_VERIFY)}")
    return value


class _Handle:
    """Keeps the C session alive; the target's Llama keeps it too, and closes it before its context goes.

    It refers to neither the Llama nor the Session, so that no cycle keeps any of them alive. That there is one call at
    a time is the C library's care: a lock taken here could be lost to a signal.
    """

    def __init__(self, ptr: Any) -> None:
        self.ptr = ptr
        # not ffi.gc: the collector may run that before a Llama in the same cycle calls close()
        self._free = lib.dspark_session_free
        self.closed = False

    def close(self) -> None:
        if self.ptr is not None:
            check(lib.dspark_session_close(self.ptr))
        self.closed = True

    def close_with_target(self) -> None:
        """The Llama is going. From inside a call of the session's own, what is left of it can never be freed."""
        try:
            self.close()
        except errors.StateError:
            self.ptr, self.closed = None, True
            raise

    def __del__(self) -> None:
        ptr, self.ptr, self.closed = self.ptr, None, True
        if ptr is not None:
            self._free(ptr)


class Session:
    """Decodes one sequence of a target with a draft; the output is the target's own.

    Every token is chosen from the target's logits given the tokens before it; the draft only decides how many of them
    one target batch computes. The session takes over sequence 0 of the target's context: while it is open, use the
    Llama object for its tokenizer and properties only. One call at a time: another one, from a second thread, raises
    StateError. Different sessions run side by side.

    Args:
        target: An open llama_cpp.Llama. Its architecture needs layer-input taps, or open it with ``open_target()``.
        draft: A Draft, the path of one (loaded on the target's device), any Drafter, or None for plain decoding.
        n_draft_max: Most drafted tokens a round; None: all that the draft proposes; 0: plain decoding.
        n_ctx: Longest sequence; None: the target's context size.
        tokens: What the target's memory holds already, at positions 0, 1, ... (see adopt()); None: it is emptied.
        logits_all: append() computes the logits of every token, not of the last alone.
        auto_depth: Verify as many drafted tokens as give most tokens a second, none included, by what was accepted and
            by the times measured in this session; else as many as are proposed.
        verify: "match": a draft stands if it is the token that the sampler draws, and a seed gives the text of plain
            decoding. "rejection": the draft draws its tokens too, and one stands with probability min(1, p / q): more
            stand, and the distribution of the text is the same; see ``match_reason``.
        confidence_min: A proposal ends before the first token whose confidence is lower; 0: off.
        n_threads: Threads of the draft; None: those of the target.
        type_k, type_v: Types of the draft's cache.
        n_ctx_draft: Longest sequence that is drafted for; None: no limit.
        feature_source: "auto", "taps" (layer-input taps) or "eval" (evaluation callback).

    Raises:
        MismatchError: Draft and target do not belong together, or the target hands out no features.
        StateError: The target is closed or has a session already.
        ArgumentError, FileError, FormatError, OutOfMemoryError: see the message.
    """

    _owned: _Handle | None = None

    def __init__(
        self,
        target: llama_cpp.Llama,
        draft: Draft | str | os.PathLike[str] | Drafter | None = None,
        *,
        n_draft_max: int | None = None,
        n_ctx: int | None = None,
        tokens: Sequence[int] | None = None,
        logits_all: bool = False,
        auto_depth: bool = False,
        verify: str = "match",
        confidence_min: float = 0.0,
        n_threads: int | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        n_ctx_draft: int | None = None,
        feature_source: str = "auto",
    ) -> None:
        context = context_pointer(target)
        if not isinstance(feature_source, str) or feature_source not in SOURCES:
            raise errors.ArgumentError(f"feature_source is {feature_source!r}, expected one of {', '.join(SOURCES)}")
        params = ffi.new("dspark_session_params *")
        lib.dspark_session_params_init(params)
        params.n_ctx = 0 if n_ctx is None else integer(n_ctx, "n_ctx")
        kept = as_tokens(() if tokens is None else tokens)
        params.tokens, params.n_tokens = ffi.cast("int32_t *", kept.ctypes.data), len(kept)
        params.logits_all = bool(logits_all)
        params.auto_depth = bool(auto_depth)
        params.verify = _VERIFY[verify_rule(verify, "verify")]
        params.n_draft_max = -1 if n_draft_max is None else self._limit(n_draft_max)
        params.confidence_min = number(confidence_min, "confidence_min", "0 to 1", lambda x: 0 <= x <= 1)
        params.feature_source = SOURCES[feature_source]
        params.feature_tap = feature_tap(target)
        fill_context_params(
            ffi.addressof(params, "draft"),
            n_threads=target.n_threads if n_threads is None else n_threads,
            type_k=type_k,
            type_v=type_v,
            n_ctx=n_ctx_draft,
        )

        if isinstance(draft, (str, os.PathLike)):
            draft = Draft(draft, target=target)
        self._bridge: Bridge | None = None
        out = ffi.new("dspark_session **")
        if draft is None or isinstance(draft, Draft):
            check(lib.dspark_session_create(context, ffi.NULL if draft is None else draft._handle(), params, out))
        elif isinstance(draft, Drafter):
            self._bridge = Bridge(draft, target)
            check(lib.dspark_session_create_with_drafter(context, self._bridge.table, params, out))
        else:
            raise errors.ArgumentError(
                f"draft is a {type(draft).__name__}, expected a Draft, a path, None, or an object with n_draft_max "
                "and propose()"
            )
        self._owned = _Handle(out[0])
        self._target = target
        self._draft = draft
        self._finish_reason: str | None = None
        #: positions that the draft was trained for, until a sequence that exceeds them was warned of; 0: none
        self._n_trained = int(draft._info.n_ctx_train) if isinstance(draft, Draft) else 0
        target._stack.callback(self._owned.close_with_target)
        if not len(kept):
            target.reset()  # Llama's own record of the sequence that the session has just emptied

    @staticmethod
    def _limit(n_draft_max: int) -> int:
        n = integer(n_draft_max, "n_draft_max")
        if n < 0:
            raise errors.ArgumentError(f"n_draft_max is {n}, expected 0 (plain decoding) or more")
        return n

    def _handle(self) -> Any:
        if self._owned is None or self._owned.closed:
            raise errors.StateError("the session is closed")
        require_llama(self._target)
        return self._owned.ptr

    def _check(self, status: int) -> None:
        if status != lib.DSPARK_OK and self._bridge is not None:
            self._bridge.raise_pending()
        check(status)

    # --- decoding -----------------------------------------------------------------------------------------------------

    def append(self, prompt: Sequence[int]) -> None:
        """Decodes tokens behind the sequence, in batches of the target's n_batch.

        A signal is handled between batches. Of a target of open_target(), a SIGINT or SIGTERM that the main thread
        handles ends the batch in progress, here and in next(): the sequence is as before it.

        A token that next() returned last and that was not decoded yet is dropped; pass it here to keep it.

        Raises:
            ContextFullError: The tokens do not fit; nothing was decoded. ArgumentError: An id is out of range.
        """
        ids = as_tokens(prompt)
        if not len(ids):
            raise errors.ArgumentError("append got no tokens, expected at least one")
        done = 0
        out = ffi.new("int32_t *")
        while done < len(ids):
            rest = ids[done:]
            pointer = ffi.cast("int32_t *", rest.ctypes.data)
            self._check(interruptible(lib.dspark_session_append, self._handle(), pointer, len(rest), out))
            done += out[0]
        if self._n_trained:
            self.warn_beyond_training(self.n_tokens)

    def warn_beyond_training(self, n_tokens: int) -> None:
        """Logs a warning, once, if a sequence of n_tokens is longer than those that the draft was trained for."""
        if n_tokens > self._n_trained > 0:
            log.warning(
                "the sequence is longer than the %d tokens that the draft was trained for: less may be accepted from "
                "here on (draft_n_ctx, or n_ctx_draft of a Session, ends drafting there)",
                self._n_trained,
            )
            self._n_trained = 0

    def next(self, sampler: Any = None, *, n_draft_max: int | None = None) -> int:
        """The next token: the sampler's choice (None: greedy) from the target's logits.

        ``n_draft_max`` limits the proposal if this call starts a round; 0 for none.

        Raises:
            ContextFullError: No position is left.
            StateError: Nothing was appended, or the target's memory was changed from outside.
        """
        out = ffi.new("int32_t *")
        limit = -1 if n_draft_max is None else self._limit(n_draft_max)
        self._check(interruptible(lib.dspark_session_next, self._handle(), sampler_pointer(sampler), limit, out))
        return int(out[0])

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int | None = None,
        sampler: Any = None,
        n_draft_max: int | None = None,
        stop_at_eog: bool = True,
    ) -> Iterator[int]:
        """Yields the tokens that follow a prompt.

        What the prompt shares with the sequence so far is not decoded again. Ends after an end-of-generation token
        (which is yielded; ``finish_reason`` "stop"), or when max_tokens were yielded or the sequence has n_ctx tokens
        ("length"). Closing the generator early leaves the session at the last yielded token.
        """
        ids = as_tokens(prompt, "prompt")
        if not len(ids):
            raise errors.ArgumentError("the prompt is empty, expected at least one token")
        if max_tokens is not None and integer(max_tokens, "max_tokens") < 0:
            raise errors.ArgumentError(f"max_tokens is {max_tokens}, expected 0 or more")
        if n_draft_max is not None:
            n_draft_max = self._limit(n_draft_max)
        if len(ids) > self.n_ctx:
            raise errors.ContextFullError(f"the prompt has {len(ids)} tokens, the context holds {self.n_ctx}")
        self._finish_reason = None
        self._reuse_prefix(ids)
        return self._tokens(len(ids), max_tokens, sampler, n_draft_max, stop_at_eog)

    def _reuse_prefix(self, ids: Any) -> None:
        have = np.asarray(self.tokens, np.int32)
        n = min(len(have), len(ids) - 1)  # the last token is decoded in any case: its logits are needed
        differ = np.nonzero(have[:n] != ids[:n])[0]
        self.rewind(int(differ[0]) if len(differ) else n)
        self.append(ids[self.n_tokens :])

    def _tokens(
        self, n_prompt: int, max_tokens: int | None, sampler: Any, n_draft_max: int | None, stop_at_eog: bool
    ) -> Iterator[int]:
        room = self.n_ctx - n_prompt
        budget = room if max_tokens is None else min(room, max_tokens)
        vocab = self._target._model.vocab
        try:
            for i in range(budget):
                # drafts past the budget would be verified for nothing
                left = budget - i - 1
                limit = left if n_draft_max is None else min(left, n_draft_max)
                token = self.next(sampler, n_draft_max=limit)
                if self._n_trained:
                    self.warn_beyond_training(n_prompt + i + 1)
                if stop_at_eog and llama_cpp.llama_vocab_is_eog(vocab, token):
                    self._finish_reason = "stop"
                    yield token
                    return
                yield token
            self._finish_reason = "length"
        finally:
            if not self.closed:
                self.settle()

    def settle(self) -> None:
        """Drops what was verified but not returned from both caches. next() goes on as if nothing had happened."""
        self._check(lib.dspark_session_settle(self._handle()))

    def rewind(self, n_tokens: int) -> None:
        """Keeps the first n_tokens of the sequence in both caches."""
        self._check(lib.dspark_session_rewind(self._handle(), integer(n_tokens, "n_tokens")))

    def reset(self) -> None:
        """Forgets the whole sequence."""
        self.rewind(0)

    def adopt(self, tokens: Sequence[int]) -> None:
        """Takes note that the target's memory was changed by others and now holds these tokens at positions 0, 1, ...

        What it holds behind them is removed. Where they are no prefix of the session's own tokens, the draft forgets
        the sequence and goes on from here. No logits are left: append at least one token before the next next().

        Raises: StateError: The memory holds fewer positions; nothing was changed.
        """
        ids = as_tokens(tokens)
        self._check(lib.dspark_session_adopt(self._handle(), ffi.cast("int32_t *", ids.ctypes.data), len(ids)))

    def save_state(self) -> bytes:
        """The session's own side of its state, tokens and the draft's cache, to be kept with the target's.

        An open round is settled first; the pending token is not saved.
        """
        data, size = ffi.new("uint8_t **"), ffi.new("size_t *")
        self._check(lib.dspark_session_save(self._handle(), data, size))
        try:
            return bytes(ffi.buffer(data[0], size[0]))
        finally:
            lib.dspark_saved_free(data[0])

    def load_state(self, state: bytes) -> None:
        """Takes back what save_state() returned, after the target's memory was restored to the same tokens.

        The session then goes on as the saved one would have, with the same proposals; append at least one token first.

        Raises:
            FormatError: The state is damaged or of another version. MismatchError: It is of another target or draft.
            ContextFullError: It is longer than this session's n_ctx.
            StateError: The target's memory is not the saved one. The session is as before in each case.
        """
        if not isinstance(state, (bytes, bytearray, memoryview)):
            raise errors.ArgumentError(f"the state is a {type(state).__name__}, expected bytes")
        data = ffi.from_buffer(state)
        self._check(lib.dspark_session_load(self._handle(), ffi.cast("uint8_t *", data), len(data)))

    # --- state --------------------------------------------------------------------------------------------------------

    @property
    def target(self) -> llama_cpp.Llama:
        return self._target

    @property
    def draft(self) -> Draft | Drafter | None:
        return self._draft

    def _state(self) -> Any:
        out = ffi.new("dspark_session_state *")
        out.struct_size = ffi.sizeof("dspark_session_state")
        check(lib.dspark_session_get_state(self._handle(), out))
        return out

    @property
    def tokens(self) -> list[int]:
        """The tokens in the target's memory; the one that next() returned last is not among them yet."""
        n = self._state().n_tokens
        ids, count = ffi.new("int32_t[]", n + 1), ffi.new("int32_t *")
        check(lib.dspark_session_get_tokens(self._handle(), ids, n, count))
        return list(ffi.unpack(ids, count[0])) if count[0] else []

    @property
    def n_tokens(self) -> int:
        return int(self._state().n_tokens)

    @property
    def pending(self) -> int | None:
        """The token that next() returned last and that is not decoded yet; None if there is none.

        A signal may come between the choice of a token and its return: it is here then.
        """
        token = int(self._state().pending)
        return None if token < 0 else token

    @property
    def logits_row(self) -> int | None:
        """Row of the target's last batch (``llama_get_logits_ith``) with the logits that follow the ``n_tokens``.

        The pending token was sampled from them, or the next one will be; None: there are none.
        """
        row = int(self._state().logits_row)
        return None if row < 0 else row

    @property
    def n_ctx(self) -> int:
        """The longest sequence, in tokens."""
        return int(self._state().n_ctx)

    @property
    def n_draft_past(self) -> int:
        """Positions whose features the drafter holds, or will be given before its next proposal."""
        return int(self._state().n_draft_past)

    @property
    def disabled_reason(self) -> str | None:
        """Why the session does not draft now; None if it does."""
        return text(self._state().disabled_reason) or None

    @property
    def match_reason(self) -> str | None:
        """Why the last token was verified by match although verify is "rejection"; None if it was not."""
        return text(self._state().match_reason) or None

    @property
    def exact(self) -> bool:
        """Whether every batch of the sequence was computed by ``dspark_cpp.kernels`` alone.

        No row's logits then depended on the other rows of its batch, and the tokens are, bit for bit, those of plain
        decoding with the same kernels.
        """
        return bool(self._state().exact)

    @property
    def feature_source(self) -> str:
        """Where the features come from: "layer taps", "evaluation callback" or "none"."""
        return text(self._state().feature_source)

    @property
    def finish_reason(self) -> str | None:
        """How the last generate() ended: "stop", "length", or None if it was closed early or still runs."""
        return self._finish_reason

    @property
    def auto_depth(self) -> bool:
        """Whether draft lengths are chosen automatically; may be assigned, and holds from the next round on."""
        return self.depth.automatic

    @auto_depth.setter
    def auto_depth(self, on: bool) -> None:
        self._check(lib.dspark_session_set_auto_depth(self._handle(), bool(on)))

    @property
    def depth(self) -> Depth:
        """What automatic draft lengths are chosen from."""
        out = ffi.new("dspark_depth_state *")
        out.struct_size = ffi.sizeof("dspark_depth_state")
        check(lib.dspark_session_get_depth(self._handle(), out))
        n = out.n_max
        return Depth(
            automatic=bool(out.automatic),
            paused=bool(out.paused),
            t_draft=float(out.t_draft),
            t_rows=tuple(ffi.unpack(out.t_rows, n + 1)) if n else (),
            survival=tuple(ffi.unpack(out.survival, n)) if n else (),
        )

    @property
    def stats(self) -> Stats:
        out = ffi.new("dspark_stats *")
        out.struct_size = ffi.sizeof("dspark_stats")
        check(lib.dspark_session_get_stats(self._handle(), out))
        return Stats(
            n_prompt=out.n_prompt,
            n_emitted=out.n_emitted,
            n_rounds=out.n_rounds,
            n_proposals=out.n_proposals,
            n_rounds_drafted=out.n_rounds_drafted,
            draft_n=out.draft_n,
            draft_n_accepted=out.draft_n_accepted,
            n_by_rejection=out.n_by_rejection,
            n_drafted_at=tuple(out.n_drafted_at),
            n_accepted_at=tuple(out.n_accepted_at),
            t_prompt=out.t_prompt_us / 1e6,
            t_inject=out.t_inject_us / 1e6,
            t_draft=out.t_draft_us / 1e6,
            t_draft_compute=out.t_draft_compute_us / 1e6,
            t_verify=out.t_verify_us / 1e6,
            t_sample=out.t_sample_us / 1e6,
        )

    def reset_stats(self) -> None:
        check(lib.dspark_session_reset_stats(self._handle()))

    @property
    def last_round(self) -> Round | None:
        """The round that next() sampled from last, as far as it was sampled; None before the first of a sequence."""
        out = ffi.new("dspark_round *")
        out.struct_size = ffi.sizeof("dspark_round")
        if not self._state().has_round:
            return None
        check(lib.dspark_session_get_round(self._handle(), out))
        confidence = None
        if out.has_confidence:
            logits = np.array(ffi.unpack(out.confidence_logits, out.n_drafted))
            confidence = tuple(float(c) for c in 1 / (1 + np.exp(-logits)))
        return Round(
            position=out.position,
            anchor=out.anchor,
            drafted=tuple(ffi.unpack(out.drafted, out.n_drafted)) if out.n_drafted else (),
            confidence=confidence,
            n_accepted=out.n_accepted,
        )

    @property
    def closed(self) -> bool:
        return self._owned is None or self._owned.closed

    def close(self) -> None:
        """Frees the session; may be called more than once. The target keeps the sequence, and others may use it."""
        if self._owned is not None:
            self._owned.close()

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<Session: closed>" if self.closed else f"<Session: {self.n_tokens} of {self.n_ctx} tokens>"
