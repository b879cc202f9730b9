"""Other threads run while we compute, a busy session says so, and an interrupt leaves everything usable."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from dspark_cpp import Session, StateError
from scripted import PROMPT, Recorder

# --- the GIL ----------------------------------------------------------------------------------------------------------


class Ticker:
    """A thread that writes down the time every millisecond while it gets to run."""

    def __enter__(self) -> Ticker:
        self.times: list[float] = []
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        while not self.times:
            time.sleep(0.001)
        return self

    def _run(self) -> None:
        while not self._stop:
            self.times.append(time.perf_counter())
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        self._stop = True
        self._thread.join()

    def between(self, start: float, end: float) -> int:
        return sum(start < t < end for t in self.times)


def test_other_threads_run_during_prefill(open_tiny: Callable[..., Any], converted: Callable[..., Path]) -> None:
    """One call, one batch of 1000 tokens: with the GIL held nobody would tick inside of it."""
    with Session(open_tiny(n_ctx=1024, n_batch=1024), converted("deepspec-qwen3-vanilla"), n_threads=1) as session:
        prompt = (PROMPT * 30)[:1000]
        with Ticker() as ticker:
            ticks, took = 0, 0.0
            while took < 0.2:
                session.reset()
                start = time.perf_counter()
                session.append(prompt)
                end = time.perf_counter()
                # the outer quarters may belong to Python
                edge = (end - start) / 4
                ticks += ticker.between(start + edge, end - edge)
                took += (end - start) / 2
    assert ticks > took / 0.02, f"{ticks} ticks in {took:.3f} s"


def test_other_threads_run_while_a_round_is_computed(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    with Session(open_tiny(), converted("deepspec-qwen3-vanilla"), n_threads=1) as session, Ticker() as ticker:
        start = time.perf_counter()
        while time.perf_counter() - start < 0.3:
            list(session.generate(PROMPT, max_tokens=50, stop_at_eog=False))
        assert ticker.between(start, time.perf_counter()) > 15


# --- busy -------------------------------------------------------------------------------------------------------------


class Waiting(Recorder):
    """Its proposals take until they are let go."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()
        super().__init__(self.wait)

    def wait(self, anchor: int, position: int, n_max: int) -> list[int]:
        self.entered.set()
        assert self.go_on.wait(30)
        return []


@contextmanager
def busy(session: Session, drafter: Waiting) -> Iterator[Any]:
    """While the body runs, another thread is inside session.next(); gives its future."""
    session.append(PROMPT)
    session.next()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(session.next)
        assert drafter.entered.wait(30)
        try:
            yield future
        finally:
            drafter.go_on.set()


def test_a_busy_session_refuses_calls_of_other_threads(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    drafter = Waiting()
    with Session(open_tiny(), drafter) as session:
        with busy(session, drafter) as future:
            for call in (
                session.next,
                session.settle,
                session.reset,
                lambda: session.append([65]),
                lambda: session.rewind(1),
                lambda: session.generate(PROMPT),
                lambda: session.tokens,
                lambda: session.stats,
                lambda: session.last_round,
            ):
                with pytest.raises(StateError, match="in use by another call; give each thread one of its own"):
                    call()
        assert future.result() == continuation("target-qwen3", PROMPT, 2)[1]
        assert session.next() == continuation("target-qwen3", PROMPT, 3)[2]


@pytest.mark.parametrize("what", ["session", "target"])
def test_closing_waits_for_the_call_of_another_thread(
    what: str, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    drafter = Waiting()
    llm = open_tiny()
    session = Session(llm, drafter)
    with busy(session, drafter) as future, ThreadPoolExecutor(1) as pool:
        closing = pool.submit(session.close if what == "session" else llm.close)
        time.sleep(0.05)
        assert not closing.done()
        drafter.go_on.set()
        closing.result(30)
    assert future.result() == continuation("target-qwen3", PROMPT, 2)[1]
    assert session.closed


def test_e4_many_threads_on_one_session_get_tokens_or_busy(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]], converted: Callable[..., Path]
) -> None:
    with Session(open_tiny(), converted("deepspec-qwen3-vanilla"), n_threads=1) as session:
        session.append(PROMPT)
        got: list[int] = []
        turn = threading.Lock()

        def take(_: int) -> tuple[int, int]:
            n_busy = n_taken = 0
            for _ in range(30):
                if turn.acquire(blocking=False):  # the order of the tokens is known only to who takes them
                    try:
                        got.append(session.next())
                        n_taken += 1
                    except StateError:
                        n_busy += 1
                    finally:
                        turn.release()
                else:
                    try:
                        session.settle()
                    except StateError:
                        n_busy += 1
            return n_taken, n_busy

        with ThreadPoolExecutor(8) as pool:
            counts = list(pool.map(take, range(8)))
    assert sum(n for n, _ in counts) == len(got) > 0
    assert got == continuation("target-qwen3", PROMPT, 240)[: len(got)]


