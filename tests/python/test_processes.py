"""Forks, spawned workers, interpreter exit beside running threads, event loops, signals between and inside of calls."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import Draft, DraftContext, Llama, Session, StateError
from llama_settings import SETTINGS
from scripted import PROMPT, constant

posix = pytest.mark.skipif(os.name != "posix", reason="needs fork and signals")
Paths = tuple[str, str]
Run = Callable[..., Any]

BEGIN = """
import faulthandler, os, signal, sys, threading, time, warnings
import llama_cpp, numpy as np
from dspark_cpp import Draft, DraftContext, Llama, Session, StateError
faulthandler.dump_traceback_later(50, exit=True)
warnings.simplefilter("ignore")  # Python's own, about forks beside threads
prompt = [256, *b"The lighthouse at the end of the "]
settings = dict(n_ctx=256, n_threads=2, n_threads_batch=2, verbose=False)

def take(session, n=30):
    return list(session.generate(prompt, max_tokens=n, stop_at_eog=False))

def in_child(body):
    pid = os.fork()
    if pid == 0:
        try:
            signal.alarm(20)
            body()
            os._exit(0)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
            os._exit(1)
    status = os.waitpid(pid, 0)[1]
    assert status == 0, f"the child ended with {status}"
"""


def check(run_python: Run, program: str, paths: Paths) -> None:
    done = run_python(BEGIN + program + '\nprint("done")\n', *paths)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


# --- fork -------------------------------------------------------------------------------------------------------------

FORKS = {
    "the parent's session": """
def child():
    assert take(session) == want
    session.close()
in_child(child)
""",
    "new objects": """
def child():
    llm = llama_cpp.Llama(sys.argv[1], **settings)
    with Session(llm, sys.argv[2], n_threads=2) as other:
        assert take(other) == want
    llm.close()
in_child(child)
""",
    "the parent's Llama": """
ours = Llama(sys.argv[1], draft=sys.argv[2], kernels="off", **settings)
said = ours("The lighthouse", max_tokens=20, temperature=0)["choices"][0]["text"]
def child():
    assert ours("The lighthouse", max_tokens=20, temperature=0)["choices"][0]["text"] == said
    ours.close()
in_child(child)
assert ours("The lighthouse", max_tokens=20, temperature=0)["choices"][0]["text"] == said
""",
    "the parent's draft context": """
other = llama_cpp.Llama(sys.argv[1], **settings)
draft = Draft(sys.argv[2], target=other)
context = DraftContext(draft, other, n_threads=2)
context.append(np.ones((30, draft.n_features), np.float32))
ids = context.propose(65).ids.tolist()
def child():
    assert context.propose(65).ids.tolist() == ids
    context.close()
in_child(child)
assert context.propose(65).ids.tolist() == ids
""",
    "a child of a child": """
in_child(lambda: in_child(lambda: take(session) == want or os._exit(3)))
""",
}


@posix
@pytest.mark.parametrize("used", FORKS)
def test_a_forked_child_decodes_with(used: str, run_python: Run, paths: Paths) -> None:
    """It waited for ever for OpenMP threads that only its parent has."""
    program = """
