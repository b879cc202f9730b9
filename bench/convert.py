"""What converting costs: time and peak memory for a synthetic checkpoint, against a plain copy of its bytes.

The checkpoint (random bf16 weights of a DeepSpec Qwen3-8B draft's shapes, as many layers as the size asks for) and a
target without weights are made in a temporary folder and deleted again; with the output that takes twice the size
(three times for f32). Copy and conversion alternate; each starts with the checkpoint dropped from the page cache and
ends when the bytes are on the disk. Shown are best and worst of the runs, and the ratio of the best ones.

The conversion reads everything twice (once for the checkpoint's hash), checks it for NaN and writes it, in a process of
its own, whose peak memory is the kernel's count, mapped file pages included.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGUFWriter

N_VOCAB, RANK, BLOCK, TAPS = 151936, 256, 7, [0, 8, 17, 26, 34]
CHUNK = 16 << 20


def shapes(n_embd: int, n_layer: int) -> dict[str, tuple[int, ...]]:
    """The tensors of a DeepSpec Qwen3 draft, without embedding and head."""
    head_dim, n_ff = 128, 3 * n_embd
    out: dict[str, tuple[int, ...]] = {
        "fc.weight": (n_embd, len(TAPS) * n_embd),
        "hidden_norm.weight": (n_embd,),
        "norm.weight": (n_embd,),
        "markov_head.markov_w1.weight": (N_VOCAB, RANK),
        "markov_head.markov_w2.weight": (N_VOCAB, RANK),
        "confidence_head.proj.weight": (1, n_embd + RANK),
        "confidence_head.proj.bias": (1,),
    }
    for i in range(n_layer):
        p = f"layers.{i}."
        out |= {
            p + "input_layernorm.weight": (n_embd,),
            p + "post_attention_layernorm.weight": (n_embd,),
            p + "self_attn.q_proj.weight": (n_embd, n_embd),
            p + "self_attn.k_proj.weight": (n_embd // 4, n_embd),
            p + "self_attn.v_proj.weight": (n_embd // 4, n_embd),
            p + "self_attn.o_proj.weight": (n_embd, n_embd),
            p + "self_attn.q_norm.weight": (head_dim,),
            p + "self_attn.k_norm.weight": (head_dim,),
            p + "mlp.gate_proj.weight": (n_ff, n_embd),
            p + "mlp.up_proj.weight": (n_ff, n_embd),
            p + "mlp.down_proj.weight": (n_embd, n_ff),
        }
    return out


def n_bytes(tensors: dict[str, tuple[int, ...]]) -> int:
    return sum(2 * int(np.prod(shape)) for shape in tensors.values())


def choose(size: int) -> tuple[int, dict[str, tuple[int, ...]]]:
    """(n_embd, tensors) whose size is nearest to the one asked for."""
    n_embd = 4096 if size >= 1 << 30 else 1024
    fixed = n_bytes(shapes(n_embd, 0))
    n_layer = max(1, round((size - fixed) / (n_bytes(shapes(n_embd, 1)) - fixed)))
    return n_embd, shapes(n_embd, n_layer)


def make_checkpoint(folder: Path, n_embd: int, tensors: dict[str, tuple[int, ...]]) -> Path:
    folder.mkdir()
    n_layer = sum(name.endswith(".input_layernorm.weight") for name in tensors)
    config = {
        "architectures": ["Qwen3DSparkModel"],
        "model_type": "qwen3",
        "hidden_size": n_embd,
        "intermediate_size": 3 * n_embd,
        "num_hidden_layers": n_layer,
        "num_attention_heads": n_embd // 128,
        "num_key_value_heads": n_embd // 512,
        "head_dim": 128,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
        "max_position_embeddings": 40960,
        "vocab_size": N_VOCAB,
        "target_layer_ids": TAPS,
        "block_size": BLOCK,
        "mask_token_id": N_VOCAB - 1,
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
    }
    (folder / "config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for name, shape in tensors.items():
        n = 2 * int(np.prod(shape))
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [at, at + n]}
        at += n
    text = json.dumps(header).encode()
    # bf16 numbers of magnitude 2^-8 to 1 from random bits; one piece serves again, shifted, so that blocks differ
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 1 << 16, (CHUNK + 8192) // 2, dtype=np.uint16)
    piece = ((bits & 0x83FF) | 0x3C00).tobytes()
    with open(folder / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text)
        while at > 0:
            start = 2 * int(rng.integers(4096))
            at -= f.write(piece[start : start + min(CHUNK, at)])
        flush(f)
    return folder


def make_target(path: Path, n_embd: int) -> Path:
    writer = GGUFWriter(path, "qwen3")
    writer.add_block_count(36)
    writer.add_embedding_length(n_embd)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"token{i}" for i in range(N_VOCAB)])
    writer.add_token_types([1] * N_VOCAB)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def flush(f: BinaryIO) -> None:
    f.flush()
    os.fsync(f.fileno())


def drop_from_cache(path: Path) -> None:
    with open(path, "rb") as f:
        os.fsync(f.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def copy(source: Path, out: Path) -> float:
    """Seconds to read and write every byte."""
    drop_from_cache(source)
    start = time.perf_counter()
    with open(source, "rb", buffering=0) as f, open(out, "wb", buffering=0) as g:
        while part := f.read(CHUNK):
            g.write(part)
        flush(g)
    return time.perf_counter() - start


def peak_memory() -> int:
    """Bytes of this process at most so far. ru_maxrss on Linux begins with the parent's, so /proc is asked there."""
    try:
        status = Path("/proc/self/status").read_text()
        return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def converted_here(checkpoint: str, target: str, out: str, outtype: str) -> None:
    """The child process: convert, and print what it took."""
    from dspark_cpp.convert import convert_checkpoint

    idle = peak_memory()
    start, cpu = time.perf_counter(), time.process_time()
    convert_checkpoint(checkpoint, target, out, outtype=outtype)
    with open(out, "r+b") as f:
        flush(f)
    seconds, cpu = time.perf_counter() - start, time.process_time() - cpu
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu, "idle_bytes": idle, "peak_bytes": peak_memory()}))


