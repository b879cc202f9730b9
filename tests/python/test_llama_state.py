"""Saved states, caches and pickles of a Llama carry the draft's side; those without it are taken too."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import ArgumentError, ContextFullError, Draft, Llama
from llama_settings import SETTINGS
from scripted import PROMPT

OTHER = [256, *b"Once upon a time, in the 7th "]


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    llms = []

    def open_one(cls: Any, *args: Any, **settings: Any) -> Any:
        llms.append(cls(*args, **{**SETTINGS, **settings}))
        return llms[-1]

    yield open_one
    for llm in llms:
        llm.close()


def take(llm: Any, prompt: list[int], n: int) -> list[int]:
    return list(itertools.islice(llm.generate(prompt, temp=0.0), n))


@pytest.mark.parametrize("n", [0, 1, 5, 30])
@pytest.mark.parametrize("logits_all", [False, True])
def test_b18_a_restored_object_goes_on_with_the_same_text_and_the_same_rounds(
    n: int, logits_all: bool, paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    first = opened(Llama, paths[0], draft=paths[1], logits_all=logits_all)
    text = take(first, PROMPT, n) if n else first.eval(PROMPT) or []
    state = pickle.loads(pickle.dumps(first.save_state()))
    assert state.dspark
    so_far = [*PROMPT, *text]
    want = take(first, [*so_far, 65], 50)
    counts = first.speculation.last

    second = opened(Llama, paths[0], draft=paths[1], logits_all=logits_all)
    take(second, OTHER, 20)
    second.load_state(state)
    assert second.n_tokens == max(len(PROMPT) + n - 1, len(PROMPT))
    assert second._input_ids.tolist() == so_far[: second.n_tokens]
    assert take(second, [*so_far, 65], 50) == want
    got = second.speculation.last
    assert (got.n_accepted_at, got.n_drafted_at) == (counts.n_accepted_at, counts.n_drafted_at)


def test_e9_alternating_between_two_saved_prompts_ten_times(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    plain, llm = opened(llama_cpp.Llama, paths[0]), opened(Llama, paths[0], draft=paths[1])
    texts: dict[int, list[int]] = {0: PROMPT, 1: OTHER}
    states: dict[int, Any] = {}
    for i in range(20):
        which = i % 2
        if which in states:
            llm.load_state(states[which])
        texts[which] = [*texts[which], *take(llm, texts[which], 7)]
        states[which] = llm.save_state()
    for prompt, got in ((PROMPT, texts[0]), (OTHER, texts[1])):
        assert got == [*prompt, *take(plain, prompt, 70)]


def test_e9_reset_and_then_a_shorter_prompt(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    plain, llm = opened(llama_cpp.Llama, paths[0]), opened(Llama, paths[0], draft=paths[1])
    take(llm, PROMPT, 20)
    llm.reset()
    assert llm.n_tokens == 0
    assert take(llm, PROMPT[:5], 30) == take(plain, PROMPT[:5], 30)
    assert llm.speculation.last.n_prompt == 5


@pytest.mark.parametrize("way", ["plain to drafted", "drafted to plain", "another draft", "damaged", "n_ctx"])
def test_states_without_the_drafts_side_are_taken_and_it_begins_anew(
    way: str, paths: tuple[str, str], opened: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    plain, drafted = opened(llama_cpp.Llama, paths[0]), opened(Llama, paths[0], draft=paths[1])
    writer, reader = (plain, drafted) if way == "plain to drafted" else (drafted, plain)
    if way == "another draft":
        reader = opened(Llama, paths[0], draft=str(converted("spk-dflash")))
    elif way == "damaged":
        reader = opened(Llama, paths[0], draft=paths[1])
    elif way == "n_ctx":
        reader = opened(Llama, paths[0], draft=paths[1], n_ctx=1024)
    text = take(writer, PROMPT, 10)
    state = writer.save_state()
    if way == "damaged":
        state.dspark = state.dspark[:-7]
    reader.load_state(state)
    assert reader.n_tokens == len(PROMPT) + 9
    got = take(reader, [*PROMPT, *text], 40)
    if isinstance(reader, Llama):
        assert reader.speculation.last.n_prompt == 1, "the target's side was kept"
        assert reader.speculation.last.draft_n > 0
    assert [*text, *got] == take(opened(llama_cpp.Llama, paths[0]), PROMPT, 50)


def test_states_that_do_not_fit_are_refused_and_the_object_goes_on(
    paths: tuple[str, str], opened: Callable[..., Any], tiny_path: Callable[[str], Path]
) -> None:
    small, large = opened(Llama, paths[0], draft=paths[1], n_ctx=256), opened(Llama, paths[0], n_ctx=512)
    large.eval([256, *[65] * 300])
    with pytest.raises(ContextFullError, match="the saved state has 301 tokens, the context holds 256"):
        small.load_state(large.save_state())
    for bad in (None, 3, b"state"):
        with pytest.raises(ArgumentError, match=f"the state is a {type(bad).__name__}, expected a LlamaState"):
            small.load_state(bad)  # type: ignore[arg-type]
    want = take(small, PROMPT, 10)
    state = small.save_state()
    state.llama_state = state.llama_state[:100]
    state.llama_state_size = 100
    with pytest.raises(RuntimeError, match="Failed to set llama state data"):
        small.load_state(state)
    assert take(small, PROMPT, 10) == want


def test_a_state_of_another_kind_of_cache_is_refused_with_what_may_differ(
    paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    """ "Failed to set llama state data" was all that it said where only flash_attn differed."""
    on, off = (opened(Llama, paths[0], draft=paths[1], flash_attn=flash) for flash in (True, False))
    want = take(off, PROMPT, 10)
    take(on, PROMPT, 10)
    with pytest.raises(RuntimeError, match=r"other settings \(flash_attn, "):
        off.load_state(on.save_state())
    assert take(off, PROMPT, 10) == want


def test_a_state_saved_between_two_tokens_is_of_what_was_yielded(
    paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    llm = opened(Llama, paths[0], draft=paths[1])
    want = take(llm, PROMPT, 60)
    for n in range(1, 9):
        llm.reset()
        generator = llm.generate(PROMPT, temp=0.0)
        got = [next(generator) for _ in range(n)]
        state = llm.save_state()
        got += itertools.islice(generator, 60 - n)
        assert got == want, "the stream does not notice"
        generator.close()
        llm.load_state(state)
        assert llm._input_ids.tolist() == [*PROMPT, *want[: n - 1]]
        assert take(llm, [*PROMPT, *want[:n]], 20) == want[n : n + 20]


def test_a_state_saved_after_reset_is_of_no_tokens(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    """What the draft's side still held came back into n_tokens."""
    llm = opened(Llama, paths[0], draft=paths[1])
    take(llm, PROMPT, 10)
    llm.reset()
    state = llm.save_state()
    assert llm.n_tokens == state.n_tokens == 0
    take(llm, OTHER, 5)
    llm.load_state(state)
    assert llm.n_tokens == 0
    take(llm, PROMPT, 10)
    llm.reset()
    llm.draft_model = None
    assert llm.n_tokens == 0