llm = llama_cpp.Llama(sys.argv[1], **settings)
session = Session(llm, sys.argv[2], n_threads=2)
want = take(session)
"""
    check(run_python, program + FORKS[used] + "assert take(session) == want\n", paths)


@posix
def test_a_fork_beside_a_running_call_leaves_objects_that_refuse_and_can_be_closed(
    run_python: Run, paths: Paths
) -> None:
    """The child waited for ever for the other thread's call to end."""
    program = """
inside, go_on = threading.Event(), threading.Event()

class Slow:
    n_draft_max = 3
    def propose(self, anchor, position, n_max):
        inside.set()
        go_on.wait(30)
        return []

def processor(ids, scores):
    inside.set()
    go_on.wait(30)
    return scores

def beside(call, refused, close):
    inside.clear(), go_on.clear()
    thread = threading.Thread(target=call)
    thread.start()
    assert inside.wait(30)
    def child():
        try:
            refused()
        except StateError as error:
            assert "in use by another" in str(error), error
        else:
            raise AssertionError("worked")
        close()
    in_child(child)
    go_on.set()
    thread.join()

llm = llama_cpp.Llama(sys.argv[1], **settings)
session = Session(llm, Slow())
want = take(Session(llama_cpp.Llama(sys.argv[1], **settings)), 30)
go_on.set()
beside(lambda: take(session), lambda: session.settle(), session.close)
assert take(session) == want
ours = Llama(sys.argv[1], draft=sys.argv[2], kernels="off", **settings)
processors = llama_cpp.LogitsProcessorList([processor])
beside(lambda: ours("x", max_tokens=3, logits_processor=processors), lambda: ours("y"), lambda: None)
ours("y", max_tokens=3)
"""
    check(run_python, program, paths)


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_workers_of_multiprocessing_decode(method: str, paths: Paths, tmp_path: Path) -> None:
    if os.name != "posix" and method != "spawn":
        pytest.skip("needs fork")
    program = tmp_path / "pool.py"
    program.write_text(
        """
import multiprocessing, sys, warnings
warnings.simplefilter("ignore")

def work(arguments):
    from dspark_cpp import Llama
    llm = Llama(arguments[0], draft=arguments[1], n_ctx=256, n_threads=2, verbose=False, kernels="off")
    return llm("The lighthouse", max_tokens=20, temperature=0)["choices"][0]["text"]

if __name__ == "__main__":
    want = work(sys.argv[1:3])
    with multiprocessing.get_context(sys.argv[3]).Pool(2) as pool:
        assert pool.map(work, [sys.argv[1:3]] * 4) == [want] * 4
    print("done")
"""
    )
    # workers import the main program, which a -c is not
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, str(program), *paths, method]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


# --- exit and signals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["session", "llama", "stream"])
def test_the_interpreter_exits_quietly_beside_a_daemon_thread_that_decodes(
    what: str, run_python: Run, paths: Paths
) -> None:
    program = (
        f"what = {what!r}"
        + """
llm = (llama_cpp.Llama(sys.argv[1], **settings) if what == "session"
       else Llama(sys.argv[1], draft=sys.argv[2], kernels="off", **settings))
if what == "session":
    session = Session(llm, sys.argv[2], n_threads=2)
started = threading.Event()
def work():
    while True:
        if what == "session":
            take(session, 50)
        elif what == "llama":
            llm("The lighthouse", max_tokens=50)
        else:
            for _ in llm("The lighthouse", max_tokens=50, stream=True):
                started.set()
        started.set()
threading.Thread(target=work, daemon=True).start()
assert started.wait(30)
"""
    )
    check(run_python, program, paths)


@posix
@pytest.mark.parametrize("way", ["exit", "raise", "default"])
def test_sigterm_ends_a_process_that_decodes(way: str, run_python: Run, paths: Paths) -> None:
    program = (
        f"way = {way!r}"
        + """
class Stop(Exception): pass
def handler(signum, frame):
    if way == "exit":
        sys.exit(7)
    raise Stop
if way != "default":
    signal.signal(signal.SIGTERM, handler)
llm = Llama(sys.argv[1], draft=sys.argv[2], kernels="off", **settings)
threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
try:
    while True:
        llm("The lighthouse at", max_tokens=60, temperature=0)
except Stop:
    llm("The lighthouse at", max_tokens=5)
    sys.exit(8)
"""
    )
    done = run_python(BEGIN + program, *paths)
    assert done.returncode == {"exit": 7, "raise": 8, "default": -15}[way], done.stderr
    assert done.stderr == ""


PHASES = """
armed = False
class Hit(KeyboardInterrupt): pass
def handler(signum, frame):
    raise Hit
signal.signal(signal.SIGINT, handler)
def hit():
    global armed
    if armed:
        armed = False
        os.kill(os.getpid(), signal.SIGINT)

class Drafter:
    n_draft_max = 5
    target_layers = [1, 2] if phase == "features" else []
    def propose(self, anchor, position, n_max):
        if phase == "draft":
            hit()
        return [101] * n_max
    def append(self, features, position):
        if phase == "features":
            hit()
    def rewind(self, n_past):
        pass

llm = llama_cpp.Llama(sys.argv[1], n_ctx=512, n_batch=8, n_threads=1, n_threads_batch=1, verbose=False)
session = Session(llm, Drafter())
want = take(session, 40)
n_seen = 0
for n in range(1, 25):
    session.reset()
    got = []
    armed = phase == "features"
    try:
        for token in session.generate(prompt, max_tokens=40, stop_at_eog=False):
            got.append(token)
            if len(got) == n:
                armed = True
                if phase == "between tokens":
                    hit()
    except Hit:
        n_seen += 1
    armed = False
    assert got == want[:len(got)], (n, got, want)
    assert session.tokens == (prompt + want)[:session.n_tokens]
    assert take(session, 40) == want
assert n_seen > 10, n_seen
"""


