"""Faults that others had, seen through the drop-in: caches and positions (B), verification and stopping (C)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import Llama, Session, StateError
from gguf_edit import edit
from llama_settings import SETTINGS
from scripted import PROMPT, constant, copying, scripted


@pytest.fixture
def opened() -> Iterator[Callable[..., Any]]:
    llms = []

    def open_one(path: str, cls: Any = Llama, **settings: Any) -> Any:
        llms.append(cls(path, **{**SETTINGS, **settings}))
        return llms[-1]

    yield open_one
    for llm in llms:
        llm.close()


def take(llm: Any, n: int, prompt: list[int] = PROMPT, **sampling: Any) -> list[int]:
    return list(itertools.islice(llm.generate(prompt, **{"temp": 0.0, **sampling}), n))


def rounds(llm: Any, n: int, prompt: list[int] = PROMPT) -> list[Any]:
    """Every round of a generation: where it began and what was drafted."""
    seen = {}
    for _ in itertools.islice(llm.generate(prompt, temp=0.0), n):
        now = llm._engine.session.last_round
        if now is not None:
            seen[now.position] = now.drafted
    return sorted(seen.items())


# --- B ----------------------------------------------------------------------------------------------------------------


def test_b4_a_reused_prefix_gives_the_proposals_of_a_cold_run(
    paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    """Elsewhere the draft's rows of a reused prefix are never written, and acceptance falls to nothing."""
    warm, cold = opened(paths[0], draft=paths[1]), opened(paths[0], draft=paths[1])
    take(warm, 20, [*PROMPT[:25], 90, 91, 92])
    assert rounds(warm, 60) == rounds(cold, 60)
    assert warm.speculation.last.n_prompt == len(PROMPT) - 25 < cold.speculation.last.n_prompt


def shift(llm: Any, first: int, n: int) -> None:
    """What hosts of llama.cpp call a context shift: n tokens are cut out, and those behind them move up."""
    memory = llama_cpp.llama_get_memory(llm.ctx)
    assert llama_cpp.llama_memory_seq_rm(memory, 0, first, first + n)
    llama_cpp.llama_memory_seq_add(memory, 0, first + n, -1, -n)
    llm.input_ids[first : llm.n_tokens - n] = llm.input_ids[first + n : llm.n_tokens].copy()
    llm.n_tokens -= n


