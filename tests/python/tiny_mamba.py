"""A random Mamba of 320 tokens: a target whose whole memory is recurrent."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter
from gguf_edit import copy_tokenizer


def write_mamba(tokenizer: Path, out: Path) -> Path:
    """Writes it with the tokenizer of another file."""
    H, inner, state, rank, kernel, V = 64, 128, 8, 4, 4, 320
    rng = np.random.default_rng(1)
    w = GGUFWriter(out, "mamba")
    copy_tokenizer(tokenizer, w)
    w.add_block_count(2)
    w.add_context_length(512)
    w.add_embedding_length(H)
    w.add_feed_forward_length(0)
    w.add_head_count(0)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_vocab_size(V)
    w.add_ssm_conv_kernel(kernel)
    w.add_ssm_inner_size(inner)
    w.add_ssm_state_size(state)
    w.add_ssm_time_step_rank(rank)

    def add(name: str, *shape: int, scale: float = 1.0, offset: float = 0.0) -> None:
        w.add_tensor(name, (offset + scale * rng.standard_normal(shape)).astype(np.float32))

    add("token_embd.weight", V, H)
    add("output_norm.weight", H, scale=0.1, offset=1.0)
    for i in range(2):
        p = f"blk.{i}."
        add(p + "attn_norm.weight", H, scale=0.1, offset=1.0)
        add(p + "ssm_in.weight", 2 * inner, H, scale=H**-0.5)
        add(p + "ssm_conv1d.weight", inner, kernel, scale=0.5)
        add(p + "ssm_conv1d.bias", inner, scale=0.1)
        add(p + "ssm_x.weight", rank + 2 * state, inner, scale=inner**-0.5)
        add(p + "ssm_dt.weight", inner, rank, scale=0.5)
        add(p + "ssm_dt.bias", inner, scale=0.1)
        w.add_tensor(p + "ssm_a", -np.tile(np.arange(1, state + 1, dtype=np.float32), (inner, 1)))
        add(p + "ssm_d", inner, scale=0.1, offset=1.0)
        add(p + "ssm_out.weight", H, inner, scale=2 * inner**-0.5)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return out