@posix
@pytest.mark.parametrize("phase", ["features", "draft", "between tokens"])
def test_e5_sigint_in(phase: str, run_python: Run, paths: Paths) -> None:
    check(run_python, f"phase = {phase!r}" + PHASES, paths)


# --- threads ----------------------------------------------------------------------------------------------------------


def test_e4_eight_threads_on_one_draft_context_get_answers_or_busy(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    llm = open_tiny()
    with Draft(converted("deepspec-qwen3-vanilla"), target=llm) as draft, DraftContext(draft, llm) as context:
        context.append(np.ones((20, draft.n_features), np.float32))
        want = context.propose(65).ids.tolist()

        def ask(_: int) -> int:
            n = 0
            for _ in range(40):
                try:
                    assert context.propose(65).ids.tolist() == want
                    n += 1
                except StateError as error:
                    assert "in use by another call" in str(error)
            return n

        with ThreadPoolExecutor(8) as pool:
            assert sum(pool.map(ask, range(8))) > 0


def test_e4_two_sessions_of_one_draft_run_at_once(
    open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    want = continuation("target-qwen3", PROMPT, 60)
    with Draft(converted("deepspec-qwen3-vanilla")) as draft, ThreadPoolExecutor(4) as pool:
        sessions = [Session(open_tiny(), draft, n_threads=1) for _ in range(4)]
        got = pool.map(lambda s: [list(s.generate(PROMPT, max_tokens=60)) for _ in range(5)], sessions)
        assert list(got) == [[want] * 5] * 4


def test_the_last_reference_may_be_dropped_by_a_collection_in_another_thread(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]], paths: Paths
) -> None:
    want = continuation("target-qwen3", PROMPT, 20)
    gc.disable()
    try:
        for _ in range(5):
            llm = llama_cpp.Llama(paths[0], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
            session: Any = Session(llm, paths[1], n_threads=1)
            assert list(session.generate(PROMPT, max_tokens=20)) == want
            ours = Llama(paths[0], draft=paths[1], **SETTINGS)
            stream = ours("The", stream=True)
            next(stream)
            for cycle in ([session, llm], [ours, stream]):
                cycle.append(cycle)
            del session, llm, ours, stream, cycle
            collector = threading.Thread(target=gc.collect)
            collector.start()
            with Session(open_tiny(), constant(7)) as other:
                assert list(other.generate(PROMPT, max_tokens=20)) == want
            collector.join()
    finally:
        gc.enable()


def test_an_event_loop_stays_responsive_and_its_tasks_are_served_in_turn(paths: Paths) -> None:
    plain = llama_cpp.Llama(paths[0], **{k: v for k, v in SETTINGS.items() if k != "draft_n_max"})
    prompts = [f"{i} The lighthouse" for i in range(4)]
    want = [plain(p, max_tokens=40, temperature=0)["choices"][0]["text"] for p in prompts]
    plain.close()
    llm = Llama(paths[0], draft=paths[1], **SETTINGS)
    n_ticks = 0

    async def tick() -> None:
        nonlocal n_ticks
        while True:
            await asyncio.sleep(0.001)
            n_ticks += 1

    async def stream(prompt: str) -> str:
        steps = llm(prompt, max_tokens=40, temperature=0, stream=True)
        text = ""
        while (chunk := await asyncio.to_thread(next, steps, None)) is not None:
            text += chunk["choices"][0]["text"]
        return text

    async def main() -> list[str]:
        ticking = asyncio.create_task(tick())
        whole = [
            (await asyncio.to_thread(llm, p, max_tokens=40, temperature=0))["choices"][0]["text"] for p in prompts[:2]
        ]
        assert whole == want[:2]
        texts = await asyncio.gather(*map(stream, prompts))
        cancelled = asyncio.create_task(stream(prompts[0]))
        await asyncio.sleep(0.005)
        cancelled.cancel()
        texts.append(await stream(prompts[1]))
        ticking.cancel()
        return texts

    assert asyncio.run(main()) == [*want, want[1]]
    assert n_ticks > 5
    llm.close()