@pytest.mark.parametrize("kind", ["RAM", "disk"])
def test_caches_hit_and_change_nothing(
    kind: str, paths: tuple[str, str], opened: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def run(llm: Any) -> list[str]:
        cache = llama_cpp.LlamaRAMCache() if kind == "RAM" else llama_cpp.LlamaDiskCache(str(tmp_path / str(id(llm))))
        llm.set_cache(cache)
        texts = []
        for prompt in ("The lighthouse", "Once upon a", "The lighthouse at the", "Once upon a time") * 2:
            texts.append(llm.create_completion(prompt, max_tokens=20, temperature=0.0)["choices"][0]["text"])
        return texts

    drafted = opened(Llama, paths[0], draft=paths[1])
    assert run(drafted) == run(opened(llama_cpp.Llama, paths[0]))
    assert drafted.speculation.total.draft_n > 0


def test_e9_a_state_from_another_process_is_taken(
    paths: tuple[str, str], opened: Callable[..., Any], run_python: Callable[..., Any], tmp_path: Path
) -> None:
    llm = opened(Llama, paths[0], draft=paths[1])
    text = take(llm, PROMPT, 30)
    (tmp_path / "state").write_bytes(pickle.dumps(llm.save_state()))
    want = take(llm, [*PROMPT, *text], 30)
    code = """
import itertools, json, pickle, sys
from dspark_cpp import Llama
llm = Llama(sys.argv[1], draft=sys.argv[2], draft_n_max=31, n_ctx=512, n_threads=1, verbose=False, type_k=0,
    type_v=0)
llm.load_state(pickle.load(open(sys.argv[3], "rb")))
got = list(itertools.islice(llm.generate(json.loads(sys.argv[4]), temp=0.0), 30))
print(got, llm.speculation.last.draft_n_accepted)
"""
    done = run_python(code, *paths, tmp_path / "state", [*PROMPT, *text])
    assert done.stdout.strip() == f"{want} {llm.speculation.last.draft_n_accepted}" and done.stderr == ""


@pytest.mark.parametrize("how", ["path", "Draft", "none", "lookup"])
def test_a_pickled_llama_is_made_again_with_its_draft(
    how: str, paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    lookup = llama_cpp.llama_speculative.LlamaPromptLookupDecoding()
    draft = {"path": paths[1], "Draft": Draft(paths[1]), "none": None, "lookup": lookup}[how]
    llm = opened(Llama, paths[0], draft=draft, draft_n_max=5, confidence_min=0.25)
    llm.draft_n_max = 3
    again = pickle.loads(pickle.dumps(llm))
    assert type(again) is Llama and again.draft_n_max == 3 and again._settings.confidence_min == 0.25
    assert again._logits_all is False and again.n_ctx() == 512
    assert type(again.draft) is type(llm.draft)
    assert take(again, PROMPT, 20) == take(llm, PROMPT, 20)
    assert again.speculation.last.draft_n == llm.speculation.last.draft_n
    again.close()


def test_loading_a_state_with_logits_of_every_row_restores_the_scores(
    paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    llm = opened(Llama, paths[0], draft=paths[1], logits_all=True)
    take(llm, PROMPT, 10)
    scores = llm._scores.copy()
    state = llm.save_state()
    take(llm, OTHER, 10)
    llm.load_state(state)
    np.testing.assert_array_equal(llm._scores, scores)
