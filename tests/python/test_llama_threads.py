"""Several threads on one Llama, one thread on several, interleaved streams, and interrupts."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from dspark_cpp import Llama
from llama_settings import PLAIN as SETTINGS
from scripted import PROMPT

posix = pytest.mark.skipif(os.name != "posix", reason="sends signals")


@pytest.fixture(params=["drafted", "plain"])
def llm(
    request: pytest.FixtureRequest, tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> Iterator[Llama]:
    draft = str(converted("deepspec-qwen3-vanilla")) if request.param == "drafted" else None
    llm = Llama(str(tiny_path("target-qwen3")), draft=draft, **SETTINGS)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def texts(tiny_path: Callable[[str], Path]) -> Callable[[int], str]:
    """texts(i): what the base answers to prompt i."""
    llm = llama_cpp.Llama(str(tiny_path("target-qwen3")), **SETTINGS)
    answers: dict[int, str] = {}

    def text(i: int) -> str:
        if i not in answers:
            llm.reset()
            answers[i] = complete(llm, i)["choices"][0]["text"]
        return answers[i]

    return text


def arguments(i: int) -> dict[str, Any]:
    return {"prompt": f"{'The lighthouse at'[: 5 + i]} {i}", "max_tokens": 30, "temperature": 0.9, "seed": i}


def complete(llm: Any, i: int, **more: Any) -> Any:
    return llm.create_completion(**arguments(i), **more)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_e4_eight_threads_on_one_object_are_served_in_turn(
    stream: bool, llm: Llama, texts: Callable[[int], str]
) -> None:
    def work(i: int) -> str:
        result = complete(llm, i, stream=stream)
        return "".join(c["choices"][0]["text"] for c in result) if stream else result["choices"][0]["text"]

    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(work, list(range(8)) * 3))
    assert got == [texts(i) for i in range(8)] * 3


def test_e4_two_objects_run_at_once(
    tiny_path: Callable[[str], Path], converted: Callable[..., Path], texts: Callable[[int], str]
) -> None:
    pair = [
        Llama(str(tiny_path("target-qwen3")), draft=str(converted("deepspec-qwen3-vanilla")), **SETTINGS)
        for _ in range(2)
    ]
    barrier = threading.Barrier(2)

    def work(llm: Llama) -> list[str]:
        got = []
        for i in range(6):
            stream = complete(llm, i, stream=True)
            first = next(stream)
            barrier.wait(30)  # both are in the middle of a text
            got.append("".join(c["choices"][0]["text"] for c in [first, *stream]))
        return got

    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(work, pair))
    assert results == [[texts(i) for i in range(6)]] * 2
    for llm in pair:
        llm.close()


def test_e4_a_stream_may_be_made_in_one_thread_and_read_in_others(llm: Llama, texts: Callable[[int], str]) -> None:
    stream = complete(llm, 3, stream=True)
    pieces: list[str] = []

    def read() -> bool:
        chunk = next(stream, None)
        if chunk is not None:
            pieces.append(chunk["choices"][0]["text"])
        return chunk is not None

    more = True
    while more:
        with ThreadPoolExecutor(1) as pool:
            more = pool.submit(read).result(60)
    assert "".join(pieces) == texts(3)


def test_streams_of_one_object_may_be_read_alternately(llm: Llama, texts: Callable[[int], str]) -> None:
    """The base mixes their histories."""
    streams = [complete(llm, i, stream=True) for i in range(3)]
    pieces = [""] * 3
    for chunks in itertools.zip_longest(*streams):
        for i, chunk in enumerate(chunks):
            if chunk is not None:
                pieces[i] += chunk["choices"][0]["text"]
    assert pieces == [texts(i) for i in range(3)]


@pytest.mark.parametrize("between", ["eval", "reset", "load_state", "completion", "sample"])
def test_a_stream_goes_on_from_its_own_text_whatever_was_done_between_two_tokens(
    between: str, llm: Llama, texts: Callable[[int], str]
) -> None:
    llm.eval([256, 65, 66])
    state = llm.save_state()
    calls: dict[str, Callable[[], object]] = {
        "eval": lambda: llm.eval([65, 66, 67]),
        "reset": llm.reset,
        "load_state": lambda: llm.load_state(state),
        "completion": lambda: complete(llm, 5),
        "sample": lambda: llm.sample(temp=0.0),
    }
    stream = complete(llm, 2, stream=True)
    text = ""
    for i, chunk in enumerate(stream):
        text += chunk["choices"][0]["text"]
        if i % 4 == 1:
            calls[between]()
    assert text == texts(2)


def test_a_stream_that_nobody_reads_does_not_block_other_threads(llm: Llama, texts: Callable[[int], str]) -> None:
    stream = complete(llm, 1, stream=True)
    first = next(stream)["choices"][0]["text"]
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(complete, llm, 4).result(30)["choices"][0]["text"] == texts(4)
    assert first + "".join(c["choices"][0]["text"] for c in stream) == texts(1)


def test_closing_waits_for_the_call_of_another_thread(llm: Llama) -> None:
    entered, go_on = threading.Event(), threading.Event()

    def processor(ids: Any, scores: Any) -> Any:
        entered.set()
        assert go_on.wait(30)
        return scores

    processors = llama_cpp.LogitsProcessorList([processor])
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(llm.create_completion, "The", max_tokens=3, logits_processor=processors)
        assert entered.wait(30)
        closing = pool.submit(llm.close)
        time.sleep(0.1)
        assert not closing.done()
        go_on.set()
        closing.result(30)
        assert running.result()["usage"]["completion_tokens"] == 3


# --- E5: interrupts ---------------------------------------------------------------------------------------------------

INTERRUPTS = """
import faulthandler, itertools, json, signal, sys, time
import numpy as np
from dspark_cpp import Llama

