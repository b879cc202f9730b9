"""The automatic draft length in a session, by counters. Its rules are in tests/cpp/test_depth_control.cpp."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dspark_cpp import Session
from scripted import PROMPT, Recorder, constant

F32_CACHES = {"n_threads": 1, "type_k": "f32", "type_v": "f32"}


def test_the_text_is_the_plain_one_and_switching_holds_from_the_next_round(
    open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    want = continuation("target-qwen3", PROMPT, 200)
    llm = open_tiny(type_k=0, type_v=0)
    with Session(llm, converted("deepspec-qwen3-vanilla"), auto_depth=True, **F32_CACHES) as session:
        assert session.auto_depth
        session.append(PROMPT)
        got = []
        for i in range(200):
            session.auto_depth = i // 20 % 2 == 0
            got.append(session.next())
        assert got == want
        assert session.stats.draft_n_accepted > 0  # in the rounds that were not automatic, if in no other


def test_a_dear_draft_that_is_always_wrong_is_soon_asked_no_more(open_tiny: Callable[..., Any]) -> None:
    """Elsewhere a useless draft slows decoding down for as long as it is configured (case D2)."""

    def choose(anchor: int, position: int, n_max: int) -> list[int]:
        time.sleep(0.02)  # many of this target's tokens, on any machine
        return [0] * n_max

    with Session(open_tiny(), Recorder(choose), auto_depth=True) as session:
        list(session.generate(PROMPT, max_tokens=400, stop_at_eog=False))
        stats, depth = session.stats, session.depth
    assert stats.n_emitted == 400 and 0 < stats.n_proposals < 60
    assert depth.automatic and len(depth.t_rows) == 8 and depth.t_rows[0] > 0


def test_a_fixed_length_drafts_every_round_whatever_comes_of_it(open_tiny: Callable[..., Any]) -> None:
    with Session(open_tiny(), constant(0)) as session:
        list(session.generate(PROMPT, max_tokens=50, stop_at_eog=False))
        assert session.stats.n_proposals >= session.stats.n_rounds - 1 and not session.depth.automatic


def test_a_stream_left_in_the_middle_of_a_round_teaches_nothing_wrong(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    """A round that was not read to its end looks like one of which nothing was accepted."""
    llm = open_tiny(type_k=0, type_v=0)
    with Session(llm, converted("deepspec-qwen3-vanilla"), auto_depth=True, **F32_CACHES) as session:
        before = session.depth.survival
        for _ in range(30):
            session.reset()
            session.append(PROMPT)
            session.next(), session.next()
            session.settle()
        assert session.depth.survival == before or min(session.depth.survival) > 0.5


def test_a_session_without_a_draft_has_no_depth(open_tiny: Callable[..., Any]) -> None:
    with Session(open_tiny(), auto_depth=True) as session:
        session.append(PROMPT)
        session.next()
        assert session.depth.t_rows == () and not session.depth.paused


@pytest.mark.parametrize("n_max", [None, 3])
def test_llama_chooses_automatically_unless_a_length_is_given(
    n_max: int | None, tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    from dspark_cpp import Llama

    draft = str(converted("deepspec-qwen3-vanilla"))
    llm = Llama(str(tiny_path("target-qwen3")), draft=draft, draft_n_max=n_max, n_ctx=256, verbose=False)
    llm("The lighthouse", max_tokens=20, temperature=0.0)
    assert llm.speculation.depth is not None and llm.speculation.depth.automatic == (n_max is None)
    with llm.drafting(n_max=None if n_max else 3):
        llm("The lighthouse", max_tokens=20, temperature=0.0)
        assert llm.speculation.depth.automatic == (n_max is not None)
    llm.close()
