"""Random histories of a Llama with a draft beside a plain llama_cpp.Llama: a state machine for hypothesis.

The twin answers every call from a cold start, so whatever the object's past leaves behind in a text, in the record
(``n_tokens``, ``input_ids``) or in a proposal is a difference. What rejection sampling draws is compared with a Llama
of the same settings that was made for the purpose.
"""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import llama_cpp
from dspark_cpp import Llama, attach, detach
from dspark_cpp.engines import DraftEngine
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from scripted import PROMPT
from session_history import Fresh, rules, texts
from test_session_saved import decode_by_hand

F32 = 0  # ggml_type
CONTEXT = 256
LONGEST = 150
CACHES: dict[str, Any] = {"draft_type_k": "f32", "draft_type_v": "f32", "draft_n_threads": 1}
GRAMMAR = "root ::= [a-z ] root"

samplings = st.sampled_from(
    [
        {"temp": 0.0},
        {"temp": 1.0},
        {"temp": 0.7, "top_k": 5, "min_p": 0.0},
        {"temp": 0.0, "repeat_penalty": 1.3, "presence_penalty": 0.3},
        {"temp": 0.8, "frequency_penalty": 0.5},
        {"temp": 0.0, "grammar": GRAMMAR},
        {"temp": 0.9, "mirostat_mode": 2},
    ]
)


def arguments(sampling: dict[str, Any]) -> dict[str, Any]:
    """Each object gets a grammar of its own: it moves on with the text."""
    grammar = sampling.get("grammar")
    return sampling if grammar is None else {**sampling, "grammar": llama_cpp.LlamaGrammar.from_string(grammar, False)}


def is_drawn(sampling: dict[str, Any]) -> bool:
    """True if the sampler ends with a draw, which is what rejection sampling is for."""
    return sampling["temp"] > 0 and "mirostat_mode" not in sampling


@dataclass
class Stream:
    prompt: list[int]
    steps: Iterator[int]
    text: list[int] | None  # what it must be; None: not known
    is_drawn: bool  # by rejection: its text is that of a stream which nobody has interrupted
    got: list[int]
    step: int = 0  # of the machine, when it was read


@dataclass
class Saved:
    state: Any
    tokens: list[int]
    complete: bool