@pytest.mark.parametrize("n_before", [1, 20, 100])
def test_b15_a_context_that_a_host_has_shifted_goes_on_as_in_the_base(
    n_before: int, paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    """llama_cpp itself never shifts: a full context ends the text (b16)."""
    seen = []
    for llm in (opened(paths[0], llama_cpp.Llama), opened(paths[0], draft=paths[1])):
        text = []
        for _ in range(3):
            text += take(llm, n_before, [*PROMPT, *text][: 1 + len(PROMPT) + len(text)])
            shift(llm, 8, 7)
            text += list(itertools.islice(llm.generate(text[-1:], temp=0.0, reset=False), 40))
        seen.append((text, llm.n_tokens, llm._input_ids.tolist()))
    assert seen[0] == seen[1]
    assert llm.speculation.total.draft_n > 0


def test_b22_a_sequence_longer_than_the_drafts_training_is_warned_of_once(
    paths: tuple[str, str],
    opened: Callable[..., Any],
    converted: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Elsewhere acceptance fell behind the trained positions, and everything but the draft was suspected."""
    draft = edit(converted("deepspec-qwen3-vanilla"), tmp_path / "short.gguf", keys={"dflash.context_length": 64})
    text = take(opened(paths[0]), 100)
    llm = opened(paths[0], draft=str(draft))
    take(llm, 64 - len(PROMPT))
    assert not caplog.text
    assert take(llm, 100) == text
    assert caplog.text.count("longer than the 64 tokens that the draft was trained for") == 1
    take(llm, 5, [*PROMPT, *text])
    assert caplog.text.count("trained for") == 1
    llm.draft_model = str(draft)
    take(llm, 1, [*PROMPT, *text])
    assert caplog.text.count("trained for") == 2, "a draft anew"
    caplog.clear()
    llm.draft_model = None
    with Session(llm, draft) as session:
        list(session.generate(PROMPT, max_tokens=100, stop_at_eog=False))
    assert caplog.text.count("trained for") == 1


@pytest.mark.parametrize("order", ["in turns", "at random"])
def test_b23_several_sequences_each_write_what_they_write_alone(
    order: str, paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    """A context has one sequence, and a session is one context's: several sequences are several contexts."""
    prompts = [PROMPT, [256, *b"zq XK 77 {} ~ "], [256], [256, *b"The keeper of "]]
    patterns = [[7, 0, 3], [0, 0], [7, 7], [1, 6]]
    lengths = [90, 25, 90, 70]
    texts = [take(opened(paths[0]), n, prompt) for prompt, n in zip(prompts, lengths, strict=True)]
    streams: dict[int, Iterator[int]] = {}
    got: list[list[int]] = [[] for _ in prompts]
    rng = np.random.default_rng(0)

    def join(i: int) -> None:
        drafter: Any = scripted([*prompts[i], *texts[i]], patterns[i]) if i % 2 == 0 else paths[1]
        llm = opened(paths[0], draft=drafter)
        streams[i] = itertools.islice(llm.generate(prompts[i], temp=0.0), lengths[i])

    for i in range(3):
        join(i)
    for step in range(100_000):
        if not streams:
            break
        i = sorted(streams)[(rng.integers(len(streams)) if order == "at random" else step % len(streams))]
        token = next(streams[i], None)
        if token is None:
            del streams[i]
            if i == 1:  # the short one has ended: another joins
                join(3)
        else:
            got[i].append(token)
    assert got == texts


def test_b23_a_second_session_on_one_context_is_refused(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    llm = opened(paths[0], draft=paths[1])
    with pytest.raises(StateError, match="already has a session"):
        Session(llm, paths[1])


@pytest.mark.parametrize("n_batch", [9, 16, 34, 512])
def test_b5_a_prompt_in_chunks_gives_the_proposals_of_a_whole_one(
    n_batch: int, paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    whole, chunks = opened(paths[0], draft=paths[1]), opened(paths[0], draft=paths[1], n_batch=n_batch)
    assert rounds(chunks, 40) == rounds(whole, 40)


def test_b8_drafting_goes_on_far_into_a_large_context(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    """Elsewhere all rows of the draft's context must fit one batch, and drafting ends without a word."""
    llm = opened(paths[0], draft=paths[1], n_ctx=2048, n_batch=64)
    prompt = (PROMPT * 40)[:1200]
    take(llm, 30, prompt)
    assert llm.speculation.last.draft_n > 0 and llm.speculation.disabled_reason is None
    short = opened(paths[0], draft=paths[1], n_ctx=2048, draft_n_ctx=100)
    take(short, 80, PROMPT)
    assert "context" in (short.speculation.disabled_reason or ""), "said, where a limit was set"


@pytest.mark.parametrize("n_prompt", [250, 252, 254, 255])
def test_b16_a_full_context_ends_the_text_as_plainly(
    n_prompt: int, paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    """No row is placed at or past n_ctx, neither in the target nor in the draft."""
    results = []
    prompt = (PROMPT * 8)[:n_prompt]
    for llm in (opened(paths[0], llama_cpp.Llama, n_ctx=256), opened(paths[0], draft=paths[1], n_ctx=256)):
        result = llm.create_completion(prompt, max_tokens=50, temperature=0.0)
        results.append((result["choices"], result["usage"]))
        got = []
        with pytest.raises(RuntimeError):
            for token in llm.generate(prompt, temp=0.0):
                got.append(token)
        results[-1] += (got, llm.n_tokens, llm._input_ids.tolist())
        assert llm.create_completion("The", max_tokens=3)["usage"]["completion_tokens"] == 3
    assert results[0] == results[1]
    assert results[0][0][0]["finish_reason"] == "length"
    assert results[0][1]["total_tokens"] == 256


# --- C ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("i", range(9))
def test_b17_c13_an_end_at_any_place_of_an_accepted_block_ends_text_and_caches(
    i: int, paths: tuple[str, str], opened: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-qwen3", PROMPT, 40)
    eos = {"tokenizer.ggml.eos_token_id": text[i]}
    n = text.index(text[i])  # where it comes first
    results = []
    for cls, more in ((llama_cpp.Llama, {}), (Llama, {"draft": copying([*PROMPT, *text])})):
        llm = opened(paths[0], cls, kv_overrides=eos, **more)
        result = llm.create_completion(PROMPT, max_tokens=30, temperature=0.0)
        last = llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(llm.ctx), 0)
        results.append((result["choices"], result["usage"], llm.n_tokens, last))
    assert results[0] == results[1]
    assert results[1][1]["completion_tokens"] == n and results[1][0][0]["finish_reason"] == "stop"
    assert results[1][2:] == (len(PROMPT) + n, len(PROMPT) + n - 1)
    assert llm._engine.session.n_draft_past == len(PROMPT) + n


def test_c13_an_end_that_was_drafted_wrongly_ends_nothing(paths: tuple[str, str], opened: Callable[..., Any]) -> None:
    llm = opened(paths[0], draft=constant(257))
    assert llm.token_eos() == 257
    result = llm.create_completion(PROMPT, max_tokens=30, temperature=0.0)
    assert result["usage"]["completion_tokens"] == 30 and llm.speculation.last.draft_n_accepted == 0


@pytest.mark.parametrize(
    "sampling",
    [
        {"logit_bias": {"BEST": -100.0}, "temperature": 0.0},
        {"min_p": 0.5, "temperature": 1.0},
        {"top_k": 1, "temperature": 1.0},
        {"top_p": 0.1, "temperature": 1.0},
    ],
    ids=str,
)
def test_c8_a_token_that_the_samplers_ban_never_comes_from_a_draft(
    sampling: dict[str, Any], paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    plain = opened(paths[0], llama_cpp.Llama)
    text = take(plain, 60)
    banned = max(set(text), key=text.count)
    bias = sampling.get("logit_bias") and {str(banned): -100.0}
    arguments = {**sampling, "logit_bias": bias, "max_tokens": 60, "seed": 3}
    want = plain.create_completion(PROMPT, **arguments)["choices"][0]["text"]
    for drafter in (constant(banned), scripted([*PROMPT, *text], [7, 0, 3])):
        llm = opened(paths[0], draft=drafter)
        assert llm.create_completion(PROMPT, **arguments)["choices"][0]["text"] == want
        assert not bias or chr(banned) not in want


@pytest.mark.parametrize("pattern", [[7], [0], [7, 0, 3, 5], [1, 2, 3, 4, 5, 6, 7]], ids=str)
@pytest.mark.parametrize(
    "penalties",
    [
        {"repeat_penalty": 1.3},
        {"presence_penalty": 0.7},
        {"frequency_penalty": 0.5},
        {"repeat_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": 0.5},
    ],
    ids=str,
)
def test_c10_penalties_count_emitted_tokens_only(
    penalties: dict[str, float], pattern: list[int], paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    text = take(opened(paths[0], llama_cpp.Llama), 200, **penalties)
    llm = opened(paths[0], draft=scripted([*PROMPT, *text], pattern))
    assert take(llm, 200, **penalties) == text
    assert (llm.speculation.last.draft_n_accepted > 0) == (pattern != [0])


def test_c6_sampled_text_follows_the_seed_and_the_temperature(
    paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    llm, plain = opened(paths[0], draft=paths[1]), opened(paths[0], llama_cpp.Llama)
    texts = {}
    for seed, temperature in itertools.product((1, 2, 3), (0.3, 1.0, 1.7)):
        arguments = {"prompt": "zq XK", "seed": seed, "temperature": temperature, "max_tokens": 40, "top_k": 0}
        texts[seed, temperature] = llm.create_completion(**arguments)["choices"][0]["text"]
        assert llm.create_completion(**arguments)["choices"][0]["text"] == texts[seed, temperature]
        assert plain.create_completion(**arguments)["choices"][0]["text"] == texts[seed, temperature]
    assert len(set(texts.values())) > 5


def test_c4_c5_emitted_tokens_are_distributed_as_the_target_says(
    paths: tuple[str, str], opened: Callable[..., Any]
) -> None:
    """With a drafter that is always wrong, one that is often right, and none: the second token given the first."""
    prompt = [256, *b"zq XK 77 {} ~ "]
    settings = {"temp": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    counts = []
    for draft in (None, constant(5, n_draft_max=2), paths[1]):
        llm = opened(paths[0], draft=draft, n_ctx=256)
        seen: np.ndarray = np.zeros(320)
        for seed in range(1500):
            llm.set_seed(seed)
            seen[take(llm, 3, prompt, **settings)[2]] += 1
        counts.append(seen)
    # the same seeds, so not only the same distribution: the very same draws
    assert np.array_equal(counts[0], counts[1]) and np.array_equal(counts[0], counts[2])
    assert (counts[0] > 0).sum() > 20
