"""Random histories of a Session beside a plain llama_cpp.Llama: a state machine for hypothesis.

What the session holds is kept as a list; the plain twin is told nothing but that list, so whatever the session's past
leaves behind in a result is a difference. Proposals are compared with those of a session that was made for the purpose.
Rejection sampling writes other texts than plain decoding: there each round is compared with one of such a session,
token by token. That both rules keep the distribution is for test_rejection.py to say.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import llama_cpp
import numpy as np
from dspark_cpp import ContextFullError, MismatchError, Round, Sampler, Session, StateError
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scripted import PROMPT
from test_session_saved import decode_by_hand, memory_of, restore

F32 = 0  # ggml_type
CONTEXT = 96
CACHES = {"n_threads": 1, "type_k": "f32", "type_v": "f32"}

texts = st.lists(st.integers(97, 122) | st.sampled_from([32, 46, 256, 300]), min_size=1, max_size=20)
limits = st.none() | st.integers(0, 9)
rules = st.sampled_from(["match", "rejection"])


def open_plain(path: str, n_batch: int = 64, n_threads: int = 1, **settings: Any) -> llama_cpp.Llama:
    return llama_cpp.Llama(
        path, n_ctx=CONTEXT, n_batch=n_batch, n_threads=n_threads, n_threads_batch=n_threads, verbose=False,
        type_k=F32, type_v=F32, flash_attn=True, **settings,
    )  # fmt: skip


class Twin:
    """Logits of a sequence, decoded one token at a time by a Llama that nobody else touches."""

    def __init__(self, path: str) -> None:
        self.llm = open_plain(path)

    def go_to(self, sequence: list[int]) -> None:
        """Afterwards the last row of the context's output follows the sequence."""
        llm = self.llm
        have = llm._input_ids.tolist()
        n = 0
        while n < min(len(have), len(sequence) - 1) and have[n] == sequence[n]:
            n += 1
        llm._ctx.kv_cache_seq_rm(-1, n, -1)
        llm.n_tokens = n
        for token in sequence[n:]:
            llm.eval([token])


class Fresh:
    """What a session proposes that has seen nothing but the tokens."""

    def __init__(self, target: str, draft: str) -> None:
        self.llm, self.draft = open_plain(target), draft

    def session(self, before: list[int], anchor: int, **settings: Any) -> Session:
        """One that holds some tokens and has chosen the one after them."""
        n_vocab = self.llm.n_vocab()
        bias = (llama_cpp.llama_logit_bias * 1)(llama_cpp.llama_logit_bias(anchor, 1e9))
        forced = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        llama_cpp.llama_sampler_chain_add(forced, llama_cpp.llama_sampler_init_logit_bias(n_vocab, 1, bias))
        llama_cpp.llama_sampler_chain_add(forced, llama_cpp.llama_sampler_init_greedy())
        try:
            session = Session(self.llm, self.draft, **CACHES, **settings)
            session.append(before)
            assert session.next(forced) == anchor
        finally:
            llama_cpp.llama_sampler_free(forced)
        return session

    def proposal(self, before: list[int], anchor: int) -> tuple[tuple[int, ...], Any]:
        with self.session(before, anchor) as session:
            session.next()
            round = session.last_round
        assert round is not None and round.position == len(before)
        return round.drafted, round.confidence


class FreshRound:
    """One round by rejection sampling of a session without a past."""

    def __init__(self, fresh: Fresh, before: list[int], anchor: int) -> None:
        self.session = fresh.session(before, anchor, verify="rejection")
        self.samplers: Samplers | None = None
        self.sampler: Any = None

    def next(self, samplers: Samplers, greedy: bool, now: Any, limit: int) -> int:
        """The next token. now: the sampler of the session under test as it was before its call, of which one is used
        as long as the samplers are the same: the two must move on alike."""
        if greedy:
            return self.session.next(n_draft_max=limit)
        if samplers is not self.samplers:
            self.free_sampler()
            self.samplers, self.sampler = samplers, llama_cpp.llama_sampler_clone(now)
        return self.session.next(self.sampler, n_draft_max=limit)

    def free_sampler(self) -> None:
        if self.sampler is not None:
            llama_cpp.llama_sampler_free(self.sampler)

    def close(self) -> None:
        self.session.close()
        self.free_sampler()


