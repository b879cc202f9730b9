"""Closing in any order, leaving in any state, and a target that somebody else used."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import Draft, DraftContext, OutOfMemoryError, Sampler, Session, StateError
from scripted import PROMPT, constant

# --- after close ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["close", "with", "Llama.close"])
def test_a_closed_session_refuses_every_call(
    how: str, open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    llm = open_tiny()
    session = Session(llm, converted("spk-dflash"), n_threads=1)
    session.append(PROMPT)
    session.next(), session.next()
    if how == "close":
        session.close()
    elif how == "with":
        with session:
            pass
    else:
        llm.close()
    calls: list[Callable[[], object]] = [
        lambda: session.append([65]),
        lambda: session.next(),
        lambda: session.generate(PROMPT),
        lambda: session.settle(),
        lambda: session.rewind(0),
        lambda: session.reset(),
        lambda: session.tokens,
        lambda: session.n_tokens,
        lambda: session.n_ctx,
        lambda: session.n_draft_past,
        lambda: session.disabled_reason,
        lambda: session.feature_source,
        lambda: session.stats,
        lambda: session.reset_stats(),
        lambda: session.last_round,
    ]
    for call in calls:
        with pytest.raises(StateError, match="session is closed"):
            call()
    assert session.closed
    assert "closed" in repr(session)
    session.close()
    session.close()


def test_a_closed_draft_context_sampler_or_draft_refuses_every_call(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    llm = open_tiny()
    draft = Draft(converted("spk-dflash"), target=llm)
    context = DraftContext(draft, llm, n_threads=1)
    rows = np.ones((3, draft.n_features), np.float32)
    context.append(rows)
    context.close()
    context.close()
    for call in (
        lambda: context.append(rows),
        lambda: context.propose(65),
        lambda: context.rewind(0),
        lambda: context.n_past,
        lambda: context.kv_size,
    ):
        with pytest.raises(StateError, match="closed"):
            call()

    sampler = Sampler()
    sampler.close()
    sampler.close()
    with Session(llm) as session:
        session.append(PROMPT)
        for call in (lambda: sampler.sampler, sampler.reset, lambda: session.next(sampler)):
            with pytest.raises(StateError, match="sampler is closed"):
                call()

    draft.close()
    draft.close()
    for call in (
        lambda: draft.meta("general.name"),
        lambda: draft.check_target(llm),
        lambda: draft.scatter_logits(np.zeros(320)),
        lambda: DraftContext(draft, llm),
        lambda: Session(llm, draft),
    ):
        with pytest.raises(StateError, match="draft is closed"):
            call()
    assert "closed" in repr(draft)


def test_a_draft_context_outlives_its_draft_but_not_its_target(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    llm = open_tiny()
    draft = Draft(converted("spk-dflash"), target=llm)
    context = DraftContext(draft, llm, n_threads=1)
    draft.close()
    context.append(np.ones((3, 192), np.float32))
    assert len(context.propose(65)) == 7
    llm.close()
    for call in (lambda: context.propose(65), lambda: context.append(np.ones((3, 192), np.float32))):
        with pytest.raises(StateError, match="the Llama is closed"):
            call()
    context.close()


def test_a_closed_target_is_refused(open_tiny: Callable[..., Any], converted: Callable[..., Path]) -> None:
    llm = open_tiny()
    llm.close()
    for call in (
        lambda: Session(llm),
        lambda: Draft(converted("spk-dflash"), target=llm),
        lambda: Draft(converted("spk-dflash")).check_target(llm),
    ):
        with pytest.raises(StateError, match="the Llama is closed"):
            call()


def test_a_generator_ends_with_an_error_when_its_session_is_closed(open_tiny: Callable[..., Any]) -> None:
    session = Session(open_tiny(), constant(7))
    generator = session.generate(PROMPT, max_tokens=20)
    next(generator)
    session.close()
    with pytest.raises(StateError, match="closed"):
        next(generator)
    assert list(generator) == []


ENDINGS = {
    "everything alive": "",
    "a generator in the middle of a round": "g = session.generate([256, 65], max_tokens=50); next(g); next(g); next(g)",
    "the target deleted first": "del llm",
    "the target closed first": "llm.close(); del llm",
    "the draft deleted first": "draft.close(); del draft",
    "the session in a cycle with its target": "llm.extra = session; session.extra = llm; del llm, session",
    "a drafter that holds its session": "drafter.session = other",
    "an exception": "sys.stderr = open(os.devnull, 'w'); raise SystemExit(0)",
    "half-made objects": """
for make in (lambda: Session(llm, 5), lambda: Session(None), lambda: Draft('nowhere'), lambda: Sampler(top_p=7),
             lambda: DraftContext(draft, 5), lambda: Session(llm, n_ctx=-1), lambda: Session(llm)):
    try:
        make()
    except Exception:
        pass
