"""Random drafts written with gguf-py, for what no oracle covers. Shapes are in NumPy order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import ArrayLike, NDArray
from quantise import quantise

F32 = GGMLQuantizationType.F32
KEEPS_F32 = ("norm", ".bias", "attn_sinks", "layer_output_scale", "rope_freqs")


def craft(
    path: Path,
    *,
    seed: int = 0,
    H: int = 64,
    F: int = 96,
    nq: int = 4,
    nkv: int = 2,
    d: int = 16,
    L: int = 2,
    V: int = 96,
    Vd: int | None = None,
    R: int = 8,
    S: int = 5,
    m: int = 2,
    anchor_first: bool | None = True,
    markov: str | None = "vanilla",
    confidence: str | None = "markov",
    weight_type: GGMLQuantizationType = F32,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, ArrayLike] | None = None,
    drop: Iterable[str] = (),
) -> Path:
    """Write a self-contained random draft. `keys` ("dflash.…" short names) and `tensors` are added or replace; `drop`
    names tensors to leave out. confidence: "markov" (reads [h; e]), "hidden" (reads h) or None."""
    rng = np.random.default_rng(seed)

    def matrix(rows: int, columns: int, gain: float = 1.0) -> NDArray[np.float32]:
        return (gain * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm(n: int) -> NDArray[np.float32]:
        return (1.0 + 0.2 * rng.standard_normal(n)).astype(np.float32)

    n_rows = Vd or V
    w: dict[str, ArrayLike] = {
        "token_embd": matrix(V, H, np.sqrt(H)),
        "output": matrix(n_rows, H, 2.0),
        "output_norm": norm(H),
        "fc": matrix(H, m * H),
        "enc.output_norm": norm(H),
    }
    for il in range(L):
        w |= {
            f"blk.{il}.attn_norm": norm(H),
            f"blk.{il}.attn_q": matrix(nq * d, H),
            f"blk.{il}.attn_k": matrix(nkv * d, H),
            f"blk.{il}.attn_v": matrix(nkv * d, H),
            f"blk.{il}.attn_output": matrix(H, nq * d),
            f"blk.{il}.attn_q_norm": norm(d) * 1.5,
            f"blk.{il}.attn_k_norm": norm(d) * 1.5,
            f"blk.{il}.ffn_norm": norm(H),
            f"blk.{il}.ffn_gate": matrix(F, H),
            f"blk.{il}.ffn_up": matrix(F, H),
            f"blk.{il}.ffn_down": matrix(H, F),
        }
    if markov:
        w |= {"markov_w1": matrix(V, R, np.sqrt(R)), "markov_w2": matrix(n_rows, R, 1.5)}
    if markov == "gated":
        w |= {"markov_gate": matrix(R, H + R), "markov_gate.bias": 0.5 * norm(R)}
    if markov == "rnn":
        w |= {"markov_joint": matrix(3 * R, 2 * R + H), "markov_joint.bias": 0.5 * norm(3 * R)}
    if confidence:
        w |= {"conf_proj": matrix(1, H + R if confidence == "markov" else H), "conf_proj.bias": norm(1)}
    if Vd:
        w["d2t"] = np.sort(rng.permutation(V)[:Vd]).astype(np.int64)
    w |= tensors or {}
    for name in drop:
        del w[name]

    settings: dict[str, Any] = {
        "block_count": L,
        "context_length": 4096,
        "embedding_length": H,
        "feed_forward_length": F,
        "attention.head_count": nq,
        "attention.head_count_kv": nkv,
        "attention.key_length": d,
        "attention.value_length": d,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "block_size": S,
        "target_layers": list(range(1, m + 1)),
    }
    if anchor_first is not None:
        settings["sample_from_anchor"] = anchor_first
    if markov not in (None, "vanilla"):
        settings["markov_head_type"] = markov
    settings |= keys or {}

    writer = GGUFWriter(path, "dflash")
    writer.add_uint32("tokenizer.ggml.mask_token_id", V - 1)
    for key, value in settings.items():
        _add_key(writer, f"dflash.{key}", value)
    for name, value in w.items():
        if name == "d2t":
            writer.add_tensor(name, np.asarray(value, dtype=np.int64))
            continue
        kind = F32 if any(part in name for part in KEEPS_F32) else weight_type
        data = quantise(np.asarray(value, dtype=np.float32), kind)
        writer.add_tensor(name if name.endswith(".bias") else f"{name}.weight", data, raw_dtype=kind)
    _write(writer)
    return path


def rewrite(source: Path, path: Path, *, drop_keys: Iterable[str] = (), keys: Mapping[str, Any] | None = None) -> Path:
    """Copy a draft file without some "dflash.…" keys (short names), or with others."""
    reader = GGUFReader(source)
    gone = {f"dflash.{key}" for key in (*drop_keys, *(keys or {}))}
    writer = GGUFWriter(path, "dflash")
    for name, f in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture" or name in gone:
            continue
        sub_type = f.types[1] if f.types[0] == GGUFValueType.ARRAY else None
        writer.add_key_value(name, f.contents(), f.types[0], sub_type)
    for key, value in (keys or {}).items():
        _add_key(writer, f"dflash.{key}", value)
    for t in reader.tensors:
        writer.add_tensor(t.name, np.asarray(t.data), raw_dtype=t.tensor_type)
    _write(writer)
    return path


def features(n: int, width: int, seed: int = 1) -> NDArray[np.float32]:
    """Random target features (n, m*H)."""
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


def _add_key(writer: GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, list(value))


def _write(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
