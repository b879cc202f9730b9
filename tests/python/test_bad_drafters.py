"""Drafters that raise or propose nonsense: the caller sees their own exception, the text stays the target's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dspark_cpp import DSparkError, Session, StateError
from scripted import PROMPT, Recorder, constant, copying


@pytest.mark.parametrize("exception", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3), MemoryError()], ids=repr)
def test_what_propose_raises_comes_out_as_it_is_and_the_call_may_be_repeated(
    exception: BaseException, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    fail_at = [1, 4, 5]

    def choose(anchor: int, position: int, n_max: int) -> list[int]:
        if len(drafter.proposed) in fail_at:
            fail_at.remove(len(drafter.proposed))
            raise exception
        return [101] * n_max

    drafter = Recorder(choose, target_layers=[1])
    with Session(open_tiny(), drafter) as session:
        session.append(PROMPT)
        got, n_raised = [], 0
        while len(got) < 40:
            try:
                got.append(session.next())
            except BaseException as e:
                assert e is exception
                n_raised += 1
        assert n_raised == 3
        assert session.stats.draft_n_accepted > 0
    assert got == continuation("target-qwen3", PROMPT, 40)


def test_what_append_raises_comes_out_and_the_session_drafts_on(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    """The rows of a failed append() come again with the next call: later rows would stand at wrong positions."""
    exception = ValueError("mine")
    drafter = constant(101, target_layers=[1])
    append, fail_at = drafter.append, [0, 3, 4]

    def failing(features: np.ndarray, position: int) -> None:
        calls.append(position)
        if len(calls) - 1 in fail_at:
            raise exception
        append(features, position)

    calls: list[int] = []
    drafter.append = failing  # type: ignore[method-assign]
    with Session(open_tiny(), drafter) as session:
        with pytest.raises(ValueError) as seen:
            session.append(PROMPT)
        assert seen.value is exception
        assert session.n_tokens == session.n_draft_past == 0
        session.append(PROMPT)
        got, n_raised = [], 0
        while len(got) < 40:
            try:
                got.append(session.next())
            except ValueError as e:
                assert e is exception
                n_raised += 1
        assert got == continuation("target-qwen3", PROMPT, 40)
        assert n_raised == 2
        session.settle()
        assert session.n_draft_past == session.n_tokens == len(drafter.rows)
        assert len(drafter.proposed) > 20, "it drafts on"


@pytest.mark.parametrize("kept", [0, 1, 3], ids=lambda n: f"{n} kept")
def test_rows_that_a_rewind_cuts_are_not_owed_to_the_drafter(
    kept: int, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    """It would be given the features of tokens that are no longer there, and every later row at a wrong position."""
    more = [97, 98, 99]
    text = [*PROMPT, *continuation("target-qwen3", PROMPT, 10)]
    cold = Recorder(lambda *_: [], target_layers=[1])
    with Session(open_tiny(), cold) as session:
        session.append([*text[: len(PROMPT) + kept], *more])
    drafter = copying(text, target_layers=[1])
    append, fail = drafter.append, [False]

    def failing(features: np.ndarray, position: int) -> None:
        if fail[0]:
            raise ValueError("mine")
        append(features, position)

    drafter.append = failing  # type: ignore[method-assign]
    with Session(open_tiny(), drafter) as session:
        session.append(PROMPT)
        for _ in range(5):
            session.next()
        fail[0] = True
        with pytest.raises(ValueError, match="mine"):
            session.settle()
        assert len(drafter.rows) == len(PROMPT) and session.n_tokens == session.n_draft_past == len(PROMPT) + 4
        session.rewind(len(PROMPT) + kept)
        assert session.n_draft_past == session.n_tokens
        fail[0] = False
        session.append(more)
        assert session.n_draft_past == session.n_tokens == len(drafter.rows)
    np.testing.assert_allclose(drafter.features(), cold.features(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("proposal", [[7] * 8, [-1], [320], [2**40], ["a"], None, "abc", [1.5], [True], 7], ids=repr)
def test_proposals_that_are_no_token_ids_are_refused(
    proposal: Any, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    drafter = constant(7)
    drafter.propose = lambda anchor, position, n_max: proposal  # type: ignore[method-assign, assignment]
    with Session(open_tiny(), drafter) as session:
        session.append(PROMPT)
        first = session.next()
        with pytest.raises((DSparkError, TypeError)):
            session.next()
        rest = [session.next(n_draft_max=0) for _ in range(20)]
    assert [first, *rest] == continuation("target-qwen3", PROMPT, 21)


def test_a_session_cannot_be_used_or_closed_from_inside_its_own_call(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    llm = open_tiny()
    errors: list[str] = []
    actions: list[Callable[[], object]] = [
        lambda: session.next(),
        lambda: session.append([65]),
        lambda: session.rewind(0),
        lambda: session.settle(),
        lambda: session.close(),
    ]

    def choose(anchor: int, position: int, n_max: int) -> list[int]:
        action = actions[len(errors) % len(actions)]
        try:
            action()
        except StateError as e:
            errors.append(str(e))
        return []

    with Session(llm, Recorder(choose)) as session:
        assert list(session.generate(PROMPT, max_tokens=20)) == continuation("target-qwen3", PROMPT, 20)
    assert len(errors) >= len(actions)
    assert all("in use by another call" in e or "inside one of its own calls" in e for e in errors)


def test_an_exception_in_rewind_comes_out_and_rewinding_again_works(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    exception = RuntimeError("mine")
    drafter = constant(101, target_layers=[1])
    rewind, fail = drafter.rewind, [True]

    def failing(n_past: int) -> None:
        if fail and fail.pop():
            raise exception
        rewind(n_past)

    drafter.rewind = failing  # type: ignore[method-assign]
    with Session(open_tiny(), drafter) as session:
        session.append(PROMPT)
        with pytest.raises(RuntimeError) as seen:
            session.rewind(10)
        assert seen.value is exception
        session.rewind(min(10, session.n_tokens))
        session.reset()
        got = list(session.generate(PROMPT, max_tokens=20))
        assert got == continuation("target-qwen3", PROMPT, 20)
        assert session.stats.draft_n > 0
        assert len(drafter.rows) == session.n_draft_past == session.n_tokens