class LlamaHistory(RuleBasedStateMachine):
    target: ClassVar[str]
    drafts: ClassVar[list[str]]
    exact: ClassVar[bool]
    n_steps: ClassVar[int] = 0
    n_compared: ClassVar[int] = 0
    n_drawn: ClassVar[int] = 0  # tokens of texts by rejection sampling, compared

    @initialize(
        n_batch=st.sampled_from([64, 8, 3, 256]),
        draft=st.integers(0, 8),
        n_threads=st.integers(1, 2),
        n_max=st.sampled_from([31, None, 2]),
        verify=rules,
    )
    def begin(self, n_batch: int, draft: int, n_threads: int, n_max: int | None, verify: str) -> None:
        self.settings: dict[str, Any] = {
            "n_ctx": CONTEXT,
            "n_batch": n_batch,
            "n_threads": n_threads,
            "n_threads_batch": n_threads,
            "verbose": False,
            "flash_attn": True,
            "type_k": F32,
            "type_v": F32,
        }
        self.plain = llama_cpp.Llama(self.target, **self.settings)
        self.fresh: dict[str, Fresh] = {}
        self.saved: list[Saved] = []
        self.last_prompt = PROMPT
        self.open([*self.drafts, None][draft % (1 + len(self.drafts))], n_max, verify)

    def teardown(self) -> None:
        if hasattr(self, "llm"):
            self.drop_streams()
            for llm in (self.llm, self.plain, *(f.llm for f in self.fresh.values())):
                llm.close()

    def open(self, draft: str | None, n_max: int | None, verify: str) -> None:
        self.verify = verify
        self.llm = self.make(draft, n_max)
        self.begin_record()

    def make(self, draft: str | None, n_max: int | None) -> Llama:
        return Llama(
            self.target, draft=draft, draft_n_max=n_max, draft_verify=self.verify, **CACHES,
            kernels="on" if self.exact else "off", **self.settings,
        )  # fmt: skip

    def begin_record(self) -> None:
        self.tokens: list[int] = []  # what n_tokens and input_ids say
        self.complete = True  # the draft has seen the whole sequence
        self.foreign = False  # the newest logits are of what somebody else decoded
        self.streams: list[Stream] = []

    def drop_streams(self) -> None:
        for stream in self.streams:
            stream.steps.close()  # type: ignore[attr-defined]
        self.streams = []

    # --- what the twin says -------------------------------------------------------------------------------------------

    def answer(self, prompt: list[int], n: int, sampling: dict[str, Any], seed: int) -> list[int]:
        self.plain.reset()
        self.plain.set_seed(seed)
        return list(itertools.islice(self.plain.generate(prompt, **arguments(sampling)), n))

    def draws(self, sampling: dict[str, Any]) -> bool:
        """True if rejection sampling decides about drafts."""
        return self.verify == "rejection" and isinstance(self.llm._engine, DraftEngine) and is_drawn(sampling)

    def by_rejection(self, call: Callable[[Llama], Any]) -> Any:
        """What a Llama of the same settings without a past answers, and its last round; None if that cannot be told.

        It cannot where the clock decides how much is drafted, nor where the draft has not seen the beginning.
        """
        if self.llm.draft_n_max is None or not self.complete:
            return None
        fresh = self.make(self.llm.draft.path, self.llm.draft_n_max)  # type: ignore[union-attr]
        try:
            answer = call(fresh)
            return answer, fresh._engine.session.last_round  # type: ignore[attr-defined]
        finally:
            fresh.close()

    def drawn_tokens(self, prompt: list[int], n: int, sampling: dict[str, Any], seed: int) -> Any:
        def call(llm: Llama) -> list[int]:
            llm.set_seed(seed)
            return list(itertools.islice(llm.generate(prompt, **arguments(sampling)), n))

        return self.by_rejection(call)

    def same_as_fresh(self, got: Any, want: Any, n_tokens: int, *, whole: bool = True) -> None:
        """The answer and, if both have read it as far, the round."""
        if want is None:
            return
        assert got == want[0]
        if whole:
            round = self.llm._engine.session.last_round  # type: ignore[attr-defined]
            assert (round is None) is (want[1] is None)
            if round is not None:
                assert (round.position, round.anchor, round.drafted) == (
                    want[1].position, want[1].anchor, want[1].drafted,
                )  # fmt: skip
                type(self).n_compared += 1
        type(self).n_drawn += n_tokens

    def new_prompt(self, part: float, ids: list[int]) -> list[int]:
        """Some of the last one, with something else behind it."""
        keep = 1 + int(part * (len(self.last_prompt) - 1))
        self.last_prompt = [*self.last_prompt[:keep], *ids][:LONGEST]
        return self.last_prompt

    def look_at_round(self) -> None:
        """The last round proposed what a session without a past proposes."""
        engine = self.llm._engine
        if not isinstance(engine, DraftEngine) or not self.complete:
            return
        round = engine.session.last_round
        if round is None or not round.drafted:
            return
        held = [*self.tokens, *([engine.session.pending] if engine.session.pending is not None else [])]
        if len(held) <= round.position or held[round.position] != round.anchor:
            return
        path = self.llm.draft.path  # type: ignore[union-attr]
        if path not in self.fresh:
            self.fresh[path] = Fresh(self.target, path)
        drafted, confidence = self.fresh[path].proposal(held[: round.position], round.anchor)
        type(self).n_compared += 1
        assert round.drafted == drafted[: len(round.drafted)]
        if self.exact and confidence is not None:
            assert round.confidence == confidence[: len(round.drafted)]

    # --- calls --------------------------------------------------------------------------------------------------------

    @rule(
        part=st.floats(0, 1),
        ids=texts,
        n=st.integers(1, 30),
        sampling=samplings,
        seed=st.integers(0, 9),
        on=st.booleans(),
    )
    def generate(self, part: float, ids: list[int], n: int, sampling: dict[str, Any], seed: int, on: bool) -> None:
        """A stream that is left after n tokens; the next prompt may go on with it."""
        prompt = self.new_prompt(part, ids)
        self.foreign = False
        self.keep_prefix_of(prompt)
        draws = self.draws(sampling)
        drawn = self.drawn_tokens(prompt, n, sampling, seed) if draws else None
        self.llm.set_seed(seed)
        steps = self.llm.generate(prompt, **arguments(sampling))
        got = []
        for token in itertools.islice(steps, n):
            got.append(token)
            self.tokens = [*prompt, *got[:-1]]
            self.same_record()
        if draws:
            self.same_as_fresh(got, drawn, n)
        else:
            assert got == self.answer(prompt, n, sampling, seed)
            self.look_at_round()
        steps.close()
        if on:
            self.last_prompt = [*prompt, *got][:LONGEST]

    def keep_prefix_of(self, prompt: list[int]) -> None:
        if self.tokens[:1] != prompt[:1] or len(prompt) == 1:
            self.complete = True

    @rule(
        n=st.integers(1, 25),
        stop=st.integers(97, 122),
        sampling=samplings,
        seed=st.integers(0, 9),
        stream=st.booleans(),
    )
    def complete_text(self, n: int, stop: int, sampling: dict[str, Any], seed: int, stream: bool) -> None:
        prompt = self.last_prompt
        draws = self.draws(sampling)
        sampling = {"temperature" if k == "temp" else k: v for k, v in sampling.items()}

        def call(llm: Any) -> str:
            made = llm.create_completion(
                prompt, max_tokens=n, stop=[chr(stop)], seed=seed, stream=stream, **arguments(sampling)
            )
            return "".join(c["choices"][0]["text"] for c in made) if stream else made["choices"][0]["text"]

        self.foreign = False
        self.keep_prefix_of(prompt)
        if draws:
            want = self.by_rejection(call)
            self.same_as_fresh(call(self.llm), want, n, whole=False)
            self.tokens = self.llm._input_ids.tolist()
            assert self.tokens[: len(prompt)] == prompt
            return
        self.plain.reset()
        want = call(self.plain)
        assert call(self.llm) == want
        self.tokens = self.plain._input_ids.tolist()
        self.look_at_round()

    @rule(
        part=st.floats(0, 1),
        ids=texts,
        sampling=samplings,
        seed=st.integers(0, 9),
        between=st.sampled_from(["nothing", "eval", "reset", "text"]),
        n=st.integers(1, 12),
    )
    def open_stream(
        self, part: float, ids: list[int], sampling: dict[str, Any], seed: int, between: str, n: int
    ) -> None:
        """One that is read in pieces between other calls, of which one comes at once: few streams live to see more."""
        if len(self.streams) == 3:
            self.streams.pop(0).steps.close()  # type: ignore[attr-defined]
        prompt = self.new_prompt(part, ids)
        self.keep_prefix_of(prompt)
        draws = self.draws(sampling)
        if draws:
            drawn = self.drawn_tokens(prompt, 40, sampling, seed)
            text = None if drawn is None else drawn[0]
        else:
            text = self.answer(prompt, 40, sampling, seed)
        self.llm.set_seed(seed)
        steps = self.llm.generate(prompt, **arguments(sampling))
        self.streams.append(Stream(prompt, steps, text, draws, []))
        stream = self.streams[-1]
        self.read(stream, 1)
        if between == "eval":
            self.evaluate(ids)
        elif between == "reset":
            self.reset()
        elif between == "text":
            self.generate(part, ids, n, {"temp": 0.0}, seed, on=False)
        else:
            return
        self.read(stream, n)

    @precondition(lambda self: self.streams)
    @rule(which=st.integers(0, 2), n=st.integers(1, 12))
    def read_stream(self, which: int, n: int) -> None:
        self.read(self.streams[which % len(self.streams)], n)

    def read(self, stream: Stream, n: int) -> None:
        n = min(n, 40 - len(stream.got))
        if n == 0:
            return
        self.foreign = False
        if stream.is_drawn and stream.got and self.n_steps != stream.step + 1:
            stream.text = None  # its round was broken off by other calls
        stream.got += itertools.islice(stream.steps, n)
        stream.step = self.n_steps
        assert stream.text is None or stream.got == stream.text[: len(stream.got)]
        self.tokens = [*stream.prompt, *stream.got[:-1]]
        # what it kept of what others left is not known here
        self.complete = False

    @rule(which=st.integers(0, 2))
    def close_stream(self, which: int) -> None:
        if self.streams:
            self.streams.pop(which % len(self.streams)).steps.close()  # type: ignore[attr-defined]

    @rule(ids=texts)
    def evaluate(self, ids: list[int]) -> None:
        if len(self.tokens) + len(ids) <= 200:
            self.llm.eval(ids)
            self.foreign = False
            self.tokens += ids

    @rule(ids=texts, n=st.integers(1, 9))
    def go_on(self, ids: list[int], n: int) -> None:
        """generate() behind what is there."""
        if not 0 < len(self.tokens) <= 200:
            return
        want = self.answer([*self.tokens, *ids], n, {"temp": 0.0}, 0)
        steps = self.llm.generate(ids, temp=0.0, reset=False)
        assert list(itertools.islice(steps, n)) == want
        self.tokens = [*self.tokens, *ids, *want[:-1]]
        self.look_at_round()
        steps.close()

    @rule()
    def sample(self) -> None:
        if self.tokens and not self.foreign:
            self.llm._sampler = None
            assert self.llm.sample(temp=0.0) == self.answer(self.tokens, 1, {"temp": 0.0}, 0)[0]

    @rule(n_max=st.sampled_from([None, 0, 1, 3, 31]))
    def limit(self, n_max: int | None) -> None:
        self.llm.draft_n_max = n_max

    @rule()
    def reset(self) -> None:
        self.llm.reset()
        self.tokens, self.complete = [], True

    # --- states, drafts, other hands ----------------------------------------------------------------------------------

    @rule()
    def save(self) -> None:
        state = pickle.loads(pickle.dumps(self.llm.save_state()))
        drafted = isinstance(self.llm._engine, DraftEngine)
        self.saved.append(Saved(state, list(self.tokens), self.complete and drafted))
        del self.saved[:-4]

    @rule(ids=texts)
    def save_a_plain_one(self, ids: list[int]) -> None:
        self.plain.reset()
        self.plain.eval(ids)
        self.saved.append(Saved(pickle.loads(pickle.dumps(self.plain.save_state())), ids, False))
        del self.saved[:-4]

    @precondition(lambda self: self.saved)
    @rule(which=st.integers(0, 3))
    def load(self, which: int) -> None:
        saved = self.saved[which % len(self.saved)]
        self.llm.load_state(saved.state)
        self.tokens = list(saved.tokens)
        self.complete = False  # of another draft, perhaps

    @rule(draft=st.integers(0, 8))
    def change_draft(self, draft: int) -> None:
        path = [*self.drafts, None][draft % (1 + len(self.drafts))]
        self.llm.draft_model = path
        self.complete = not self.tokens

    @rule(draft=st.integers(0, 8), n_max=st.sampled_from([31, None, 2]), verify=rules)
    def close_and_open(self, draft: int, n_max: int | None, verify: str) -> None:
        self.drop_streams()
        self.llm.close()
        self.open([*self.drafts, None][draft % (1 + len(self.drafts))], n_max, verify)

    @rule(draft=st.integers(0, 8), first=texts, verify=rules)
    def attach_to_a_plain_one(self, draft: int, first: list[int], verify: str) -> None:
        """... which has a past of its own."""
        self.drop_streams()
        self.llm.close()
        made = llama_cpp.Llama(self.target, **self.settings)
        made.eval(first)
        self.verify = verify
        self.llm = attach(made, self.drafts[draft % len(self.drafts)], draft_n_max=31, draft_verify=verify, **CACHES)
        assert self.llm is made
        self.begin_record()
        self.tokens, self.complete = list(first), False

    @rule(verify=rules)
    def detach_and_attach(self, verify: str) -> None:
        self.drop_streams()
        draft, n_max = self.llm.draft, self.llm.draft_n_max
        plain = detach(self.llm)
        self.verify = verify
        attach(
            plain, self.drafts[0] if draft is None else draft, draft_n_max=n_max, draft_verify=verify, **CACHES
        )  # fmt: skip
        self.complete = not self.tokens

    @rule(ids=texts)
    def decode_on_the_context(self, ids: list[int]) -> None:
        """Somebody decodes behind the sequence and says nothing: the record is what counts."""
        self.drop_streams()  # a host acts between calls, not between the tokens of a stream
        memory = llama_cpp.llama_get_memory(self.llm.ctx)
        position = 1 + llama_cpp.llama_memory_seq_pos_max(memory, 0)
        ids = ids[: min(self.llm.n_batch, CONTEXT - position)]
        if isinstance(self.llm._engine, DraftEngine) and ids:
            decode_by_hand(self.llm, ids, position)
            self.complete, self.foreign = False, True

    @rule(part=st.floats(0, 1))
    def cut_the_record(self, part: float) -> None:
        n = int(part * len(self.tokens))
        self.drop_streams()
        if n:
            self.llm.n_tokens = n
            del self.tokens[n:]
            self.llm.eval([97])
            self.tokens.append(97)

    @rule()
    def clear_the_memory(self) -> None:
        self.drop_streams()
        self.llm.reset()
        self.llm._ctx.kv_cache_clear()
        self.tokens, self.complete = [], True

    # --- always -------------------------------------------------------------------------------------------------------

    def same_record(self) -> None:
        assert self.llm.n_tokens == len(self.tokens)
        assert self.llm._input_ids.tolist() == self.tokens

    @invariant()
    def record_is_that_of_plain_decoding(self) -> None:
        if "llm" not in self.__dict__:
            return
        type(self).n_steps += 1
        self.same_record()
        engine = self.llm._engine
        if isinstance(engine, DraftEngine):
            assert engine.session.n_draft_past == engine.session.n_tokens