def measure(folder: Path, size: int, outtypes: list[str], n_repeat: int) -> list[dict[str, Any]]:
    n_embd, tensors = choose(size)
    checkpoint = make_checkpoint(folder / "checkpoint", n_embd, tensors)
    target = make_target(folder / "target.gguf", n_embd)
    source, out = checkpoint / "model.safetensors", folder / "out.gguf"
    rows: list[dict[str, Any]] = []
    for outtype in outtypes:
        copies, runs = [], []
        for _ in range(n_repeat):
            copies.append(copy(source, out))
            out.unlink()
            drop_from_cache(source)
            argv = [sys.executable, __file__, "--convert", *map(str, (checkpoint, target, out)), outtype]
            done = subprocess.run(argv, stdout=subprocess.PIPE, check=True)
            runs.append(json.loads(done.stdout))
            written = out.stat().st_size
            out.unlink()
        best = min(runs, key=lambda run: run["seconds"])
        rows.append(
            {
                "outtype": outtype,
                "bytes_read": source.stat().st_size,
                "bytes_written": written,
                "copy_seconds": min(copies),
                "copy_seconds_worst": max(copies),
                **best,
                "seconds_worst": max(run["seconds"] for run in runs),
                "peak_bytes": max(run["peak_bytes"] for run in runs),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gb", type=float, default=3.0, help="size of the checkpoint in GB (default: 3; 0.3 is quick)")
    parser.add_argument("--outtype", default="auto,q8_0", help="comma separated (default: auto,q8_0)")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each (default: 3)")
    parser.add_argument("--folder", type=Path, help="where to make the files; default: the system's temporary folder")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--convert", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.convert:
        converted_here(*args.convert)
        return
    with tempfile.TemporaryDirectory(dir=args.folder, prefix="dspark-convert-") as folder:
        rows = measure(Path(folder), round(args.gb * 1e9), args.outtype.split(","), max(1, args.repeat))
    if args.json:
        print(json.dumps(rows))
        return
    for row in rows:
        n_read, n_written = row["bytes_read"], row["bytes_written"]
        ratio = row["seconds"] / row["copy_seconds"]
        print(
            f"{row['outtype']:5} {n_read / 1e9:.2f} GB -> {n_written / 1e9:.2f} GB: "
            f"{row['seconds']:.1f} to {row['seconds_worst']:.1f} s ({row['cpu_seconds']:.1f} s CPU), "
            f"plain copy {row['copy_seconds']:.1f} to {row['copy_seconds_worst']:.1f} s, ratio {ratio:.2f}; "
            f"peak memory {row['peak_bytes'] / 1e6:.0f} MB ({row['idle_bytes'] / 1e6:.0f} MB before converting)"
        )


if __name__ == "__main__":
    main()