# --- interrupts -------------------------------------------------------------------------------------------------------

posix = pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs setitimer")


@contextmanager
def interrupt_after(seconds: float) -> Iterator[list[float]]:
    """KeyboardInterrupt in the main thread, as Ctrl-C; gives the time when it was due."""
    due: list[float] = []

    def handler(signum: int, frame: Any) -> None:
        due.append(time.perf_counter())
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield due
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@posix
def test_e5_an_interrupt_in_a_long_prefill_comes_between_batches(
    open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    prompt = (PROMPT * 30)[:1000]
    llm = open_tiny(n_ctx=1024, n_batch=16)
    with Session(llm, converted("deepspec-qwen3-vanilla"), n_threads=1) as session:
        start = time.perf_counter()
        session.append(prompt)
        whole = time.perf_counter() - start
        session.reset()
        with pytest.raises(KeyboardInterrupt), interrupt_after(whole / 3):
            session.append(prompt)
            pytest.fail("the prompt was decoded to its end")
        n = session.n_tokens
        assert 0 < n < 1000 and n % 16 == 0
        assert session.tokens == prompt[:n] and session.n_draft_past == n
        got = list(session.generate(PROMPT, max_tokens=60, stop_at_eog=False))
    assert got == continuation("target-qwen3", PROMPT, 60)


INTERRUPTS = """
import faulthandler, json, signal, sys, time
import llama_cpp
import numpy as np
from dspark_cpp import Session

faulthandler.dump_traceback_later(50, exit=True)  # a lock that nobody gives back
prompt, text = json.loads(sys.argv[3])
llm = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_batch=16, n_threads=1, n_threads_batch=1, verbose=False)

class AlwaysE:
    n_draft_max = 7
    def propose(self, anchor, position, n_max):
        return [101] * n_max
    def append(self, features, position):
        self.n_past = position + len(features)
    def rewind(self, n_past):
        self.n_past = n_past

session = Session(llm, AlwaysE() if sys.argv[2] == "python" else sys.argv[2], n_threads=1)
due = 0

def handler(signum, frame):
    global due
    due += 1
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, handler)
start = time.perf_counter()
assert list(session.generate(prompt, max_tokens=60, stop_at_eog=False)) == text
whole = time.perf_counter() - start
rng = np.random.default_rng(0)
n_seen = 0
while n_seen < 40:
    got = []
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, float(rng.uniform(1e-4, whole)))
            session.reset()
            for token in session.generate(prompt, max_tokens=60, stop_at_eog=False):
                got.append(token)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        n_seen += 1
    assert got == text[:len(got)]
    assert session.tokens == (prompt + text)[:session.n_tokens]
    assert n_seen == due, "an interrupt was swallowed"
session.reset()
assert list(session.generate(prompt, max_tokens=60, stop_at_eog=False)) == text
session.close()
print("done")
"""


@posix
@pytest.mark.parametrize("drafter", ["draft", "python"])
def test_e5_interrupts_at_any_moment_are_delivered_and_leave_the_session_usable(
    drafter: str,
    run_python: Callable[..., Any],
    tiny_path: Callable[[str], Path],
    converted: Callable[..., Path],
    continuation: Callable[..., list[int]],
) -> None:
    text = continuation("target-qwen3", PROMPT, 60)
    draft = converted("deepspec-qwen3-vanilla") if drafter == "draft" else drafter
    done = run_python(INTERRUPTS, tiny_path("target-qwen3"), draft, json.dumps([PROMPT, text]))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")
