"""A long run: many requests of mixed kinds on one Llama with a draft, then a server under parallel clients.

    python bench/soak.py [-n 2000] [--target T --draft D] [--server-seconds 60] [--clients 4] [--json FILE]

Every text is compared with that of a second Llama without a draft, reset before each request. Reports resident memory
after warm-up and at the end, mismatches, and latency percentiles by kind. The default pair is the demo's.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import math
import os
import pickle
import random
import re
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import llama_cpp
from dspark_cpp import Llama, demo

WORDS = ["the", "a", "lighthouse", "keeper", "river", "story", "about", "code", "seven", "was", "wrote", "in", "his"]
GRAMMAR = 'root ::= "yes" | "no" | [a-z ]+ "."'


def resident(pid: int | str = "self") -> float:
    """MiB."""
    with open(f"/proc/{pid}/statm") as f:
        return int(f.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class Pair:
    """The object under test, and the one that tells what it should say."""

    def __init__(self, target: str, draft: str, n_threads: int, rng: random.Random) -> None:
        settings: dict[str, Any] = {"n_ctx": 512, "n_threads": n_threads, "verbose": False, "logits_all": True}
        self.rng = rng
        self.llm = Llama(target, draft=draft, **settings)
        self.plain = Llama(target, **settings)
        for llm in (self.llm, self.plain):
            llm.scores[:] = 0  # else its pages would come one by one, as texts get longer
        self.prompt = "The"
        self.states: list[tuple[Any, str]] = []

    def held(self) -> float:
        """MiB of the states that it keeps on purpose, with a row of logits a token."""
        return sum(state.llama_state_size + state.scores.nbytes for state, _ in self.states) / 2**20

    def new_prompt(self) -> str:
        """Often one that begins as the last."""
        words = self.prompt.split()
        kept = words[: self.rng.randint(0, len(words))][:60]
        self.prompt = " ".join([*kept, *self.rng.choices(WORDS, k=self.rng.randint(1, 12))])
        return self.prompt

    def both(self, call: Callable[[Any], Any]) -> tuple[float, bool]:
        start = time.perf_counter()
        got = call(self.llm)
        took = time.perf_counter() - start
        self.plain.reset()
        return took, got == call(self.plain)

    def complete(self, **more: Any) -> tuple[float, bool]:
        prompt, n = self.new_prompt(), self.rng.randint(4, 32)
        settings = {"temperature": 0.0, "max_tokens": n, **more}
        return self.both(lambda llm: llm(prompt, **settings)["choices"][0]["text"])

    # --- kinds of requests --------------------------------------------------------------------------------------------

    def completion(self) -> tuple[float, bool]:
        return self.complete()

    def sampled(self) -> tuple[float, bool]:
        return self.complete(temperature=self.rng.choice([0.3, 1.0]), seed=self.rng.randint(0, 99))

    def penalised(self) -> tuple[float, bool]:
        return self.complete(repeat_penalty=1.2, presence_penalty=0.3, frequency_penalty=0.2)

    def grammar(self) -> tuple[float, bool]:
        prompt = self.new_prompt()

        def call(llm: Any) -> str:
            grammar = llama_cpp.LlamaGrammar.from_string(GRAMMAR, verbose=False)
            return llm(prompt, max_tokens=16, temperature=0.0, grammar=grammar)["choices"][0]["text"]

        return self.both(call)

    def chat(self) -> tuple[float, bool]:
        messages = [{"role": "user", "content": self.new_prompt()}]
        n = self.rng.randint(4, 32)
        return self.both(
            lambda llm: llm.create_chat_completion(messages, max_tokens=n, temperature=0.0)["choices"][0]["message"]
        )

    def broken_off(self) -> tuple[float, bool]:
        prompt, n = self.new_prompt(), self.rng.randint(1, 9)

        def call(llm: Any) -> list[str]:
            chunks = llm(prompt, max_tokens=40, temperature=0.0, stream=True)
            return [c["choices"][0]["text"] for c in itertools.islice(chunks, n)]

        return self.both(call)

    def logprobs(self) -> tuple[float, bool]:
        prompt = self.new_prompt()

        def call(llm: Any) -> Any:
            choice = llm(prompt, max_tokens=8, temperature=0.0, logprobs=3)["choices"][0]
            return choice["text"], [round(p, 3) for p in choice["logprobs"]["token_logprobs"] if p is not None]

        return self.both(call)

    def other_length(self) -> tuple[float, bool]:
        with self.llm.drafting(n_max=self.rng.choice([0, 1, 3, 6])):
            return self.complete()

    def saved(self) -> tuple[float, bool]:
        """Saves, or goes back to what was saved and on from there."""
        if len(self.states) < 3:
            result = self.complete()
            state = pickle.loads(pickle.dumps(self.llm.save_state()))
            self.states.append((state, self.prompt))
            return result
        state, self.prompt = self.states.pop(self.rng.randrange(3))
        self.llm.load_state(state)
        return self.complete()


KINDS = [
    name for name in vars(Pair) if not name.startswith("_") and name not in ("new_prompt", "both", "complete", "held")
]


def percentiles(seconds: list[float]) -> dict[str, float]:
    """Milliseconds; none of no requests."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    return {f"p{p}": round(1e3 * ordered[min(len(ordered) - 1, len(ordered) * p // 100)], 1) for p in (50, 90, 99)}


