"""Random sequences of calls on a plain and on a drafted object: the same texts and the same record after each."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import Llama
from scripted import PROMPT
from test_recurrent_targets import write_hybrid

F32 = 0  # ggml_type
N_CALLS = 150


class Pair:
    """Does the same to a plain and a drafted object."""

    def __init__(self, target: str, draft: Any, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        settings: dict[str, Any] = {
            "n_ctx": 256,
            "n_batch": int(self.rng.choice([3, 8, 17, 256])),
            "n_threads": 1,
            "n_threads_batch": 1,
            "verbose": False,
            "type_k": F32,
            "type_v": F32,
            "logits_all": bool(self.rng.integers(2)),
        }
        self.llms: list[Any] = [
            llama_cpp.Llama(target, **settings),
            Llama(target, draft=draft, draft_n_max=31, **settings),
        ]
        self.states: list[list[Any]] = []
        self.prompt = PROMPT

    def run(self, without: list[str]) -> None:
        """Makes N_CALLS random calls."""
        helpers = ["run", "number", "both", "new_prompt", *without]
        names = [name for name in vars(Pair) if not name.startswith("_") and name not in helpers]
        names += ["generate"] * 4
        for _ in range(N_CALLS):
            getattr(self, names[self.number(0, len(names))])()
        for llm in self.llms:
            llm.close()

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high))

    def both(self, call: Callable[[Any], Any]) -> Any:
        """Runs a call with each and compares what it returns, raises, and leaves."""
        results = []
        for llm in self.llms:
            try:
                result: Any = call(llm)
            except RuntimeError as exception:
                result = f"RuntimeError {len(exception.args)}"
            results.append((result, llm.n_tokens, llm._input_ids.tolist()))
        assert results[1] == results[0]
        return results[0][0]

    def new_prompt(self) -> list[int]:
        """Some of the last one, with something else behind it."""
        keep = self.number(1, len(self.prompt) + 1)
        self.prompt = [*self.prompt[:keep], *self.rng.integers(97, 122, self.number(0, 9)).tolist()][:150]
        return self.prompt

    # --- calls --------------------------------------------------------------------------------------------------------

    def generate(self) -> None:
        prompt, n = self.new_prompt(), self.number(1, 30)
        sampling = [{"temp": 0.0}, {"temp": 1.0}, {"temp": 0.0, "repeat_penalty": 1.3}][self.number(0, 3)]
        seed = self.number(0, 100)

        def call(llm: Any) -> list[int]:
            llm.set_seed(seed)
            return list(itertools.islice(llm.generate(prompt, **sampling), n))

        got = self.both(call)
        if self.number(0, 2):
            self.prompt = [*prompt, *got]  # the next goes on with the answer

    def complete(self) -> None:
        prompt, n = self.new_prompt(), self.number(1, 20)
        stop = [chr(self.number(97, 122))]
        self.both(lambda llm: llm.create_completion(prompt, max_tokens=n, stop=stop, temperature=0.0)["choices"])

    def stream(self) -> None:
        prompt, n = self.new_prompt(), self.number(1, 12)

        def call(llm: Any) -> list[str]:
            chunks = llm.create_completion(prompt, max_tokens=40, temperature=0.0, stream=True)
            return [c["choices"][0]["text"] for c in itertools.islice(chunks, n)]

        self.both(call)

    def evaluate(self) -> None:
        tokens = self.rng.integers(97, 122, self.number(1, 20)).tolist()
        if self.llms[0].n_tokens < 200:
            self.both(lambda llm: llm.eval(tokens))

    def sample(self) -> None:
        def call(llm: Any) -> int:
            llm._sampler = None
            return llm.sample(temp=0.0)  # type: ignore[no-any-return]

        if self.llms[0].n_tokens and not self.llms[0]._requires_eval:
            self.both(call)

    def go_on(self) -> None:
        tokens = self.rng.integers(97, 122, self.number(1, 5)).tolist()
        if 0 < self.llms[0].n_tokens < 200:
            self.both(lambda llm: list(itertools.islice(llm.generate(tokens, temp=0.0, reset=False), 9)))

    def reset(self) -> None:
        self.both(lambda llm: llm.reset())

    def save(self) -> None:
        self.states.append([pickle.loads(pickle.dumps(llm.save_state())) for llm in self.llms])

    def load(self) -> None:
        if self.states:
            states = self.states[self.number(0, len(self.states))]
            swapped = self.number(0, 4) == 0 and not self.llms[0]._logits_all
            chosen = dict(zip(map(id, self.llms), [states[0]] * 2 if swapped else states, strict=True))
            self.both(lambda llm: llm.load_state(chosen[id(llm)]))

    def cut(self) -> None:
        n = self.number(0, self.llms[0].n_tokens + 1)
        self.both(lambda llm: setattr(llm, "n_tokens", n) or llm.eval([65]))

    def clear(self) -> None:
        self.both(lambda llm: llm.reset() or llm._ctx.kv_cache_clear())

    def limit(self) -> None:
        self.llms[1].draft_n_max = [None, 0, 1, 3, 100][self.number(0, 5)]

    def again(self) -> None:
        self.prompt = PROMPT


@pytest.mark.parametrize("seed", range(10))
def test_random_calls_leave_a_drafted_object_as_a_plain_one(
    seed: int, tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    pair = Pair(str(tiny_path("target-qwen3")), str(converted("deepspec-qwen3-vanilla")), seed)
    pair.run(without=[])
    assert pair.llms[1].speculation.total.draft_n_accepted > 10


@pytest.mark.parametrize("seed", range(5))
def test_random_calls_on_hybrid_memory(seed: int, tiny_path: Callable[[str], Path], tmp_path: Path) -> None:
    """The base cannot cut such a memory: it goes on with a state of tokens that are gone."""
    path = write_hybrid(tiny_path("target-qwen3"), tmp_path / "hybrid.gguf")
    lookup = llama_cpp.llama_speculative.LlamaPromptLookupDecoding(2, 3)
    pair = Pair(str(path), lookup, seed)
    pair.run(without=["cut"])
    total = pair.llms[1].speculation.total
    assert total.draft_n > total.draft_n_accepted  # rejected ones were taken back