@dataclass
class Saved:
    tokens: list[int]
    memory: bytes
    state: bytes
    draft: str | None  # of the session that saved it
    complete: bool
    own: bool


class Samplers:
    """The same chain for the session and for the twin, each with its own random numbers and history."""

    kinds: ClassVar[dict[str, dict[str, Any] | str]] = {
        "greedy": {"temp": 0.0},
        "warm": {"temp": 0.8, "top_k": 20},
        "hot": {"temp": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0},
        "penalised": {"temp": 0.0, "repeat_penalty": 1.3, "presence_penalty": 0.5},
        "penalised and warm": {"temp": 0.9, "frequency_penalty": 0.4, "penalty_last_n": 16},
        "grammar": "root ::= [a-z ] root",
    }

    def __init__(self, kind: str, seed: int, llms: tuple[Any, Any]) -> None:
        settings = self.kinds[kind]
        self.kind, self.seed = kind, seed
        self.pair = tuple(
            self._grammar(llm, settings) if isinstance(settings, str) else Sampler(llm, seed=seed, **settings)
            for llm in llms
        )

    @staticmethod
    def _grammar(llm: Any, text: str) -> Any:
        chain = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        made = llama_cpp.llama_sampler_init_grammar(llm._model.vocab, text.encode(), b"root")
        llama_cpp.llama_sampler_chain_add(chain, made)
        llama_cpp.llama_sampler_chain_add(chain, llama_cpp.llama_sampler_init_greedy())
        return chain

    def clone(self) -> Any:
        """The session's chain as it is now."""
        ours = self.pair[0]
        return llama_cpp.llama_sampler_clone(ours.sampler if isinstance(ours, Sampler) else ours)

    def close(self) -> None:
        for one in self.pair:
            one.close() if isinstance(one, Sampler) else llama_cpp.llama_sampler_free(one)


