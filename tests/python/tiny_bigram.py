"""A target and drafts of 320 tokens whose every distribution is known: logits come from a table of the last token."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf_edit import copy_tokenizer
from numpy.typing import NDArray

V = H = 320

#: the tokens that are ever written: bytes "a" to "f"
LIVE = tuple(range(97, 103))

Table = NDArray[np.float32]


def random_table(seed: int, spread: float = 1.5) -> Table:
    """Logits [last, next]: live tokens lead to live tokens."""
    rng = np.random.default_rng(seed)
    table = np.full((V, V), -40.0, np.float32)
    table[:, LIVE] = spread * rng.standard_normal((V, len(LIVE)))
    return table


def _write(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_target(tokenizer: Path, out: Path, table: Table) -> Path:
    """A Llama of one layer that adds nothing to the embedding, which is one-hot: the head is the table."""
    rng = np.random.default_rng(3)
    w = GGUFWriter(out, "llama")
    copy_tokenizer(tokenizer, w)
    w.add_block_count(1)
    w.add_context_length(4096)
    w.add_embedding_length(H)
    w.add_feed_forward_length(32)
    w.add_head_count(2)
    w.add_head_count_kv(1)
    w.add_key_length(16)
    w.add_value_length(16)
    w.add_rope_dimension_count(16)
    w.add_layer_norm_rms_eps(1e-9)
    w.add_vocab_size(V)

    def add(name: str, *shape: int, scale: float = 1.0) -> None:
        w.add_tensor(f"{name}.weight", (scale * rng.standard_normal(shape)).astype(np.float32))

    w.add_tensor("token_embd.weight", np.eye(V, H, dtype=np.float32))
    w.add_tensor("output_norm.weight", np.full(H, H**-0.5, np.float32))
    w.add_tensor("output.weight", np.ascontiguousarray(table.T))
    w.add_tensor("blk.0.attn_norm.weight", np.ones(H, np.float32))
    w.add_tensor("blk.0.ffn_norm.weight", np.ones(H, np.float32))
    for name, *shape in (
        ("attn_q", 32, H),
        ("attn_k", 16, H),
        ("attn_v", 16, H),
        ("ffn_gate", 32, H),
        ("ffn_up", 32, H),
    ):
        add(f"blk.0.{name}", *shape, scale=H**-0.5)
    for name, n in (("attn_output", 32), ("ffn_down", 32)):
        w.add_tensor(f"blk.0.{name}.weight", np.zeros((H, n), np.float32))
    _write(w)
    return out


def write_draft(
    out: Path,
    table: Table,
    *,
    block: int = 4,
    rows: Sequence[int] | None = None,
    confidence: NDArray[np.float32] | None = None,
) -> Path:
    """A draft whose Markov head is the table. rows: a reduced vocabulary; confidence: its logit after each token."""
    rng = np.random.default_rng(4)
    n_rows = V if rows is None else len(rows)
    head = table.T if rows is None else table.T[list(rows)]
    w = GGUFWriter(out, "dflash")
    w.add_uint32("tokenizer.ggml.mask_token_id", 258)
    for key, value in {
        "block_count": 1,
        "context_length": 4096,
        "embedding_length": H,
        "feed_forward_length": 32,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
        "attention.key_length": 16,
        "attention.value_length": 16,
        "block_size": block,
    }.items():
        w.add_uint32(f"dflash.{key}", value)
    w.add_float32("dflash.attention.layer_norm_rms_epsilon", 1e-6)
    w.add_array("dflash.target_layers", [0])
    w.add_bool("dflash.sample_from_anchor", True)

    def add(name: str, values: NDArray[np.float32]) -> None:
        w.add_tensor(f"{name}.weight", np.ascontiguousarray(values, np.float32))

    def noise(*shape: int) -> NDArray[np.float32]:
        return (rng.standard_normal(shape) * H**-0.5).astype(np.float32)

    add("token_embd", noise(V, H))
    add("output", np.zeros((n_rows, H), np.float32))  # the block has no say
    add("output_norm", np.ones(H, np.float32))
    add("fc", noise(H, H))
    add("enc.output_norm", np.ones(H, np.float32))
    for name in ("attn_norm", "ffn_norm"):
        add(f"blk.0.{name}", np.ones(H, np.float32))
    for name in ("attn_q_norm", "attn_k_norm"):
        add(f"blk.0.{name}", np.ones(16, np.float32))
    for name, *shape in (
        ("attn_q", 32, H), ("attn_k", 16, H), ("attn_v", 16, H), ("attn_output", H, 32),
        ("ffn_gate", 32, H), ("ffn_up", 32, H), ("ffn_down", H, 32),
    ):  # fmt: skip
        add(f"blk.0.{name}", noise(*shape))
    add("markov_w1", np.eye(V, dtype=np.float32))
    add("markov_w2", head)
    if confidence is not None:
        add("conf_proj", np.concatenate([np.zeros(H, np.float32), confidence])[None])
        w.add_tensor("conf_proj.bias", np.zeros(1, np.float32))
    if rows is not None:
        w.add_tensor("d2t", np.asarray(rows, np.int64))
    _write(w)
    return out


def law(
    table: Table, *, temp: float = 1.0, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> NDArray[np.float64]:
    """Probabilities [last, next] after the steps of llama.cpp's samplers, in the order of dspark_cpp.Sampler."""
    out = np.zeros(table.shape)
    for last, logits in enumerate(table.astype(np.float64)):
        order = np.argsort(-logits, kind="stable")
        kept = order[: top_k or None]
        p = np.exp(logits[kept] - logits[kept[0]])
        if top_p < 1:
            kept = kept[: int(np.searchsorted(np.cumsum(p / p.sum()), top_p)) + 1]
        kept = kept[logits[kept] >= logits[kept[0]] + (np.log(min_p) if min_p else -np.inf)]
        p = np.exp((logits[kept] - logits[kept[0]]) / temp)
        out[last, kept] = p / p.sum()
    return out
