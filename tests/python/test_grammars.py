"""Grammars and processors over which llama.cpp ends the process, each an error here that leaves the object usable."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import ArgumentError, Llama, Session, StateError
from llama_cpp._internals import LlamaSampler
from llama_settings import SETTINGS

MALFORMED = {
    "an unterminated literal": 'root ::= "a',
    "no root rule": 'x ::= "a"',
    "a rule that is not there": "root ::= y",
    "left recursion": 'root ::= root "a" | "b"',
    "a loop around nothing": 'root ::= ("" | "a")*',
    "a bad escape": r'root ::= "\xZZ"',
    "too many repetitions": 'root ::= ((("a"{1,2000}){1,2000}){1,2000}){1,2000}',
}
REFUSED = {
    "groups beyond the parser's stack": ("root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000, "more than 500 groups"),
    "rules beyond the parser's stack": (
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1}" for i in range(100_000)) + '\nr100000 ::= "a"',
        "100002 rules, expected at most 10000",
    ),
    "half a character": ('root ::= "\ud800"', "no text"),
    "a NUL": ('root ::= "a\0b"', "NUL character, at 11"),
}
LARGEST = {
    "groups": "root ::= " + "(" * 500 + '"a"' + ")" * 500,
    "rules": "root ::= r0\n" + "\n".join(f"r{i} ::= (r{i + 1})" for i in range(9998)) + '\nr9998 ::= "a"',
    "parentheses that are text": 'root ::= "a" | "' + "(" * 1000 + '" | [(]{2} # ' + "(" * 1000,
}


def grammar(text: str) -> llama_cpp.LlamaGrammar:
    return llama_cpp.LlamaGrammar.from_string(text, verbose=False)


@pytest.fixture(params=["plain", "drafted", "by rejection"])
def llm(request: pytest.FixtureRequest, paths: tuple[str, str]) -> Iterator[Any]:
    draft = {} if request.param == "plain" else {"draft": paths[1]}
    verify = "rejection" if request.param == "by rejection" else "match"
    opened = Llama(paths[0], draft_verify=verify, **draft, **SETTINGS)
    yield opened
    opened.close()


def assert_usable(llm: Any) -> None:
    rules = grammar('root ::= "yes" | "no"')
    assert llm.create_completion("x", grammar=rules, max_tokens=5, temperature=0.0)["choices"][0]["text"] in (
        "yes",
        "no",
    )


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_grammar_ended_the_process(kind: str, llm: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: llm.create_completion("x", grammar=grammar(MALFORMED[kind]), max_tokens=2),
        lambda: next(llm.generate([65, 66], grammar=grammar(MALFORMED[kind]))),
    ]
    for call in calls:
        with pytest.raises(ArgumentError, match="not valid GBNF"):
            call()
    assert_usable(llm)
    llm._sampler = None  # the base's sample() makes one then
    with pytest.raises(ArgumentError, match="not valid GBNF"):
        llm.sample(grammar=grammar(MALFORMED[kind]))


@pytest.mark.parametrize("kind", REFUSED)
def test_a_grammar_too_deep_for_the_stack_ended_the_process(kind: str, llm: Any) -> None:
    text, reason = REFUSED[kind]
    with pytest.raises(ArgumentError, match=reason):
        llm.create_completion("x", grammar=grammar(text), max_tokens=2)
    assert_usable(llm)


@pytest.mark.parametrize("kind", LARGEST)
def test_the_largest_grammars_fit_the_stack_of_a_thread(kind: str, paths: tuple[str, str]) -> None:
    texts = []

    def run() -> None:
        with contextlib.closing(Llama(paths[0], draft=paths[1], **SETTINGS)) as llm:
            answer = llm.create_completion("x", grammar=grammar(LARGEST[kind]), max_tokens=3, temperature=0.0)
            texts.append(answer["choices"][0]["text"])

    before = threading.stack_size(8 << 20)
    try:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        threading.stack_size(before)
    assert len(texts) == 1 and texts[0][0] in "a("


def test_a_grammar_that_is_no_grammar_is_named(llm: Any) -> None:
    with pytest.raises(ArgumentError, match=r"the grammar is a str, expected a LlamaGrammar"):
        llm.create_completion("x", grammar='root ::= "a"')


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("allowed", ["another letter", "the end alone"])
def test_a_processor_that_forbids_what_the_grammar_allows_ended_the_process(
    allowed: str, temperature: float, llm: Any
) -> None:
    left = ord("z") if allowed == "another letter" else llm.token_eos()
    calls = 0

    def only(ids: Any, scores: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls < 4:
            return scores
        forbidden = np.full_like(scores, -np.inf)
        forbidden[left] = 0.0
        return forbidden

    processors = llama_cpp.LogitsProcessorList([only])
    with pytest.raises(StateError, match="no token is left to choose from"):
        llm.create_completion(
            "x",
            grammar=grammar("root ::= [0-9]{9}"),
            logits_processor=processors,
            temperature=temperature,
            max_tokens=9,
        )
    assert calls == 4
    assert_usable(llm)


def test_a_session_refuses_a_chain_with_a_step_that_llama_cpp_could_not_make(paths: tuple[str, str]) -> None:
    with contextlib.closing(Llama(paths[0], **SETTINGS)) as llm, Session(llm, paths[1]) as session:
        session.append([65, 66])
        chain = LlamaSampler()
        chain.add_grammar(llm._model, grammar("root ::= y"))
        chain.add_greedy()
        with pytest.raises(ArgumentError, match="step 0 of the sampler chain is NULL"):
            session.next(chain)
        assert session.next() >= 0  # nothing was lost
        chain.close()