class SessionHistory(RuleBasedStateMachine):
    """One session at a time on one target, replaced now and then."""

    target: ClassVar[str]
    drafts: ClassVar[list[str]]
    exact: ClassVar[bool]  # the kernels are on: rows do not depend on their neighbours
    n_steps: ClassVar[int] = 0
    n_compared: ClassVar[int] = 0
    n_drawn: ClassVar[int] = 0  # tokens of those rounds that rejection sampling decided

    @initialize(
        n_batch=st.sampled_from([64, 8, 3, 2, 1]),
        n_threads=st.integers(1, 2),
        draft=st.integers(0, 8),
        verify=rules,
    )
    def begin(self, n_batch: int, n_threads: int, draft: int, verify: str) -> None:
        self.llm = open_plain(self.target, n_batch, n_threads)
        self.twin = Twin(self.target)
        self.fresh: dict[str, Fresh] = {}
        self.saved: list[Saved] = []
        self.session: Session | None = None
        self.fresh_round: FreshRound | None = None
        self.samplers = Samplers("hot" if verify == "rejection" else "greedy", 0, (self.llm, self.twin.llm))
        self.open([*self.drafts, None][draft % (1 + len(self.drafts))], False, False, verify)

    def teardown(self) -> None:
        if hasattr(self, "session"):
            self.drop_fresh_round()
            self.samplers.close()
            for llm in (self.llm, self.twin.llm, *(f.llm for f in self.fresh.values())):
                llm.close()

    def open(self, draft: str | None, auto: bool, keep: bool, verify: str) -> None:
        self.draft, self.auto, self.verify = draft, auto, verify
        if not keep:
            self.tokens: list[int] = []
        self.session = Session(
            self.llm,
            draft,
            auto_depth=auto,
            tokens=self.tokens if keep else None,
            n_ctx=CONTEXT,
            verify=verify,
            **CACHES,
        )
        self.pending: int | None = None
        self.can_choose = False
        self.complete = not self.tokens  # the draft has seen the whole sequence
        self.own = not self.tokens  # decoded by sessions alone, and known to be
        self.seen_round = -1

    # --- what a session can be told -----------------------------------------------------------------------------------

    @rule(ids=texts)
    def append(self, ids: list[int]) -> None:
        assert self.session
        if len(self.tokens) + len(ids) > CONTEXT:
            try:
                self.session.append(ids)
            except ContextFullError:
                return
            raise AssertionError("more tokens than the context holds were taken")
        self.session.append(ids)
        self.tokens += ids
        self.pending, self.can_choose = None, True

    @rule(keep=st.booleans())
    def prompt(self, keep: bool) -> None:
        """The text that the target knows by heart, so that drafts are accepted."""
        if not keep:
            self.rewind(0.0)
        self.append(PROMPT)

    @rule(n=st.integers(1, 24), limit=limits, greedy=st.booleans())
    def take(self, n: int, limit: int | None, greedy: bool) -> None:
        for _ in range(n):
            if not self.take_one(limit, greedy):
                return

    def take_one(self, limit: int | None, greedy: bool) -> bool:
        session = self.session
        assert session
        sampler = None if greedy else self.samplers.pair[0]
        try:
            self.choose(lambda: session.next(sampler, n_draft_max=limit), limit, greedy)
        except ContextFullError:
            assert len(self.tokens) == CONTEXT and self.pending is not None
            return False
        except StateError as error:
            assert not self.can_choose and "append at least one token" in str(error)
            return False
        return True

    def choose(self, call: Callable[[], int], limit: int | None, greedy: bool) -> None:
        """One token of the session, and what it must be."""
        assert self.session
        if self.verify == "rejection":
            self.choose_by_rejection(call, limit, greedy)
            return
        token = call()
        self.move_on()
        self.twin.go_to(self.tokens)
        assert token == self.plain_choice(None if greedy else self.samplers.pair[1]), f"after {self.tokens}"
        self.pending = token
        if self.begins_round():
            self.look_at_round(limit)

    def choose_by_rejection(self, call: Callable[[], int], limit: int | None, greedy: bool) -> None:
        session = self.session
        assert session
        now, before = self.samplers.clone(), session.stats
        try:
            token = call()
            after = session.stats
            is_drawn = after.n_by_rejection > before.n_by_rejection
            self.move_on()
            if self.begins_round():
                self.look_at_drawn_round(limit)
            if self.fresh_round is not None:
                fresh, round = self.fresh_round, session.last_round
                assert round is not None
                assert token == fresh.next(self.samplers, greedy, now, len(round.drafted)), f"after {self.tokens}"
                self.same_proposal(fresh.session.last_round)
                type(self).n_drawn += is_drawn
            # a proposal takes random numbers first
            if not is_drawn and (session.match_reason is not None or after.n_proposals == before.n_proposals):
                self.twin.go_to(self.tokens)
                assert token == self.plain_choice(None if greedy else now), f"after {self.tokens}"
            self.pending = token
        finally:
            llama_cpp.llama_sampler_free(now)

    def move_on(self) -> None:
        """What was pending is a part of the sequence now."""
        assert self.can_choose
        if self.pending is not None:
            self.tokens.append(self.pending)

    def plain_choice(self, sampler: Any) -> int:
        """What the sampler says of the twin's row. With llama.cpp's kernels rows of a batch and of one token differ by
        rounding, and one draw in ten thousand lies in between: there the row must be the twin's but for that, and the
        sampler is asked about the session's.
        """
        assert self.session
        ctx, row = self.twin.llm.ctx, -1
        if not self.exact:
            theirs = self.logits(ctx, row)
            ctx, row = self.llm.ctx, self.session.logits_row
            np.testing.assert_allclose(self.logits(ctx, row), theirs, atol=0.02)
        if sampler is None:
            return int(np.argmax(self.logits(ctx, row)))
        chain = sampler.sampler if isinstance(sampler, Sampler) else sampler
        return int(llama_cpp.llama_sampler_sample(chain, ctx, row))

    def logits(self, ctx: Any, row: int) -> Any:
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(ctx, row), (self.twin.llm.n_vocab(),))

    def begins_round(self) -> bool:
        """True if the last token was the first of a round."""
        assert self.session
        round = self.session.last_round
        seen, self.seen_round = self.seen_round, -1 if round is None else round.position
        if round is not None and round.position == seen:
            return False
        self.drop_fresh_round()
        if round is None:
            return False
        assert round.position == len(self.tokens) - 1 and round.anchor == self.tokens[-1]
        return True

    def drop_fresh_round(self) -> None:
        if self.fresh_round is not None:
            self.fresh_round.close()
        self.fresh_round = None

    def fresh_one(self) -> Fresh | None:
        """What tells the proposals of the round that has just begun; None if there are none to tell."""
        assert self.session
        round = self.session.last_round
        if round is None or not round.drafted:
            return None
        assert self.draft
        if self.draft not in self.fresh:
            self.fresh[self.draft] = Fresh(self.target, self.draft)
        if not self.complete:
            return None  # the draft has not seen its beginning: documented
        type(self).n_compared += 1
        return self.fresh[self.draft]

    def look_at_round(self, limit: int | None) -> None:
        """It proposed what a session without a past proposes."""
        fresh = self.fresh_one()
        if fresh is not None:
            drafted, confidence = fresh.proposal(self.tokens[:-1], self.tokens[-1])
            self.same_proposal(Round(len(self.tokens) - 1, self.tokens[-1], drafted, confidence, 0))
            self.cut_for_a_reason(limit)

    def look_at_drawn_round(self, limit: int | None) -> None:
        """The same, of one whose tokens will be compared too."""
        fresh = self.fresh_one()
        if fresh is not None:
            self.fresh_round = FreshRound(fresh, self.tokens[:-1], self.tokens[-1])
            self.cut_for_a_reason(limit)

    def same_proposal(self, fresh: Round | None) -> None:
        assert self.session
        round = self.session.last_round
        assert round is not None and fresh is not None
        n = len(round.drafted)
        assert (round.position, round.anchor) == (fresh.position, fresh.anchor)
        assert round.drafted == fresh.drafted[:n]
        if fresh.confidence is not None and self.exact:
            assert round.confidence == fresh.confidence[:n]
        elif fresh.confidence is not None:
            np.testing.assert_allclose(round.confidence, fresh.confidence[:n], atol=1e-3)

    def cut_for_a_reason(self, limit: int | None) -> None:
        session = self.session
        assert session and session.last_round and session.draft
        if not self.auto:
            most = session.draft.n_draft_max
            room = min(CONTEXT - len(self.tokens), self.llm.n_batch - 1)
            assert len(session.last_round.drafted) == min(room, most, most if limit is None else limit)

    @rule(ids=texts, part=st.floats(0, 1), n=st.integers(0, 12), limit=limits, greedy=st.booleans())
    def generate(self, ids: list[int], part: float, n: int, limit: int | None, greedy: bool) -> None:
        """A prompt that shares a part of the sequence; the stream is left after n tokens."""
        assert self.session
        ids = [*self.tokens[: int(part * len(self.tokens))], *ids][: CONTEXT - 20]
        sampler = None if greedy else self.samplers.pair[0]
        stream = self.session.generate(ids, max_tokens=20, sampler=sampler, n_draft_max=limit, stop_at_eog=False)
        n_shared = min(len(self.tokens), len(ids) - 1)
        self.begin_anew(next((i for i in range(n_shared) if self.tokens[i] != ids[i]), n_shared))
        self.tokens, self.pending, self.can_choose = list(ids), None, True
        for i in range(n):
            self.choose(lambda: next(stream), 19 - i if limit is None else min(19 - i, limit), greedy)
        stream.close()
        if n == 0:
            return
        assert self.session.pending == self.pending

    @rule(part=st.floats(0, 1))
    def rewind(self, part: float) -> None:
        assert self.session
        n = int(part * len(self.tokens))
        self.session.rewind(n)
        del self.tokens[n:]
        self.pending, self.can_choose = None, False
        self.begin_anew(n)

    def begin_anew(self, n_kept: int) -> None:
        if n_kept == 0:
            self.complete = self.own = True

    @rule()
    def settle(self) -> None:
        assert self.session
        self.session.settle()
        last = llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(self.llm.ctx), 0)
        assert last == len(self.tokens) - 1

    @rule(auto=st.booleans())
    def choose_lengths(self, auto: bool) -> None:
        assert self.session
        if self.draft:
            self.session.auto_depth = self.auto = auto

    @rule(kind=st.sampled_from(sorted(Samplers.kinds)), seed=st.integers(0, 9))
    def change_sampler(self, kind: str, seed: int) -> None:
        old, self.samplers = self.samplers, Samplers(kind, seed, (self.llm, self.twin.llm))
        old.close()

    @rule()
    def ask(self) -> None:
        """Reading changes nothing."""
        session = self.session
        assert session
        session.stats, session.depth, session.last_round, session.exact, session.logits_row  # noqa: B018
        session.reset_stats()

    # --- states, other sessions, other hands --------------------------------------------------------------------------

    @rule()
    def save(self) -> None:
        assert self.session
        state = self.session.save_state()  # settles
        self.saved.append(Saved(list(self.tokens), memory_of(self.llm), state, self.draft, self.complete, self.own))
        del self.saved[:-4]

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 3), in_another=st.booleans(), data=st.data())
    def load(self, which: int, in_another: bool, data: st.DataObject) -> None:
        saved = self.saved[which % len(self.saved)]
        if in_another:
            self.reopen(data.draw(st.sampled_from([None, *self.drafts])), False, False, data.draw(rules))
        assert self.session
        restore(self.llm, saved.memory)
        try:
            self.session.load_state(saved.state)
        except MismatchError:
            # of another draft: only the tokens are of use
            assert self.draft and saved.draft and self.draft != saved.draft
            self.session.adopt(saved.tokens)
            is_prefix = self.tokens[: len(saved.tokens)] == saved.tokens
            self.complete, self.own = self.complete and is_prefix, self.own and is_prefix
        else:
            self.own = saved.own
            if self.draft:
                self.complete = saved.complete and saved.draft == self.draft
        self.begin_anew(len(saved.tokens))
        self.tokens, self.pending, self.can_choose = list(saved.tokens), None, False
        self.seen_round = -1

    @rule(draft=st.integers(0, 9), auto=st.booleans(), keep=st.booleans(), verify=rules)
    def another_session(self, draft: int, auto: bool, keep: bool, verify: str) -> None:
        self.reopen([None, *self.drafts][draft % (1 + len(self.drafts))], auto, keep, verify)

    def reopen(self, draft: str | None, auto: bool, keep: bool, verify: str) -> None:
        assert self.session
        self.session.close()
        self.drop_fresh_round()
        if self.verify == "rejection":
            # the twin's sampler was not asked
            self.change_sampler(self.samplers.kind, self.samplers.seed)
        if verify == "rejection":
            self.change_sampler("hot", self.samplers.seed)
        self.open(draft, auto and draft is not None, keep, verify)

    @rule(ids=texts, believed=st.booleans())
    def decode_on_the_context(self, ids: list[int], believed: bool) -> None:
        """Somebody else decodes behind the sequence; the session is told, or notices and is reset."""
        assert self.session
        ids = ids[: self.llm.n_batch]
        self.session.settle()
        if len(self.tokens) + len(ids) > CONTEXT:
            return
        decode_by_hand(self.llm, ids, len(self.tokens))
        if believed:
            self.session.adopt([*self.tokens, *ids])
            self.tokens += ids
            self.complete = self.own = False
            self.pending, self.can_choose = None, False
            return
        for call in (lambda: self.session.append([97]), lambda: self.session.next()):
            try:
                call()
            except StateError:
                continue
            raise AssertionError("went on behind foreign tokens")
        self.rewind(0.0)

    # --- always -------------------------------------------------------------------------------------------------------

    @invariant()
    def holds_what_it_was_told(self) -> None:
        session = self.__dict__.get("session")
        if session is None:
            return
        type(self).n_steps += 1
        assert session.tokens == self.tokens and session.n_tokens == len(self.tokens)
        assert session.pending == self.pending
        if self.draft:
            assert session.n_draft_past == len(self.tokens)
        round = session.last_round
        last = llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(self.llm.ctx), 0)
        most = len(self.tokens) - 1 + (0 if round is None else len(round.drafted))
        assert len(self.tokens) - 1 <= last <= most
        assert session.exact == (self.own and (self.exact or not self.tokens))