def soak_object(target: str, draft: str, n_threads: int, n: int, limit_s: float) -> dict[str, Any]:
    pair = Pair(target, draft, n_threads, random.Random(0))
    times: dict[str, list[float]] = {kind: [] for kind in KINDS}
    mismatches: list[dict[str, Any]] = []
    memory: list[float] = []
    end = time.monotonic() + limit_s
    trim = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)  # what the C library keeps is no leak
    for i in range(n):
        if time.monotonic() > end:
            break
        kind = pair.rng.choice(KINDS)
        took, same = getattr(pair, kind)()
        times[kind].append(took)
        if not same:
            mismatches.append({"request": i, "kind": kind, "prompt": pair.prompt})
        if i % 50 == 49:
            trim(0)
            memory.append(round(resident() - pair.held(), 1))
    total = pair.llm.speculation.total
    exact = pair.llm.speculation.exact
    pair.llm.close()
    pair.plain.close()
    return {
        "requests": sum(map(len, times.values())),
        "mismatches": mismatches,
        "exact": exact,
        "mib": memory,
        "drafted": total.draft_n,
        "accepted": total.draft_n_accepted,
        "latency_ms": {kind: percentiles(seconds) for kind, seconds in times.items() if seconds},
    }


def soak_server(target: str, draft: str, n_threads: int, n_clients: int, limit_s: float) -> dict[str, Any]:
    plain = Llama(target, n_ctx=512, n_threads=n_threads, verbose=False)
    prompts = [f"{i} " + " ".join(random.Random(i).choices(WORDS, k=8)) for i in range(12)]
    want = []
    for prompt in prompts:
        plain.reset()
        want.append(plain(prompt, max_tokens=20, temperature=0.0)["choices"][0]["text"])
    plain.close()
    command = [
        sys.executable,
        "-m",
        "dspark_cpp.server",
        "--model",
        target,
        "--draft",
        draft,
        "--n_ctx",
        "512",
        "--n_threads",
        str(n_threads),
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--verbose",
        "false",
        "--interrupt_requests",
        "false",
    ]
    server = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert server.stdout is not None
    url, said = "", []
    for line in server.stdout:
        said.append(line)
        found = re.search(r"Uvicorn running on (http://[\d.:]+)", line)
        if found:
            url = found[1]
            break
    if not url:
        raise SystemExit(f"the server has not started:\n{''.join(said)}")
    threading.Thread(target=lambda: [None for _ in server.stdout or ()], daemon=True).start()
    times: list[float] = []
    wrong: list[str] = []
    memory: list[float] = []
    end = time.monotonic() + limit_s

    def client(seed: int) -> None:
        try:
            ask_on(random.Random(seed))
        except Exception as error:
            wrong.append(repr(error))

    def ask_on(rng: random.Random) -> None:
        while time.monotonic() < end:
            i, stream = rng.randrange(len(prompts)), rng.random() < 0.5
            # the server's own default is a penalty
            body = {"prompt": prompts[i], "max_tokens": 20, "temperature": 0.0, "repeat_penalty": 1.0, "stream": stream}
            request = urllib.request.Request(
                f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
            )
            start = time.perf_counter()
            with urllib.request.urlopen(request, timeout=120) as answer:
                if stream and rng.random() < 0.2:
                    answer.readline()  # and away
                    continue
                text = answer.read().decode()
            times.append(time.perf_counter() - start)
            if stream:
                events = [json.loads(e[6:]) for e in re.split(r"\r?\n\r?\n", text) if e.startswith("data: {")]
                text = "".join(e["choices"][0]["text"] for e in events if e.get("choices"))
            else:
                text = json.loads(text)["choices"][0]["text"]
            if text != want[i]:
                wrong.append(prompts[i])

    threads = [threading.Thread(target=client, args=(k,)) for k in range(n_clients)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(2)
        memory.append(round(resident(server.pid), 1))
    server.terminate()
    code = server.wait(30)
    return {
        "requests": len(times),
        "clients": n_clients,
        "mismatches": wrong,
        "mib": memory,
        "latency_ms": percentiles(times),
        "exit_code": code,
    }


def grown(memory: list[float]) -> float:
    """MiB from the end of the first third, the warm-up, to the end; of medians, since single values jump."""
    third = max(1, len(memory) // 3)

    def median(values: list[float]) -> float:
        return sorted(values)[len(values) // 2] if values else math.nan

    return round(median(memory[-third:]) - median(memory[third : 2 * third]), 1)


def show(name: str, report: dict[str, Any], path: str | None) -> None:
    """At once: what one part found is not lost if the next one fails."""
    if path:
        with open(path, "w") as f:
            json.dump(report, f, indent=1)
    part = report[name]
    counts = f"{part['requests']} requests, {len(part['mismatches'])} mismatches"
    print(f"{name}: {counts}, memory {part['mib'][-1:]} MiB, {grown(part['mib']):+} after warm-up")
    print(f"  ms: {part['latency_ms']}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-n", type=int, default=2000, help="requests on one object")
    parser.add_argument("--target", help="default: the demo's")
    parser.add_argument("--draft")
    parser.add_argument("--seconds", type=float, default=3600, help="at most, for the object")
    parser.add_argument("--server-seconds", type=float, default=60)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", metavar="FILE")
    args = parser.parse_args()
    target, draft = args.target or demo.target_path(), args.draft or demo.draft_path()
    report: dict[str, Any] = {
        "target": os.path.basename(target),
        "object": soak_object(target, draft, args.threads, args.n, args.seconds),
    }
    show("object", report, args.json)
    if args.server_seconds:
        report["server"] = soak_server(target, draft, args.threads, args.clients, args.server_seconds)
        show("server", report, args.json)
    return 1 if any(report[name]["mismatches"] for name in ("object", "server") if name in report) else 0


if __name__ == "__main__":
    sys.exit(main())
