"""What decoding n tokens costs, with llama.cpp's kernels and with ours: T(n) and T(n) / T(1), and the prefill.

Both models live in one process and take turns at every measurement; shown are medians in milliseconds. Weights of the
first are where llama.cpp puts them by default (repacked where it can). The bytes of weights that a decode reads,
divided by T(1), stand beside the bandwidth of a plain read by as many threads. Samples during which other processes
took more than a twentieth of our processor time are left out where at least three others remain, and counted;
where fewer remain all are taken, and marked so.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from dspark_cpp import kernels


class Arm:
    """A model, its context, and which kernels it runs with."""

    def __init__(self, path: str, mode: Any, args: argparse.Namespace) -> None:
        self.mode = mode
        kernels.install(mode)
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = max(args.depth, args.prefill) + 32
        settings.n_batch = settings.n_ubatch = max(512, args.depth)
        settings.n_threads = settings.n_threads_batch = args.threads
        settings.flash_attn_type = 1 if args.flash else 0
        self.ctx = llama_cpp.llama_init_from_model(self.model, settings)
        self.memory = llama_cpp.llama_get_memory(self.ctx)
        self.batch = llama_cpp.llama_batch_init(settings.n_batch, 0, 1)

    def decode(self, ids: Any, pos: int, logits: bool = True) -> tuple[float, float]:
        """Decodes ids at pos and forgets them; returns wall and process seconds."""
        kernels.install(self.mode)
        b = self.batch
        b.n_tokens = len(ids)
        for i, token in enumerate(ids):
            b.token[i], b.pos[i], b.n_seq_id[i] = int(token), pos + i, 1
            b.seq_id[i][0] = 0
            b.logits[i] = logits or i + 1 == len(ids)
        wall, cpu = time.perf_counter(), time.process_time()
        if llama_cpp.llama_decode(self.ctx, b):
            raise SystemExit("llama_decode failed")
        llama_cpp.llama_synchronize(self.ctx)
        return time.perf_counter() - wall, time.process_time() - cpu

    def forget(self, pos: int) -> None:
        llama_cpp.llama_memory_seq_rm(self.memory, 0, pos, -1)


def read_bandwidth(n_threads: int) -> float:
    """Bytes per second that n_threads read from memory at best, each its own part of 256 MB."""
    data = np.ones(32 << 20, np.float64)
    best = 0.0
    for _ in range(5):
        parts = np.array_split(data, n_threads)
        threads = [threading.Thread(target=np.add.reduce, args=(part,)) for part in parts]
        start = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        best = max(best, data.nbytes / (time.perf_counter() - start))
    return best


def undisturbed(times: list[tuple[float, float]], n_threads: int) -> tuple[list[tuple[float, float]], str]:
    """Of (wall, processor) seconds those in which our threads, which spin while they wait, had the processors alone.

    And how many of how many: "7/10", or "2/10, all taken" where so few were that the disturbed ones count too.
    """
    clean = [t for t in times if t[1] > 0.95 * n_threads * t[0]]
    count = f"{len(clean)}/{len(times)}"
    return (clean, count) if len(clean) >= 3 else (times, f"{count}, all taken")


def measure(path: str, args: argparse.Namespace) -> dict[str, Any]:
    kernels.install("on")  # before the first model, so that both kinds of memory are on offer
    arms = {"llama.cpp": Arm(path, "off", args), "ours": Arm(path, "on", args)}
    rng = np.random.default_rng(1)
    n_vocab = next(iter(arms.values())).n_vocab
    prompt = rng.integers(5, n_vocab, max(args.depth, args.prefill))
    cells: dict[str, dict[str, list[tuple[float, float]]]] = {name: {} for name in arms}
    for repeat in range(args.prefill_repeat + 1 if args.prefill else 0):
        for name, arm in arms.items():
            t = arm.decode(prompt[: args.prefill], 0, logits=False)
            arm.forget(0)
            if repeat:
                cells[name].setdefault(f"prefill {args.prefill}", []).append(t)
    for arm in arms.values():
        arm.decode(prompt[: args.depth], 0, logits=False)
    for repeat in range(args.repeat + 2):
        for n in args.n:
            ids = rng.integers(5, n_vocab, n)
            for name, arm in arms.items():
                t = arm.decode(ids, args.depth)
                arm.forget(args.depth)
                if repeat > 1:
                    cells[name].setdefault(str(n), []).append(t)
    size = os.path.getsize(path)
    out: dict[str, Any] = {"model": Path(path).name, "bytes": size, "threads": args.threads, "depth": args.depth}
    for name, rows in cells.items():
        kept = {n: undisturbed(times, args.threads) for n, times in rows.items()}
        wall = {n: 1e3 * statistics.median(t[0] for t in times) for n, (times, _) in kept.items()}
        used = {n: count for n, (_, count) in kept.items()}
        out[name] = {"ms": wall, "samples": used, "ratio": {n: wall[n] / wall["1"] for n in map(str, args.n)}}
    out["ours"]["state"] = str(kernels.state())
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL.gguf")
    parser.add_argument("-n", type=lambda s: [int(x) for x in s.split(",")], default=[1, 2, 3, 4, 6, 8, 16])
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--depth", type=int, default=64, help="tokens before those that are timed")
    parser.add_argument("--prefill", type=int, default=512, help="0: none")
    parser.add_argument("--prefill-repeat", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("--flash", action="store_true", help="flash attention, llama.cpp's or ours")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    callback = llama_cpp.llama_log_callback(lambda *_: None)
    llama_cpp.llama_log_set(callback, ctypes.c_void_p(0))
    bandwidth = read_bandwidth(args.threads)
    if not args.json:
        print(f"plain read, {args.threads} threads: {bandwidth / 1e9:.1f} GB/s")
    for path in args.models:
        result = measure(path, args)
        result["read_bytes_per_second"] = bandwidth
        if args.json:
            print(json.dumps(result))
            continue
        print(f"{result['model']}  {result['bytes'] / 1e6:.0f} MB")
        for name in ("llama.cpp", "ours"):
            r = result[name]
            cells = [
                f"{n}: {ms:.2f}" + (f" ({r['ratio'][n]:.2f})" if n in r["ratio"] else "") for n, ms in r["ms"].items()
            ]
            print(f"  {name:10}", "  ".join(cells), f" [samples {'; '.join(r['samples'].values())}]")
        ratios = [f"{n}: {result['llama.cpp']['ms'][n] / result['ours']['ms'][n]:.2f}" for n in result["ours"]["ms"]]
        print(
            f"  {'gain':10}",
            "  ".join(ratios),
            f" {result['bytes'] / result['ours']['ms']['1'] / 1e6:.1f} GB/s at n = 1",
        )


if __name__ == "__main__":
    main()
