"""What a session says of itself: why it does not draft, and which round was the last."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dspark_cpp import Session, StateError
from scripted import constant

PROMPT = [256, *b"The lighthouse at the end of the "]


def test_b8_a_reason_is_given_whenever_drafting_is_off(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    """Found off without a reason: past n_ctx_draft, and with an n_batch of one."""
    draft = converted("deepspec-qwen3-vanilla")
    with Session(open_tiny()) as session:
        assert session.disabled_reason == "no draft was given"
    with Session(open_tiny(), draft, n_threads=1, n_draft_max=0) as session:
        assert session.disabled_reason == "n_draft_max is 0"
    with Session(open_tiny(n_batch=1), draft, n_threads=1) as session:
        assert session.disabled_reason == "the target's n_batch is 1: there is no room for a draft"
    with Session(open_tiny(), draft, n_threads=1, n_ctx_draft=64) as session:
        assert session.disabled_reason is None
        session.append([*PROMPT, *PROMPT])
        assert session.disabled_reason == "a block no longer fits into the draft's context"
        session.rewind(10)
        assert session.disabled_reason is None


def test_the_last_round_is_of_the_present_sequence(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    """It once outlived rewind(), so that a trace of the next text began with a round of the text before."""
    with Session(open_tiny(), converted("deepspec-qwen3-vanilla"), n_threads=1) as session:
        assert session.last_round is None
        for change in (lambda: session.rewind(5), lambda: session.append([65]), session.reset):
            list(session.generate(PROMPT, max_tokens=9))
            assert session.last_round is not None
            change()
            assert session.last_round is None


@pytest.mark.parametrize("where", ["propose", "append"])
def test_a_drafter_that_closes_the_target_ends_the_session_and_not_the_process(
    where: str, run_python: Callable[..., Any], tiny_path: Callable[[str], Path]
) -> None:
    """The context was freed under the session's feet; the process died in the next call or at its end."""
    code = f"""
import sys, llama_cpp
from dspark_cpp import Session, StateError
llm = llama_cpp.Llama(sys.argv[1], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
class Closing:
    n_draft_max = 3
    def propose(self, anchor, position, n_max):
        if {where!r} == "propose":
            self.close()
        return [65] * n_max
    def append(self, features, position):
        if {where!r} == "append":
            self.close()
    def close(self):
        try:
            llm.close()
        except StateError:
            pass
session = Session(llm, Closing())
prompt = lambda: session.append([256, 65])
for call in (prompt, session.next, session.next, session.next, session.settle, session.reset):
    try:
        call()
    except StateError as e:
        seen = str(e)
assert "closed" in seen, seen
session.close()
print("done")
"""
    done = run_python(code, tiny_path("target-qwen3"))
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr[-1500:]


def test_a_session_is_refused_to_its_own_drafter(open_tiny: Callable[..., Any]) -> None:
    drafter = constant(65)
    with Session(open_tiny(), drafter) as session:
        seen = []

        def propose(*_: int) -> list[int]:
            for call in (session.next, session.close, lambda: session.n_tokens):
                with pytest.raises(StateError) as e:
                    call()
                seen.append(str(e.value))
            return []

        drafter.propose = propose  # type: ignore[method-assign]
        session.append(PROMPT)
        session.next(), session.next()
        assert len(seen) == 3 and all("own calls" in text or "in use by another call" in text for text in seen)


def test_loading_a_quantised_draft_prints_nothing(
    run_python: Callable[..., Any], converted: Callable[..., Path], tmp_path: Path
) -> None:
    """ggml's debug lines about repacked weights went to stderr when no Llama had set the log's level yet."""
    from dspark_cpp.convert import quantize_gguf

    out = tmp_path / "q4_0.gguf"
    quantize_gguf(converted("spk-dspark-bonus-dv96"), out, "q4_0")
    done = run_python("import sys\nfrom dspark_cpp import Draft\nDraft(sys.argv[1])", out)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