faulthandler.dump_traceback_later(50, exit=True)
# one that comes inside of a __del__ is Python's to forget, and the base's __del__ of a sampler that was interrupted in
# its __init__ stumbles over what is not there yet
def hook(u):
    if u.exc_type is not KeyboardInterrupt and "LlamaSampler.__del__" not in repr(u.object):
        sys.__unraisablehook__(u)
sys.unraisablehook = hook
draft, prompt, text = json.loads(sys.argv[2])
llm = Llama(sys.argv[1], draft=draft, n_ctx=512, n_batch=16, n_threads=1, n_threads_batch=1, verbose=False)
due = 0

def handler(signum, frame):
    global due
    due += 1
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
start = time.perf_counter()
assert list(itertools.islice(llm.generate(prompt, temp=0.0), 60)) == text
whole = time.perf_counter() - start
rng = np.random.default_rng(0)
n_seen, latest, generator = 0, 0.0, None
while n_seen < 40:
    got = []
    wait = float(rng.uniform(1e-4, whole))
    start = time.perf_counter()
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, wait)
            llm.reset()
            generator = llm.generate(prompt, temp=0.0)
            for token in generator:
                got.append(token)
                if len(got) == 60: break
            generator.close()  # Python forgets what is raised in one that is dropped
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        n_seen += 1
        latest = max(latest, time.perf_counter() - start - wait)
    assert got == text[:len(got)], (got, text)
assert latest < 5, latest  # a hang, no more: machines are noisy
assert list(itertools.islice(llm.generate(prompt, temp=0.0), 60)) == text
assert llm.n_tokens == len(prompt) + 59 and llm._input_ids.tolist() == (prompt + text)[:-1]
llm.close()
print("done")
"""


@posix
@pytest.mark.parametrize("how", ["drafted", "plain"])
def test_e5_interrupts_at_any_moment_leave_the_object_usable(
    how: str,
    run_python: Callable[..., Any],
    tiny_path: Callable[[str], Path],
    converted: Callable[..., Path],
    continuation: Callable[..., list[int]],
) -> None:
    text = continuation("target-qwen3", PROMPT, 60)
    draft = str(converted("deepspec-qwen3-vanilla")) if how == "drafted" else None
    done = run_python(INTERRUPTS, tiny_path("target-qwen3"), json.dumps([draft, PROMPT, text]))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


PREFILL = """
import signal, sys, threading, time
from dspark_cpp import Llama
llm = Llama(sys.argv[1], draft=sys.argv[2], n_ctx=16384, n_batch=32, n_threads=1, n_threads_batch=1, verbose=False)
prompt = [256] + [97 + i % 26 for i in range(16000)]
signal.signal(signal.SIGALRM, lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
ticks = []
def tick():
    while not stop:
        ticks.append(time.perf_counter()); time.sleep(0.002)
stop = False
thread = threading.Thread(target=tick); thread.start()
signal.setitimer(signal.ITIMER_REAL, 0.3)
start = time.perf_counter()
try:
    next(llm.generate(prompt))
    print("too fast")
except KeyboardInterrupt:
    took = time.perf_counter() - start
    assert took < 0.5, took
stop = True
thread.join()
assert 0 < llm.n_tokens < 16000 and llm._input_ids.tolist() == prompt[:llm.n_tokens]
assert sum(start < t < start + took for t in ticks) > 20, len(ticks)
print("done")
"""


@posix
def test_e5_an_interrupt_in_a_long_prefill_is_quick_and_keeps_what_was_decoded(
    run_python: Callable[..., Any], tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    done = run_python(PREFILL, tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla"))
    ours = [line for line in done.stderr.splitlines() if "training context overflow" not in line]  # llama.cpp's
    assert (done.returncode, done.stdout.strip(), ours) == (0, "done", [])
