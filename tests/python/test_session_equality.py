"""The draft never changes the text: every emitted token is what the target chooses alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import Sampler, Session
from scripted import PROMPT, Recorder, constant, copying, scripted

TARGETS = ["target-qwen3", "target-gemma4"]
PROMPTS = {"known text": PROMPT, "unknown text": [256, *b"zq XK 77 {} ~ "], "one token": [256]}
N = 200
F32 = 0  # ggml_type


def generate(llm: Any, draft: Any, prompt: list[int], n: int = N, **settings: Any) -> list[int]:
    with Session(llm, draft, n_threads=1) as session:
        return list(session.generate(prompt, max_tokens=n, stop_at_eog=False, **settings))


@pytest.mark.parametrize("prompt", PROMPTS.values(), ids=PROMPTS)
@pytest.mark.parametrize(
    "name",
    ["deepspec-qwen3-vanilla", "deepspec-qwen3-rnn", "spk-dflash", "spk-dspark-swa", "spk-dspark-gemma4"],
)
def test_200_greedy_tokens_with_a_draft_are_the_targets_own(
    name: str,
    prompt: list[int],
    open_tiny: Callable[..., Any],
    converted: Callable[..., Path],
    golden_json: Callable[[str], dict[str, Any]],
    continuation: Callable[..., list[int]],
) -> None:
    target = golden_json(name)["target"]
    assert generate(open_tiny(target), converted(name), prompt) == continuation(target, prompt, N)


@pytest.mark.parametrize("target", TARGETS)
def test_session_without_a_draft_is_plain_decoding(
    target: str, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    llm = open_tiny(target)
    with Session(llm) as session:
        assert session.disabled_reason is not None
        assert session.feature_source == "none"
        ids = list(session.generate(PROMPT, max_tokens=N, stop_at_eog=False))
        assert ids == continuation(target, PROMPT, N)
        assert session.stats.draft_n == 0
        assert session.stats.n_rounds == N - 1, "the first token comes from the prompt"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("pattern", [[7, 0, 3], [0, 7], [7], [0], [1, 2, 3, 4, 5, 6, 7]], ids=str)
def test_scripted_accept_and_reject_patterns_change_nothing(
    pattern: list[int], target: str, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation(target, PROMPT, N + 8)
    drafter = scripted([*PROMPT, *text], pattern)
    with Session(open_tiny(target), drafter) as session:
        got = list(session.generate(PROMPT, max_tokens=N, stop_at_eog=False))
        stats = session.stats
    assert got == text[:N]
    per_round = [pattern[i % len(pattern)] for i in range(stats.n_rounds_drafted)]
    # the last rounds are cut to the budget
    assert sum(per_round[:-2]) <= stats.draft_n_accepted <= sum(per_round)


@pytest.mark.parametrize("target", TARGETS)
def test_c2_a_drafter_that_always_says_7_is_accepted_only_where_the_target_says_7(
    target: str, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation(target, PROMPT, N)
    with Session(open_tiny(target), constant(7)) as session:
        assert list(session.generate(PROMPT, max_tokens=N, stop_at_eog=False)) == text
        assert session.stats.draft_n_accepted == text[1:].count(7) == 0


def test_c2_a_constant_drafter_is_accepted_wherever_it_is_right(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-qwen3", PROMPT, N)
    token = max(set(text), key=text.count)
    with Session(open_tiny(), constant(token, n_draft_max=1)) as session:
        assert list(session.generate(PROMPT, max_tokens=N, stop_at_eog=False)) == text
        accepted, i = 0, 0
        while i + 2 < len(text):  # text[i] is the anchor
            hit = text[i + 1] == token
            accepted, i = accepted + hit, i + 1 + hit
        assert session.stats.draft_n_accepted == accepted > 0


def test_a_drafter_that_copies_the_target_is_accepted_fully(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-qwen3", PROMPT, N + 8)
    with Session(open_tiny(), copying([*PROMPT, *text])) as session:
        assert list(session.generate(PROMPT, max_tokens=N, stop_at_eog=False)) == text[:N]
        stats = session.stats
    assert stats.draft_n_accepted == stats.draft_n
    assert stats.n_rounds == (N - 1 + 7) // 8, "eight tokens a round"


def test_draft_length_may_change_from_round_to_round(
    open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    lengths = [7, 0, 1, 3, 100, 2]
    rng = np.random.default_rng(0)
    with Session(open_tiny(), converted("deepspec-qwen3-vanilla"), n_threads=1) as session:
        session.append(PROMPT)
        got, limits = [session.next()], {}
        while len(got) < N:
            limit = int(rng.choice(lengths))
            got.append(session.next(n_draft_max=limit))
            now = session.last_round
            assert now is not None
            limits.setdefault(now.position, (limit, len(now.drafted)))
        assert {limit for limit, _ in limits.values()} == set(lengths)
        assert all(n == min(limit, 7) for limit, n in limits.values()), "the limit counts where a round begins"
    assert got == continuation("target-qwen3", PROMPT, N)


@pytest.mark.parametrize("name", ["deepspec-qwen3-vanilla", "spk-dspark-bonus-dv96"])
def test_c17_a_shorter_proposal_is_a_prefix_of_the_full_block(
    name: str, open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    llm = open_tiny()
    drafted = {}
    for limit in [1, 3, 6, 7, 8]:
        with Session(llm, converted(name), n_draft_max=limit, n_threads=1) as session:
            session.append(PROMPT)
            session.next(), session.next()
            assert session.last_round is not None
            drafted[limit] = session.last_round.drafted
    for limit in [1, 3, 6, 7]:
        assert drafted[limit] == drafted[8][:limit] and len(drafted[limit]) == limit
    assert len(drafted[8]) == 7, "what one block proposes at most"


@pytest.mark.parametrize("where", ["session", "generate", "next"])
def test_c17_zero_drafted_tokens_is_plain_decoding(
    where: str, open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    path = converted("deepspec-qwen3-vanilla")
    with Session(open_tiny(), path, n_draft_max=0 if where == "session" else None, n_threads=1) as session:
        if where == "next":
            session.append(PROMPT)
            got = [session.next(n_draft_max=0) for _ in range(50)]
        else:
            limit = 0 if where == "generate" else None
            got = list(session.generate(PROMPT, max_tokens=50, n_draft_max=limit, stop_at_eog=False))
        assert session.stats.draft_n == session.stats.n_rounds_drafted == 0
    assert got == continuation("target-qwen3", PROMPT, 50)


@pytest.mark.parametrize("threshold", [0.3, 0.6, 0.9, 1.0])
def test_confidence_threshold_shortens_proposals_and_changes_nothing(
    threshold: float,
    open_tiny: Callable[..., Any],
    converted: Callable[..., Path],
    continuation: Callable[..., list[int]],
) -> None:
    path = converted("deepspec-qwen3-vanilla")
    with Session(open_tiny(), path, confidence_min=threshold, n_threads=1) as session:
        got = []
        for token in session.generate(PROMPT, max_tokens=N, stop_at_eog=False):
            got.append(token)
            if (now := session.last_round) is not None and now.confidence is not None:
                assert all(c >= threshold for c in now.confidence)
        assert session.stats.draft_n < 7 * session.stats.n_rounds
    assert got == continuation("target-qwen3", PROMPT, N)


@pytest.mark.parametrize(
    "settings",
    [
        {"temp": 0.8, "seed": 1},
        {"temp": 1.5, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 2},
        {"temp": 0.8, "seed": 3, "repeat_penalty": 1.3, "presence_penalty": 0.7, "frequency_penalty": 0.5},
        {"temp": 0.0, "repeat_penalty": 1.3},
    ],
    ids=["default", "hot", "penalties", "greedy with a penalty"],
)
@pytest.mark.parametrize("drafter", ["draft", "scripted", "constant"])
def test_sampled_text_with_a_draft_is_the_text_without_it(
    drafter: str,
    settings: dict[str, Any],
    open_tiny: Callable[..., Any],
    converted: Callable[..., Path],
) -> None:
    """Sample-and-match: one chain, one draw a token, in order, whatever was drafted; penalties and random state too.

    With f32 caches: an f16 one moves the logits of a block by up to 6e-4, enough to flip a draw now and then.
    """
    llm = open_tiny(type_k=F32, type_v=F32)
    with Sampler(llm, **settings) as sampler:
        plain = generate(llm, None, PROMPT, sampler=sampler)

    def fresh() -> Any:
        if drafter == "draft":
            return converted("deepspec-qwen3-vanilla")
        return scripted([*PROMPT, *plain], [7, 0, 3]) if drafter == "scripted" else constant(32)

    with Sampler(llm, **settings) as sampler:
        assert generate(llm, fresh(), PROMPT, sampler=sampler) == plain
        sampler.reset()
        assert generate(llm, fresh(), PROMPT, sampler=sampler) == plain, "after reset()"


def test_raw_llama_samplers_are_taken_and_seen_by_the_sampler(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    llm = open_tiny()
    raw = llama_cpp.llama_sampler_init_greedy()
    try:
        got = generate(llm, constant(32), PROMPT, 40, sampler=raw)
    finally:
        llama_cpp.llama_sampler_free(raw)
    assert got == continuation("target-qwen3", PROMPT, 40)


@pytest.mark.parametrize("full", [False, True], ids=["rotating cache", "full cache"])
@pytest.mark.parametrize("drafter", ["scripted", "draft"])
def test_b12_rejected_drafts_leave_a_sliding_window_target_intact(
    drafter: str,
    full: bool,
    open_tiny: Callable[..., Any],
    converted: Callable[..., Path],
    continuation: Callable[..., list[int]],
) -> None:
    """The window is 24: a rotating cache must keep what a rejected proposal needs back."""
    text = continuation("target-gemma4", PROMPT, N + 8, swa_full=True)
    assert continuation("target-gemma4", PROMPT, N, swa_full=False) == text[:N]
    llm = open_tiny("target-gemma4", swa_full=full, n_ubatch=32, n_batch=64)
    draft = scripted([*PROMPT, *text], [0, 7]) if drafter == "scripted" else converted("spk-dspark-gemma4")
    with Session(llm, draft, n_threads=1) as session:
        assert list(session.generate(PROMPT, max_tokens=N, stop_at_eog=False)) == text[:N]
        assert session.stats.n_rounds_drafted > 0


@pytest.mark.parametrize("full", [False, True], ids=["rotating cache", "full cache"])
def test_b12_a_proposal_longer_than_the_window_changes_nothing(
    full: bool, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-gemma4", PROMPT, N + 64)
    llm = open_tiny("target-gemma4", swa_full=full, n_ubatch=32, n_batch=64)
    drafter = scripted([*PROMPT, *text], [0, 40, 13], n_draft_max=40)
    with Session(llm, drafter) as session:
        assert list(session.generate(PROMPT, max_tokens=N, stop_at_eog=False)) == text[:N]


def test_empty_proposals_are_rounds_without_a_draft(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    drafter = Recorder(lambda *_: [])
    with Session(open_tiny(), drafter) as session:
        got = list(session.generate(PROMPT, max_tokens=40, stop_at_eog=False))
        assert (session.stats.n_rounds, session.stats.n_rounds_drafted) == (39, 0)
    assert got == continuation("target-qwen3", PROMPT, 40)
