"""Ctrl-C as a user presses it: a SIGINT from another process, with Python's own handler."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from dspark_cpp import BackendError, Llama, Session, open_target
from dspark_cpp._native import ffi, lib

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")

PROGRAM = """
import faulthandler, itertools, json, sys, time
import llama_cpp
from dspark_cpp import Llama

faulthandler.dump_traceback_later(100, exit=True)
what, target, draft, n_batch = sys.argv[1:]
long = [256, *(97 + i % 26 for i in range(30000))]
short = [256, *b"The lighthouse at the end of the "]
settings = {"n_ctx": 32768, "n_batch": int(n_batch), "n_threads": 1, "n_threads_batch": 1, "verbose": False}
llm = Llama(target, draft=draft or None, draft_n_max=7, **settings)

def take(n):
    return list(itertools.islice(llm.generate(short, temp=0.0), n))

want = take(60)
llm.reset()
print("ready", flush=True)
try:
    if what == "prefill":
        next(llm.generate(long, temp=0.0))
    else:
        while True:
            for token in itertools.islice(llm.generate(short, temp=0.0), 400):
                pass
    print("not interrupted")
except KeyboardInterrupt:
    at = time.monotonic()
n, record = llm.n_tokens, llm._input_ids.tolist()
if what == "prefill":
    assert n < len(long) and n % int(n_batch) == 0 and record == long[:n]
    assert llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(llm.ctx), 0) < len(long) - 1
else:
    assert record[: len(short)] == (short[:n] if n < len(short) else short)
assert take(60) == want, "the object goes on"
print(json.dumps({"at": at, "n": n}))
"""


def interrupt(what: str, target: Path, draft: Path | None, n_batch: int = 64) -> dict[str, Any]:
    """Interrupts the program while it does something; gives its report, with the seconds that it took to stop."""
    command = [sys.executable, "-c", PROGRAM, what, str(target), str(draft or ""), str(n_batch)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "GOMP_SPINCOUNT": "1000"}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()[1]
        time.sleep(0.3)
        process.send_signal(signal.SIGINT)
        sent = time.monotonic()
        out, err = process.communicate(timeout=120)
    ours = [line for line in err.splitlines() if "training context overflow" not in line]  # that one is llama.cpp's
    assert (process.returncode, ours) == (0, []), err
    report: dict[str, Any] = json.loads(out)
    return {**report, "seconds": report["at"] - sent}


@pytest.mark.parametrize("drafted", [True, False], ids=["drafted", "plain"])
@pytest.mark.parametrize("what", ["prefill", "generation"])
def test_e5_ctrl_c_ends_a_call_between_batches_and_leaves_the_object_usable(
    what: str, drafted: bool, tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    draft = converted("deepspec-qwen3-vanilla") if drafted else None
    report = interrupt(what, tiny_path("target-qwen3"), draft)
    assert report["n"] > 0
    assert report["seconds"] < 20, "a hang; how quick it is shows on a quiet machine"


@pytest.mark.parametrize("drafted", [True, False], ids=["drafted", "plain"])
def test_e5_ctrl_c_ends_a_call_in_the_midst_of_a_batch(
    drafted: bool, tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    """The prompt is one batch, for whose end the signal had to wait."""
    draft = converted("deepspec-qwen3-vanilla") if drafted else None
    assert interrupt("prefill", tiny_path("target-qwen3"), draft, n_batch=32768)["n"] == 0


AT_ANY_MOMENT = """
import faulthandler, itertools, os, random, signal, sys, threading, time
import numpy as np
from dspark_cpp import FeatureReader, Llama, Session, open_target

faulthandler.dump_traceback_later(100, exit=True)
what, handling, target, draft = sys.argv[1:]
# one that comes inside of a __del__ is Python's to forget, and the base's __del__ of a sampler that was interrupted in
# its __init__ stumbles over what is not there yet
forgotten = []
def hook(u):
    if u.exc_type is KeyboardInterrupt:
        forgotten.append(u)
    elif "LlamaSampler.__del__" not in repr(u.object):
        sys.__unraisablehook__(u)