""",
}

PROGRAM = """
import gc, os, sys, llama_cpp
from dspark_cpp import Draft, DraftContext, Sampler, Session, open_target
llm = llama_cpp.Llama(sys.argv[1], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
second = open_target(sys.argv[1], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
draft = Draft(sys.argv[2], target=llm)
session = Session(llm, draft, n_threads=1)
session.append([256, 65, 66])
sampler = Sampler(seed=1)
[session.next(sampler) for _ in range(5)]
context = DraftContext(draft, second, n_threads=1)
class Drafter:
    n_draft_max = 3
    target_layers = [6]
    def propose(self, anchor, position, n_max):
        return [7] * n_max
drafter = Drafter()
other = Session(second, drafter)
other.append([256, 65, 66])
[other.next() for _ in range(5)]
"""


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_exits_quietly_with(
    ending: str, run_python: Callable[..., Any], converted: Callable[..., Path], tiny_path: Callable[[str], Path]
) -> None:
    done = run_python(PROGRAM + ENDINGS[ending], tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


# --- memory -----------------------------------------------------------------------------------------------------------


def resident() -> int:
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


def test_e3_creating_and_dropping_does_not_grow(open_tiny: Callable[..., Any], converted: Callable[..., Path]) -> None:
    """Without the garbage collector: nothing of ours waits in a cycle."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("reads /proc")
    llm = open_tiny(tap=True)

    def once() -> None:
        for drafter in (converted("deepspec-qwen3-vanilla"), constant(7, target_layers=[6])):
            session = Session(llm, drafter, n_threads=1)
            sampler = Sampler(seed=1)
            for _ in session.generate(PROMPT, max_tokens=5, sampler=sampler):
                pass
            del session, sampler

    gc.collect()
    gc.disable()
    try:
        for _ in range(30):
            once()
        before = resident()
        for _ in range(60):
            once()
        assert resident() - before < 2 << 20
    finally:
        gc.enable()


NO_MEMORY = """
import resource, sys, numpy as np, llama_cpp
from dspark_cpp import Draft, DraftContext, OutOfMemoryError
llm = llama_cpp.Llama(sys.argv[1], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
draft = Draft(sys.argv[2], target=llm)
context = DraftContext(draft, llm, n_threads=1)
context.append(np.ones((10, draft.n_features), np.float32))
wanted = context.propose(65).ids.tolist()
rows = np.ones((400_000, draft.n_features), np.float32)
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (150 << 20), -1))
try:
    context.append(rows)
except OutOfMemoryError as e:
    print(type(e).__name__)
assert context.n_past == 10
assert context.propose(65).ids.tolist() == wanted
"""


def test_without_memory_the_context_stays_as_it_was(
    run_python: Callable[..., Any], converted: Callable[..., Path], tiny_path: Callable[[str], Path]
) -> None:
    if not Path("/proc/self/statm").exists():
        pytest.skip("reads /proc")
    done = run_python(NO_MEMORY, tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla"))
    assert (done.returncode, done.stdout.strip()) == (0, OutOfMemoryError.__name__), done.stderr[-1500:]


# --- others on the same target ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("moved", ["evaluated", "cleared", "shortened"])
@pytest.mark.parametrize("n_taken", [0, 1, 3])
def test_memory_that_somebody_else_moved_is_noticed_and_a_reset_mends_it(
    moved: str,
    n_taken: int,
    open_tiny: Callable[..., Any],
    converted: Callable[..., Path],
    plain_tokens: Callable[..., list[int]],
    continuation: Callable[..., list[int]],
) -> None:
    text = continuation("target-qwen3", PROMPT, 30)
    llm = open_tiny()
    with Session(llm, converted("deepspec-qwen3-vanilla"), n_threads=1) as session:
        session.append(PROMPT)
        for _ in range(n_taken):
            session.next()
        memory = llama_cpp.llama_get_memory(llm.ctx)
        if moved == "evaluated":
            llm.eval([256, 65, 66])
        elif moved == "cleared":
            llama_cpp.llama_memory_clear(memory, True)
        else:
            llama_cpp.llama_memory_seq_rm(memory, 0, 20, -1)
        if n_taken:
            with pytest.raises(StateError, match="memory was changed from outside: its last position is"):
                session.next()
        with pytest.raises(StateError, match="rewind it to 0"):
            session.append([65])
        with pytest.raises(StateError, match="memory was changed from outside"):
            session.generate([*PROMPT, 65, 66])
        session.reset()
        assert list(session.generate(PROMPT, max_tokens=30)) == text
        assert session.stats.draft_n > 0
    assert plain_tokens(llm, PROMPT, 30) == text


def test_the_users_llama_works_after_a_session_and_after_an_error(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    alone = open_tiny().create_completion("The lighthouse", max_tokens=20, temperature=0)["choices"][0]["text"]
    llm = open_tiny()
    with Session(llm, converted("deepspec-qwen3-vanilla"), n_threads=1) as session:
        list(session.generate(PROMPT, max_tokens=30))
        llm.eval([256])
        with pytest.raises(StateError):
            session.append([65])
    assert llm.create_completion("The lighthouse", max_tokens=20, temperature=0)["choices"][0]["text"] == alone
    with Session(llm, converted("deepspec-qwen3-vanilla"), n_threads=1) as session:
        assert len(list(session.generate(PROMPT, max_tokens=30))) == 30
