"""Rewinding, prefix reuse, settling, closing, counting; several sessions on one draft."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import Draft, Session, StateError
from scripted import PROMPT, constant, copying, scripted

F32 = 0  # ggml_type
F32_CACHES = {"n_threads": 1, "type_k": "f32", "type_v": "f32"}


def last_position(llm: llama_cpp.Llama) -> int:
    return int(llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(llm.ctx), 0))


def run_rounds(session: Session, n: int) -> tuple[list[int], list[tuple[int, tuple[int, ...]]]]:
    """n tokens, and the position and proposal of every round that they opened."""
    session.reset_stats()
    ids, rounds = [], {}
    for _ in range(n):
        ids.append(session.next())
        if session.stats.n_rounds:
            assert session.last_round is not None
            rounds[session.last_round.position] = session.last_round.drafted
    return ids, sorted(rounds.items())


# --- rewinding and reuse ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, 20, 33, 34, 50, 60])
def test_a_rewound_session_is_a_fresh_one(
    kept: int, open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    """Tokens, proposals and both caches; a rewind behind the drafts that wait for injection too."""
    sequence = PROMPT + continuation("target-qwen3", PROMPT, 40)
    llm = open_tiny(type_k=F32, type_v=F32)
    path = converted("deepspec-qwen3-vanilla")
    with Session(llm, path, **F32_CACHES) as session:
        session.append(sequence[:50])
        wanted = None
        if kept < 50:
            session.reset()
            session.append(sequence[:kept] or [256])
            wanted = run_rounds(session, 30)
    with Session(llm, path, **F32_CACHES) as session:
        session.append(PROMPT)
        while session.n_tokens < 60:
            session.next()
        session.settle()
        tokens = session.tokens
        assert tokens == sequence[: len(tokens)] and len(tokens) >= 60
        session.rewind(kept)
        assert session.tokens == sequence[:kept]
        assert session.n_draft_past == kept == last_position(llm) + 1
        if kept < 50:
            session.rewind(max(kept - 1, 0))
            session.append(sequence[max(kept - 1, 0) : kept] or [256])
            assert run_rounds(session, 30) == wanted


def test_b4_a_shared_prefix_is_not_decoded_again_and_proposals_are_those_of_a_cold_run(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    first = [256, *b"The lighthouse at the end of the stone pier had"]
    prompts = [
        [256, *b"The lighthouse at the end of the stone pier had two"],  # goes on
        [256, *b"The lighthouse at the end of the story"],  # turns off inside the prompt
        [256, *b"The lighthouse at"],  # is a part of what was there
        first,  # the same again
        [256, *b"An old"],  # shares BOS alone
        [97, 98],  # shares nothing
    ]
    llm = open_tiny(type_k=F32, type_v=F32)
    path = converted("deepspec-qwen3-vanilla")

    def run(session: Session, prompt: list[int]) -> tuple[list[int], list[Any]]:
        session.reset_stats()
        ids, rounds = [], {}
        for token in session.generate(prompt, max_tokens=40, stop_at_eog=False):
            ids.append(token)
            if session.stats.n_rounds:
                assert session.last_round is not None
                rounds[session.last_round.position] = session.last_round.drafted
        return ids, sorted(rounds.items())

    cold = []
    for prompt in prompts:
        with Session(llm, path, **F32_CACHES) as session:
            cold.append(run(session, prompt))
    for prompt, wanted in zip(prompts, cold, strict=True):
        with Session(llm, path, **F32_CACHES) as session:
            run(session, first)
            before = session.tokens
            assert run(session, prompt) == wanted
            same = next((i for i, (a, b) in enumerate(zip(before, prompt, strict=False)) if a != b), len(prompt))
            assert session.stats.n_prompt == len(prompt) - min(same, len(prompt) - 1)


def test_alternating_prompts_equal_cold_runs(
    open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    other = [256, *b"The young keeper "]
    with Session(open_tiny(), converted("spk-dspark-swa"), n_threads=1) as session:
        for _ in range(5):
            for prompt in (PROMPT, other):
                got = list(session.generate(prompt, max_tokens=50, stop_at_eog=False))
                assert got == continuation("target-qwen3", prompt, 50)


def test_appending_drops_the_token_that_was_returned_but_not_kept(open_tiny: Callable[..., Any]) -> None:
    with Session(open_tiny(), constant(7)) as session:
        session.append(PROMPT)
        session.next()
        session.append([65])
        assert session.tokens == [*PROMPT, 65]


@pytest.mark.parametrize("where", range(1, 10))
def test_settling_in_a_round_changes_nothing_but_the_caches(
    where: int, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-qwen3", PROMPT, 40)
    llm = open_tiny()
    with Session(llm, scripted([*PROMPT, *text], [7, 3]), n_threads=1) as session:
        session.append(PROMPT)
        got = [session.next() for _ in range(where)]
        session.settle()
        session.settle()
        assert session.n_tokens == len(PROMPT) + where - 1 == last_position(llm) + 1 == session.n_draft_past
        got += [session.next() for _ in range(20)]
    assert got == text[: where + 20]


# --- closing ----------------------------------------------------------------------------------------------------------


def test_a_closed_session_leaves_its_tokens_and_the_target_to_others(
    open_tiny: Callable[..., Any], plain_tokens: Callable[..., list[int]], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-qwen3", PROMPT, 40)
    llm = open_tiny()
    session = Session(llm, copying([*PROMPT, *text]))
    session.append(PROMPT)
    for _ in range(4):
        session.next()
    n = session.n_tokens
    session.close()
    assert last_position(llm) + 1 == n, "drafts that were not returned are gone"
    assert plain_tokens(llm, PROMPT, 40) == text
    with Session(llm, constant(7)) as session:
        assert list(session.generate(PROMPT, max_tokens=40)) == text


def test_a_session_dies_with_its_last_reference(open_tiny: Callable[..., Any], converted: Callable[..., Path]) -> None:
    """No cycle: the context is free again without a run of the garbage collector."""
    llm = open_tiny()
    gc.disable()
    try:
        for draft in (None, converted("spk-dflash"), constant(7)):
            session = Session(llm, draft, n_threads=1)
            session.append(PROMPT)
            session.next()
            dead = weakref.ref(session)
            del session
            assert dead() is None
    finally:
        gc.enable()


def test_the_draft_may_be_closed_while_a_session_uses_it(
    open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    llm = open_tiny()
    draft = Draft(converted("deepspec-qwen3-vanilla"), target=llm)
    with Session(llm, draft, n_threads=1) as session:
        draft.close()
        got = list(session.generate(PROMPT, max_tokens=60, stop_at_eog=False))
        assert session.stats.draft_n_accepted > 0
    assert got == continuation("target-qwen3", PROMPT, 60)


# --- several ----------------------------------------------------------------------------------------------------------


def test_one_draft_serves_sessions_in_several_threads(
    open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    prompts = [PROMPT, [256, *b"The young keeper "], [256, *b"zq XK"], [256]]
    targets = [open_tiny() for _ in prompts]
    draft = Draft(converted("deepspec-qwen3-vanilla"), target=targets[0])

    def run(i: int) -> tuple[list[int], int]:
        with Session(targets[i], draft, n_threads=1) as session:
            ids = list(session.generate(prompts[i], max_tokens=150, stop_at_eog=False))
            return ids, session.stats.draft_n_accepted

    alone = [run(i) for i in range(len(prompts))]
    with ThreadPoolExecutor(len(prompts)) as pool:
        for _ in range(3):
            assert list(pool.map(run, range(len(prompts)))) == alone
    for prompt, (ids, _) in zip(prompts, alone, strict=True):
        assert ids == continuation("target-qwen3", prompt, 150)


def test_a_generator_may_be_consumed_in_another_thread(
    open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    with Session(open_tiny(), converted("deepspec-qwen3-vanilla"), n_threads=1) as session:
        generator = session.generate(PROMPT, max_tokens=60, stop_at_eog=False)
        first = next(generator)
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, generator).result()
    assert [first, *rest] == continuation("target-qwen3", PROMPT, 60)


def test_two_sessions_on_one_context_are_refused(open_tiny: Callable[..., Any]) -> None:
    llm = open_tiny()
    with Session(llm), pytest.raises(StateError, match="already has a session"):
        Session(llm)
    Session(llm).close()


# --- counting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["draft", "scripted", "none"])
def test_statistics_are_sums_of_the_rounds(
    drafter: str, open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-qwen3", PROMPT, 120)
    drafts = {
        "draft": converted("spk-dspark-bonus-dv96"),
        "scripted": scripted([*PROMPT, *text], [7, 0, 3]),
        "none": None,
    }
    with Session(open_tiny(), drafts[drafter], n_threads=1) as session:
        assert session.last_round is None
        session.append(PROMPT)
        rounds = {}
        for _ in range(100):
            session.next()
            if session.last_round is not None:
                rounds[session.last_round.position] = session.last_round
        stats = session.stats
        per_round = [(len(r.drafted), r.n_accepted) for r in rounds.values()]

        assert (stats.n_prompt, stats.n_emitted, stats.n_rounds) == (len(PROMPT), 100, len(per_round))
        assert stats.draft_n == sum(n for n, _ in per_round)
        assert stats.draft_n_accepted == sum(a for _, a in per_round)
        assert stats.n_rounds_drafted == sum(n > 0 for n, _ in per_round)
        for k in range(32):
            assert stats.n_drafted_at[k] == sum(n > k for n, _ in per_round)
            assert stats.n_accepted_at[k] == sum(a > k for _, a in per_round)
        if stats.n_rounds_drafted:
            mean = np.mean([1 + a for n, a in per_round if n])
            assert stats.mean_accepted_length == pytest.approx(mean)
            assert stats.acceptance_rate == pytest.approx(stats.draft_n_accepted / stats.draft_n)
        else:
            assert stats.mean_accepted_length == stats.acceptance_rate == 0.0
        assert stats.acceptance_per_position == tuple(
            sum(a > k for _, a in per_round) / sum(n > k for n, _ in per_round)
            for k in range(32)
            if any(n > k for n, _ in per_round)
        )
        assert stats.as_dict()["draft_n"] == stats.draft_n
        times = [stats.t_prompt, stats.t_verify, stats.t_sample, stats.t_draft, stats.t_inject]
        assert all(t >= 0 for t in times) and stats.t_draft_compute <= stats.t_draft + 1e-3
        assert (stats.t_draft_compute > 0) == (drafter == "draft")

        session.reset_stats()
        assert not any(np.any(value) for value in session.stats.as_dict().values())
        session.next()
        assert session.stats.n_emitted == 1


def test_proposals_longer_than_the_counters_are_counted_in_the_sums(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-qwen3", PROMPT, 150)
    with Session(open_tiny(), copying([*PROMPT, *text], n_draft_max=40)) as session:
        session.append(PROMPT)
        assert [session.next() for _ in range(83)] == text[:83]
        assert session.stats.draft_n == session.stats.draft_n_accepted == 80
        assert session.stats.n_accepted_at == (2,) * 32
        assert session.stats.mean_accepted_length == 41