sys.unraisablehook = hook
prompt = [256, *(97 + i % 26 for i in range(200))]
settings = {"n_ctx": 512, "n_batch": 128, "n_ubatch": 64, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
if what == "Llama":
    llm = Llama(target, draft=draft or None, draft_n_max=7, **settings)
    def tokens():
        llm.reset()
        yield from itertools.islice(llm.generate(prompt, temp=0.0), 40)
    def check():
        assert llm._input_ids.tolist() == (prompt + want)[:llm.n_tokens]
elif what == "Session":
    llm = open_target(target, **settings)
    session = Session(llm, draft, n_threads=1)
    def tokens():
        session.reset()
        return session.generate(prompt, max_tokens=40, stop_at_eog=False)
    def check():
        assert session.tokens == (prompt + want)[:session.n_tokens]
else:
    llm = open_target(target, **settings)
    reader = FeatureReader(llm, [1, 2])
    def tokens():
        found = reader.read(prompt, top_k=2)
        return [*found.top_ids.ravel().tolist(), found.features.tobytes()]
    def check():
        pass

handled = []
def handler(signum, frame):
    handled.append(signum)
    if handling == "raises":
        raise KeyboardInterrupt
start = time.perf_counter()
want = list(tokens())
whole = time.perf_counter() - start
signal.signal(signal.SIGINT, handler)
armed = threading.Semaphore(0)
def send():
    rng = random.Random(0)
    while True:
        armed.acquire()
        time.sleep(rng.uniform(0, whole))
        os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=send, daemon=True).start()
got = []
for n in range(1, 81):
    armed.release()
    try:
        while len(handled) < n:
            got = []
            for token in tokens():
                got.append(token)
            assert got == want
        assert handling != "raises" or forgotten
    except KeyboardInterrupt:
        assert got == want[:len(got)]
        check()
    assert len(handled) == n
signal.signal(signal.SIGINT, signal.SIG_IGN)
assert list(tokens()) == want
print("done")
"""


@pytest.mark.parametrize("handling", ["raises", "notes"])
@pytest.mark.parametrize("what", ["Llama drafted", "Llama plain", "Session", "FeatureReader"])
def test_e5_sigint_at_any_moment_is_handled_once_and_the_result_is_the_same(
    what: str, handling: str, run_python: Any, tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    draft = "" if what == "Llama plain" else converted("deepspec-qwen3-vanilla")
    done = run_python(AT_ANY_MOMENT, what.split()[0], handling, tiny_path("target-qwen3"), draft, timeout=120)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


REPLACED = """
import ctypes, sys
import llama_cpp
from dspark_cpp import Llama

llm = Llama(sys.argv[1], n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
asked = []
@llama_cpp.ggml_abort_callback
def stop(_):
    asked.append(1)
    return len(asked) == 5
llama_cpp.llama_set_abort_callback(llm.ctx, stop, None)
try:
    llm("The", max_tokens=5)
    print("not stopped")
except RuntimeError as error:
    print(error, len(asked))
llm("The", max_tokens=5)
"""


def test_an_abort_callback_of_the_host_replaces_ours(run_python: Any, tiny_path: Callable[[str], Path]) -> None:
    done = run_python(REPLACED, tiny_path("target-qwen3"))
    assert (done.returncode, done.stdout.strip()) == (0, "llama_decode returned 2 5"), done.stderr


class Asker:
    """An abort callback of the host's: counts the nodes of a graph, and does something at one of them."""

    def __init__(self, llm: Any, act: Callable[[], bool], otherwise: Callable[[], bool] = lambda: False) -> None:
        self.n, self.at = 0, -1

        def ask(_: Any) -> bool:
            self.n += 1
            return act() if self.n - 1 == self.at else otherwise()

        self.callback = llama_cpp.ggml_abort_callback(ask)  # lives as long as the context
        llama_cpp.llama_set_abort_callback(llm.ctx, self.callback, None)

    def arm(self, at: int) -> None:
        self.n, self.at = 0, at


#: 256 cells hold the window of 24 and a part of 16; the second batch has 20 parts
PARTS = {"n_ctx": 1024, "n_batch": 320, "n_ubatch": 16, "swa_full": False}
FIRST = [256, *(97 + i % 26 for i in range(299))]
SECOND = [97 + i * i % 26 for i in range(320)]


def last_position(llm: Any) -> int:
    return int(llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(llm.ctx), 0))


