"""Ctrl-C as a user presses it: a SIGINT from another process, with Python's own handler."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs SIGINT")

PROGRAM = """
import faulthandler, itertools, json, sys, time
from dspark_cpp import Llama

faulthandler.dump_traceback_later(100, exit=True)
what, target, draft = sys.argv[1:]
long = [256, *(97 + i % 26 for i in range(30000))]
short = [256, *b"The lighthouse at the end of the "]
llm = Llama(
    target, draft=draft or None, draft_n_max=7, n_ctx=32768, n_batch=64, n_threads=1, n_threads_batch=1, verbose=False
)

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
    assert 0 < n < len(long) and n % 64 == 0 and record == long[:n]
else:
    assert record[: len(short)] == (short[:n] if n < len(short) else short)
assert take(60) == want, "the object goes on"
print(json.dumps({"at": at, "n": n}))
"""


def interrupt(what: str, target: Path, draft: Path | None) -> dict[str, Any]:
    """Interrupts the program while it does something; gives its report, with the seconds that it took to stop."""
    command = [sys.executable, "-c", PROGRAM, what, str(target), str(draft or "")]
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
    assert report["seconds"] < 20, "a hang; how quick it is shows on a quiet machine"
