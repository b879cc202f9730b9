"""A random Qwen2-VL of 320 tokens, whose positions have four parts, and an image for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
from gguf import GGUFWriter
from gguf_edit import copy_tokenizer


def write_mrope(tokenizer: Path, out: Path) -> Path:
    """Writes it with the tokenizer of another file."""
    H, F, n_head, n_kv, head, V = 64, 96, 4, 2, 16, 320
    rng = np.random.default_rng(2)
    w = GGUFWriter(out, "qwen2vl")
    copy_tokenizer(tokenizer, w)
    w.add_block_count(3)
    w.add_context_length(512)
    w.add_embedding_length(H)
    w.add_feed_forward_length(F)
    w.add_head_count(n_head)
    w.add_head_count_kv(n_kv)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(1e4)
    w.add_rope_dimension_sections([2, 3, 3, 0])
    w.add_vocab_size(V)

    def add(name: str, *shape: int, scale: float = 1.0, offset: float = 0.0) -> None:
        w.add_tensor(name, (offset + scale * rng.standard_normal(shape)).astype(np.float32))

    add("token_embd.weight", V, H)
    add("output_norm.weight", H, scale=0.2, offset=1.0)
    add("output.weight", V, H, scale=2 * H**-0.5)
    for i in range(3):
        p = f"blk.{i}."
        add(p + "attn_norm.weight", H, scale=0.2, offset=1.0)
        add(p + "ffn_norm.weight", H, scale=0.2, offset=1.0)
        for part, rows in (("q", n_head * head), ("k", n_kv * head), ("v", n_kv * head)):
            add(f"{p}attn_{part}.weight", rows, H, scale=2 * H**-0.5)
            add(f"{p}attn_{part}.bias", rows, scale=0.1)
        add(p + "attn_output.weight", H, n_head * head, scale=2 * H**-0.5)
        add(p + "ffn_gate.weight", F, H, scale=2 * H**-0.5)
        add(p + "ffn_up.weight", F, H, scale=2 * H**-0.5)
        add(p + "ffn_down.weight", H, F, scale=2 * F**-0.5)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return out


def decode_image(llm: Any, width: int, height: int) -> None:
    """Decodes an image behind the sequence and assigns n_tokens, as llama_cpp's multimodal handlers do.

    All its rows stand at one position in time and on a grid in the other two; the next text stands behind the grid.
    """
    n, past = width * height, llm.n_tokens
    batch = llama_cpp.llama_batch_init(4 * n, llm.n_embd(), 1)  # places for the four parts of a position
    batch.n_tokens = n
    rows = np.random.default_rng(3).standard_normal((n, llm.n_embd())).astype(np.float32)
    np.ctypeslib.as_array(batch.embd, (n * llm.n_embd(),))[:] = rows.ravel()
    for i in range(n):
        batch.pos[i] = past
        batch.pos[n + i] = past + i // width
        batch.pos[2 * n + i] = past + i % width
        batch.pos[3 * n + i] = 0
        batch.n_seq_id[i], batch.logits[i] = 1, 0
        batch.seq_id[i][0] = 0
    assert llama_cpp.llama_decode(llm.ctx, batch) == 0
    llama_cpp.llama_batch_free(batch)
    llm.n_tokens = past + max(width, height)
