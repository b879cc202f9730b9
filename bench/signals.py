"""How long Ctrl-C takes: from a SIGINT at a random moment of a 2000-token prompt, or of an answer, to the exception.

Half of the signals come with llama.cpp's abort callback taken away, where they wait for the end of the batch.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import signal
import statistics
import threading
import time
from pathlib import Path

import llama_cpp
from dspark_cpp import Llama, demo
from dspark_cpp.interrupts import watch


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=25, help="of each of the four measurements")
    seconds = parser.parse_args().seconds
    for draft, what in itertools.product((None, demo.draft_path()), ("prompt", "answer")):
        measure(what, draft, seconds)


def measure(what: str, draft: str | None, seconds: float) -> None:
    llm = Llama(demo.target_path(), draft=draft, n_ctx=4096, n_batch=512, n_threads=2, verbose=False)
    ids = llm.tokenize(Path(__file__).read_bytes() * 4)[:2000]

    def work() -> None:
        llm.reset()
        prompt, n = (ids, 1) if what == "prompt" else (ids[:40], 100)
        list(itertools.islice(llm.generate(prompt, temp=0.0), n))

    work()
    start = time.perf_counter()
    work()
    whole = time.perf_counter() - start
    armed, sent, rng = threading.Semaphore(0), [0.0], random.Random(1)

    def send() -> None:
        while True:
            armed.acquire()
            time.sleep(rng.uniform(0, whole))
            sent[0] = time.perf_counter()
            os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=send, daemon=True).start()
    took: dict[bool, list[float]] = {True: [], False: []}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for with_callback in (True, False):
            if with_callback:
                watch(llm)
            else:
                llama_cpp.llama_set_abort_callback(llm.ctx, llama_cpp.ggml_abort_callback(), None)
            armed.release()
            try:
                while True:
                    work()
            except KeyboardInterrupt:
                took[with_callback].append((time.perf_counter() - sent[0]) * 1000)
    print(f"{what}, {'drafted' if draft else 'plain'}, {whole * 1000:.0f} ms undisturbed")
    for with_callback, ms in took.items():
        ms.sort()
        print(
            f"  {'given up' if with_callback else 'waiting '}: {len(ms)} signals, ms p50 {statistics.median(ms):.1f}, "
            f"p90 {ms[len(ms) * 9 // 10]:.1f}, longest {ms[-1]:.1f}"
        )
    llm.close()


if __name__ == "__main__":
    main()