@pytest.mark.parametrize("drafted", [True, False], ids=["drafted", "plain"])
def test_e5_a_batch_that_a_host_aborts_in_its_last_part_is_not_half_in_a_window(
    drafted: bool, open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    """Its first parts have taken the place of what the tokens before it look at, and nobody can put that back."""
    text = continuation("target-gemma4", [*FIRST, *SECOND], 10, **PARTS)
    llm = open_tiny("target-gemma4", **PARTS)
    with Session(llm, converted("spk-dspark-gemma4") if drafted else None, n_threads=1) as session:
        asker = Asker(llm, lambda: True)
        session.append(FIRST)
        asker.arm(-1)
        session.append(SECOND)
        n_nodes, emptied = asker.n, []
        assert n_nodes >= len(SECOND) // PARTS["n_ubatch"]
        for at in [0, n_nodes // 2, n_nodes * 7 // 10 + 1, n_nodes - 1]:
            session.rewind(0)
            session.append(FIRST)
            asker.arm(at)
            with pytest.raises(BackendError, match="llama_decode returned 2 for .* aborted"):
                session.append(SECOND)
            assert session.tokens == FIRST
            emptied.append(last_position(llm) < 0)
            assert emptied[-1] or last_position(llm) == len(FIRST) - 1
            if emptied[-1]:
                asker.arm(n_nodes // 40)  # what is decoded again can be aborted too
                with pytest.raises(BackendError, match="llama_decode returned 2"):
                    session.append(SECOND)
                assert session.tokens == FIRST and last_position(llm) == -1
            # the same call again
            session.append(SECOND)
            assert [session.next() for _ in text] == text
        # where a part of the window or all of it is gone, what was held is decoded again with the next call
        assert emptied == [False, False, True, True]


@pytest.mark.parametrize("what", ["Llama plain", "Llama drafted", "Session"])
def test_e5_a_signal_in_the_last_part_of_a_batch_changes_no_text_of_a_target_with_windows(
    what: str, tiny_path: Callable[[str], Path], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    """A session gives the batch up and decodes what it held again; plain decoding cannot, and waits for its end."""
    text = continuation("target-gemma4", [*FIRST, *SECOND], 10, **PARTS)
    target, draft = str(tiny_path("target-gemma4")), converted("spk-dspark-gemma4")
    settings = {**PARTS, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    session: Session | None = None
    if what == "Session":
        llm = open_target(target, **settings)
        session = Session(llm, draft, n_threads=1)
    else:
        llm = Llama(target, draft=draft if what == "Llama drafted" else None, draft_n_max=7, **settings)
    handled: list[int] = []
    before = signal.signal(signal.SIGINT, lambda *_: handled.append(1))

    def interrupt() -> bool:
        signal.raise_signal(signal.SIGINT)
        assert handled  # Python's handler ran in this callback, in the midst of a batch
        return go_on()

    def go_on() -> bool:
        return bool(lib.dspark_interrupt_callback(ffi.NULL))

    try:
        asker = Asker(llm, interrupt, go_on)

        def write(at: int) -> tuple[list[int], int]:
            """The text behind both batches, with a signal at a node of the second, and how many nodes that asked at."""
            if session is not None:
                session.rewind(0)
                session.append(FIRST)
                asker.arm(at)
                session.append(SECOND)
                steps = iter(session.next, -1)
            else:
                llm.reset()
                llm.eval(FIRST)
                asker.arm(at)
                steps = llm.generate([*FIRST, *SECOND], temp=0.0)
            first = next(steps)
            n_asked = asker.n
            return [first, *itertools.islice(steps, len(text) - 1)], n_asked

        got, n_nodes = write(-1)
        assert got == text
        for at in [n_nodes // 4, n_nodes - 1]:
            handled.clear()
            got, n_asked = write(at)
            assert got == text and handled == [1]
            if what == "Llama plain":
                assert n_asked == n_nodes, "it waits"
            else:
                assert n_asked >= at + n_nodes, "given up, and decoded once more"
    finally:
        signal.signal(signal.SIGINT, before)
        if session is not None:
            session.close()
        llm.close()
