"""Wrong arguments and wrong states: an exception of ours that names what was seen, and objects that stay usable."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import (
    ArgumentError,
    ContextFullError,
    Draft,
    DraftContext,
    DSparkError,
    FileError,
    MismatchError,
    Sampler,
    Session,
    StateError,
    open_target,
)
from scripted import PROMPT, constant

WRONG = (ArgumentError, TypeError)


class Odd:
    """No drafter, no sampler, no model, no number."""


# --- creating ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", [None, 5, "target.gguf", Odd()])
def test_what_is_no_llama_is_no_target(target: Any, converted: Callable[..., Path]) -> None:
    with pytest.raises(ArgumentError, match="expected a llama_cpp.Llama"):
        Session(target)
    with pytest.raises(ArgumentError, match="expected a llama_cpp.Llama"):
        DraftContext(Draft(converted("spk-dflash")), target or 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"n_ctx": -1},
        {"n_ctx": 513},
        {"n_ctx": "64"},
        {"n_ctx": 64.0},
        {"n_draft_max": -1},
        {"n_draft_max": "3"},
        {"n_draft_max": 1.5},
        {"n_draft_max": True},
        {"n_draft_max": 2**31},
        {"confidence_min": -0.1},
        {"confidence_min": 1.1},
        {"confidence_min": float("nan")},
        {"confidence_min": "high"},
        {"n_threads": 0},
        {"n_threads": -1},
        {"n_threads": 513},
        {"n_threads": "two"},
        {"type_k": "f64"},
        {"type_v": None},
        {"type_k": 1},
        {"type_v": "q8_0"},  # heads of 16 do not hold blocks of 32
        {"n_ctx_draft": -1},
        {"n_ctx_draft": "long"},
        {"feature_source": "magic"},
        {"feature_source": None},
        {"draft": 5},
        {"draft": Odd()},
        {"draft": b"draft.gguf\0"},
    ],
    ids=repr,
)
def test_settings_out_of_range_are_refused_and_leave_the_target_free(
    settings: dict[str, Any], open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    llm = open_tiny()
    with pytest.raises(WRONG) as seen:
        Session(llm, **{"draft": converted("deepspec-qwen3-vanilla"), **settings})
    assert str(seen.value)
    with Session(llm, converted("deepspec-qwen3-vanilla"), n_threads=1) as session:
        assert len(list(session.generate(PROMPT, max_tokens=3))) == 3


@pytest.mark.parametrize("n_draft_max", [0, 257, -1, "7", 1.5, True, 2**40, None])
def test_a_drafter_states_how_much_it_proposes(n_draft_max: Any, open_tiny: Callable[..., Any]) -> None:
    with pytest.raises(ArgumentError, match="n_draft_max is"):
        Session(open_tiny(), constant(7, n_draft_max=n_draft_max))


@pytest.mark.parametrize("layers", [["one"], [1.5], [True], [2**40]], ids=repr)
def test_a_drafter_states_layers_as_integers(layers: list[Any], open_tiny: Callable[..., Any]) -> None:
    with pytest.raises(ArgumentError, match="a target layer is"):
        Session(open_tiny(), constant(7, target_layers=layers))


def test_a_draft_of_another_target_is_refused_with_both_sides(
    converted: Callable[..., Path], open_tiny: Callable[..., Any], smollm_path: Path
) -> None:
    llm = llama_cpp.Llama(str(smollm_path), n_ctx=128, n_threads=1, n_threads_batch=1, verbose=False)
    try:
        with pytest.raises(MismatchError, match="hidden size is 64, the target's 576"):
            Session(llm, converted("deepspec-qwen3-vanilla"))
        with Draft(converted("spk-dflash", True)) as draft:
            with pytest.raises(MismatchError, match="hidden size is 64, the target's 576"):
                draft.check_target(llm)
            draft.check_target(open_tiny())
    finally:
        llm.close()


def test_draft_arguments(converted: Callable[..., Path], open_tiny: Callable[..., Any]) -> None:
    path = converted("deepspec-qwen3-vanilla")
    with pytest.raises(ArgumentError, match='no ggml device named "CUDA77"; there are: .*CPU'):
        Draft(path, device="CUDA77")
    with pytest.raises(ArgumentError, match="NUL"):
        Draft("a\0b")
    for arguments in ({"path": 5}, {"path": None}, {"path": path, "device": 5}, {"path": path, "target": 5}):
        with pytest.raises(WRONG):
            Draft(**arguments)
    with Draft(path, inspect=True) as draft, pytest.raises(StateError, match="only inspected"):
        Session(open_tiny(), draft)
    with Draft(path) as draft:
        assert draft.meta("no.such.key") is None
        with pytest.raises(WRONG):
            draft.meta(5)
        for logits in (np.zeros(319), np.zeros((2, 3)), np.zeros((1, 1, 320)), 0.5):
            with pytest.raises(ArgumentError, match="logits has shape"):
                draft.scatter_logits(logits)
        with pytest.raises(ArgumentError, match="n_vocab is 321, expected the target's 320"):
            draft.scatter_logits(np.zeros(320), 321)


def test_draft_context_arguments(converted: Callable[..., Path], open_tiny: Callable[..., Any]) -> None:
    llm = open_tiny()
    with Draft(converted("deepspec-qwen3-vanilla")) as draft, DraftContext(draft, llm, n_threads=1) as context:
        for rows in (np.zeros(192), np.zeros((2, 191)), np.zeros((1, 2, 192)), 5):
            with pytest.raises(ArgumentError, match=r"features has shape .* expected \(n, 192\)"):
                context.append(rows)
        with pytest.raises(ValueError):
            context.append("rows")
        context.append(np.zeros((0, 192)))
        assert context.n_past == 0
        context.append(np.ones((5, 192)))
        for anchor in (-1, 320, 2**31 - 1):
            with pytest.raises(ArgumentError, match=f"anchor is token {anchor}, expected 0 to 319"):
                context.propose(anchor)
        for n_max in (0, -1):
            with pytest.raises(ArgumentError, match=f"n_max is {n_max}, expected 1 or more"):
                context.propose(65, n_max)
        assert len(context.propose(65, 100)) == 7
        for n_past in (-1, 6):
            with pytest.raises(ArgumentError, match=f"cannot rewind the draft to position {n_past}, it holds 5"):
                context.rewind(n_past)
        for call in (context.rewind, context.propose, lambda n: context.propose(65, n)):
            for value in ("x", 1.5, 2**40, -(2**40)):
                with pytest.raises(WRONG):
                    call(value)
        assert context.n_past == 5
    for settings in ({"n_threads": 0}, {"type_k": "q4_0"}, {"type_v": "?"}, {"n_ctx": -1}, {"n_ctx": "x"}):
        with Draft(converted("deepspec-qwen3-vanilla")) as draft, pytest.raises(ArgumentError):
            DraftContext(draft, llm, **settings)


def test_features_that_are_no_numbers_give_ids_of_the_vocabulary(
    converted: Callable[..., Path], open_tiny: Callable[..., Any]
) -> None:
    llm = open_tiny()
    for name in ("deepspec-qwen3-rnn", "spk-dspark-bonus-dv96"):
        for value in (np.nan, np.inf, -np.inf, 1e38):
            with Draft(converted(name)) as draft, DraftContext(draft, llm, n_threads=1) as context:
                context.append(np.full((5, 192), value, np.float32))
                assert all(0 <= token < 320 for token in context.propose(65).ids)


# --- calling ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens",
    [[], "abc", None, [1.5], [True], [-1], [320], [2**31], [2**40], [2**70], ["a"], [[1, 2]], [[1], [2, 3]], 5, {1}],
    ids=repr,
)
def test_tokens_have_to_be_ids_of_the_vocabulary(tokens: Any, open_tiny: Callable[..., Any]) -> None:
    with Session(open_tiny(), constant(7)) as session:
        session.append([256, 65])
        for call in (session.append, session.generate):
            with pytest.raises(ValueError):
                call(tokens)
        session.append([66])
        assert session.tokens[-1] == 66


def test_token_arrays_of_any_integer_type_are_taken(open_tiny: Callable[..., Any]) -> None:
    with Session(open_tiny()) as session:
        for kind in (np.int8, np.int64, np.uint16, np.uint64):
            session.append(np.array([65, 66, 67, 68], kind)[::2])
        session.append((70, 71))
        session.append(range(72, 74))
        assert session.tokens == [65, 67] * 4 + [70, 71, 72, 73]


def test_call_arguments(open_tiny: Callable[..., Any]) -> None:
    with Session(open_tiny(), constant(7)) as session:
        with pytest.raises(StateError, match="append at least one token first"):
            session.next()
        session.append(PROMPT)
        for value in (-1, "x", 1.5, True, 2**40):
            with pytest.raises(ArgumentError, match="n_draft_max is"):
                session.next(n_draft_max=value)
        for value in (-1, 35, "x", 1.5, 2**40):
            with pytest.raises(ArgumentError):
                session.rewind(value)
        for value in (-1, "x", 1.5, True):
            with pytest.raises(ArgumentError, match="max_tokens is"):
                session.generate(PROMPT, max_tokens=value)
            with pytest.raises(WRONG):
                list(session.generate(PROMPT, n_draft_max=value))
        assert session.tokens == PROMPT


def test_a_prompt_longer_than_the_context_is_refused_whole(open_tiny: Callable[..., Any]) -> None:
    with Session(open_tiny(n_ctx=256), constant(7)) as session:
        session.append([65] * 250)
        with pytest.raises(ContextFullError, match="7 more tokens after 250 do not fit into a context of 256"):
            session.append([65] * 7)
        with pytest.raises(ContextFullError, match="the prompt has 257 tokens, the context holds 256"):
            session.generate([65] * 257)
        assert session.n_tokens == 250


MISUSE = """
import ctypes, sys, llama_cpp
from dspark_cpp import Sampler, Session, ArgumentError
llm = llama_cpp.Llama(sys.argv[1], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
session = Session(llm)
session.append([256, 65])
closed = Sampler()
closed.close()
class Holder:
    sampler = 5
for value in {values}:
    try:
        session.next(value)
    except (ArgumentError, RuntimeError):
        continue
    raise SystemExit(f"{{value!r}} was taken for a sampler")
session.next()
print("done")
"""


@pytest.mark.parametrize(
    "values",
    ["[5, True, 2**63]", "['abc', b'abc', bytearray(8)]", "[object(), 1.5, [], {}]", "[closed]", "[Holder()]"],
)
def test_what_is_no_sampler_is_refused(
    values: str, run_python: Callable[..., Any], tiny_path: Callable[[str], Path]
) -> None:
    done = run_python(MISUSE.format(values=values), tiny_path("target-qwen3"))
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr[-1500:]


@pytest.mark.parametrize(
    "settings",
    [
        {"top_p": 0},
        {"top_p": 1.1},
        {"top_p": float("nan")},
        {"min_p": -0.1},
        {"min_p": 2},
        {"temp": float("nan")},
        {"temp": "hot"},
        {"seed": "x"},
        {"seed": 1.5},
        {"top_k": "x"},
        {"repeat_penalty": 0.0},
        {"repeat_penalty": float("nan")},
        {"presence_penalty": float("inf")},
        {"frequency_penalty": "x"},
        {"repeat_penalty": 1.1, "penalty_last_n": "x"},
        {"repeat_penalty": 1.1, "penalty_last_n": -2},
    ],
    ids=repr,
)
def test_sampler_settings_out_of_range_are_refused(settings: dict[str, Any], open_tiny: Callable[..., Any]) -> None:
    with pytest.raises(ArgumentError, match=f"{list(settings)[-1]} is .*expected") as seen:
        Sampler(open_tiny(), **settings)
    assert repr(list(settings.values())[-1]) in str(seen.value)


def test_penalties_need_the_target(open_tiny: Callable[..., Any]) -> None:
    for penalty in ("repeat_penalty", "presence_penalty", "frequency_penalty"):
        with pytest.raises(ArgumentError, match="give the Llama as target"):
            Sampler(**{penalty: 0.5})
        Sampler(open_tiny(), **{penalty: 0.5}).close()
    with pytest.raises(ArgumentError, match="expected a llama_cpp.Llama"):
        Sampler("target.gguf", repeat_penalty=1.1)


def test_open_target_fails_as_llama_does_and_leaves_llama_cpp_as_it_was(tmp_path: Path) -> None:
    before = llama_cpp.llama_context_default_params
    with pytest.raises(ValueError, match="does not exist"):
        open_target(tmp_path / "nowhere.gguf")
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError):
        open_target(tmp_path / "broken.gguf", verbose=False)
    assert llama_cpp.llama_context_default_params is before is llama_cpp.llama_cpp.llama_context_default_params


def test_every_error_is_of_the_packages_kind_and_of_a_builtin_one() -> None:
    kinds = {ArgumentError: ValueError, FileError: OSError, MismatchError: ValueError, StateError: RuntimeError}
    for kind, builtin in kinds.items():
        assert issubclass(kind, DSparkError) and issubclass(kind, builtin)


@pytest.mark.parametrize("messages", ["a text", None, ["a text"], [{"content": "no role"}]])
def test_a_conversation_that_is_none_is_refused_and_not_left_to_the_template(messages: Any, smollm_path: Path) -> None:
    from dspark_cpp import encode_chat

    llm = llama_cpp.Llama(str(smollm_path), vocab_only=True, verbose=False)
    try:
        with pytest.raises(ArgumentError, match="expected a list of"):
            encode_chat(llm, messages)
        with pytest.raises(ArgumentError, match="does not take these messages"):
            encode_chat(llm, [{"role": "user"}])
        assert encode_chat(llm, [{"role": "user", "content": "hello"}])
    finally:
        llm.close()
