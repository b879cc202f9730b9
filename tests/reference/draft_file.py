"""Reading a draft file (docs/FILE_FORMAT.md) into float64 arrays and plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the draft, half-rotation (NeoX) pairs (j, j + n_rot/2)."""

    n_rot: int
    base: float
    divisors: Array | None = None  # (n_rot/2,) divides the frequencies
    scaling: str = "none"  # none, linear, yarn
    factor: float = 1.0
    n_ctx_orig: int = 0
    attn_factor: float | None = None  # yarn: None is 0.1 ln(factor) + 1
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    ext_factor: float = 1.0


@dataclass(frozen=True)
class Draft:
    """Settings and weights of one draft. Matrices are (rows out, columns in), tables (tokens, width)."""

    n_layer: int
    n_embd: int  # H
    n_head: int  # nq
    n_head_kv: int  # nkv
    d: int  # head size
    eps: float
    block_size: int  # S
    sample_from_anchor: bool
    mask_token: int
    rope: Rope
    attn_scale: float
    value_scale: float
    embedding_scale: float
    logit_scale: float
    softcap: float  # 0: none
    activation: str
    value_norm: bool
    window: int  # W, 0: none
    slides: tuple[bool, ...]  # per layer
    causal: tuple[bool, ...]  # per layer, inside the block
    window_origin: str  # "query" or "anchor"
    markov: str | None  # vanilla, gated, rnn
    d2t: NDArray[np.int64] | None  # (Vd,) absolute target ids
    confidence_temperature: Array | None  # (K,)
    weights: dict[str, Array] = field(repr=False)

    @property
    def first_slot(self) -> int:
        """The first slot that predicts."""
        return 0 if self.sample_from_anchor else 1

    def weight(self, name: str, layer: int | None = None) -> Array | None:
        return self.weights.get(name if layer is None else f"blk.{layer}.{name}")


def read_tensors(path: Path | str, names: set[str] | None = None) -> dict[str, Array]:
    """Tensors of a GGUF file by name without ".weight", dequantised; integers as they are."""
    tensors = {}
    for t in GGUFReader(path).tensors:
        name = t.name.removesuffix(".weight")
        if names is not None and name not in names:
            continue
        if t.tensor_type == GGMLQuantizationType.I64:
            tensors[name] = np.array(t.data, dtype=np.int64)
        else:
            shape = tuple(int(n) for n in reversed(t.shape))
            tensors[name] = np.asarray(dequantize(t.data, t.tensor_type), dtype=np.float64).reshape(shape)
    return tensors


def load_draft(path: Path | str, target: Path | str | None = None) -> Draft:
    """Read a draft; what it has not of its own, embedding and head, comes from the GGUF file `target`."""
    fields = GGUFReader(path).fields

    def get(key: str, default: Any = None) -> Any:
        return fields[key].contents() if key in fields else default

    def dflash(key: str, default: Any = None) -> Any:
        return get("dflash." + key, default)

    w = read_tensors(path)
    if target is not None:
        lent = read_tensors(target, {"token_embd", "output"})
        w.setdefault("token_embd", lent["token_embd"])
        # a tied target has no head of its own
        w.setdefault("output", lent.get("output", lent["token_embd"]))
    n_layer, n_head = dflash("block_count"), dflash("attention.head_count")
    d = dflash("attention.key_length", dflash("embedding_length") // n_head)
    d2t = w.pop("d2t", None)
    temperature = dflash("confidence_temperature")
    return Draft(
        n_layer=n_layer,
        n_embd=dflash("embedding_length"),
        n_head=n_head,
        n_head_kv=dflash("attention.head_count_kv"),
        d=d,
        eps=dflash("attention.layer_norm_rms_epsilon"),
        block_size=dflash("block_size"),
        sample_from_anchor=dflash("sample_from_anchor", "markov_w1" in w),
        mask_token=get("tokenizer.ggml.mask_token_id"),
        rope=Rope(
            n_rot=dflash("rope.dimension_count", d),
            base=dflash("rope.freq_base", 10000.0),
            divisors=w.pop("rope_freqs", None),
            scaling=dflash("rope.scaling.type", "none"),
            factor=dflash("rope.scaling.factor", 1.0),
            n_ctx_orig=dflash("rope.scaling.original_context_length", 0),
            attn_factor=dflash("rope.scaling.yarn_attn_factor"),
            beta_fast=dflash("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=dflash("rope.scaling.yarn_beta_slow", 1.0),
            ext_factor=dflash("rope.scaling.yarn_ext_factor", 1.0),
        ),
        attn_scale=dflash("attention.scale", 0.0) or 1.0 / np.sqrt(d),
        value_scale=dflash("attention.value_scale", 1.0),
        embedding_scale=dflash("embedding_scale", 1.0),
        logit_scale=dflash("logit_scale", 1.0),
        softcap=dflash("final_logit_softcapping", 0.0),
        activation=dflash("hidden_activation", "silu"),
        value_norm=dflash("attention.value_norm", "blk.0.attn_v" not in w),
        window=dflash("attention.sliding_window", 0),
        slides=tuple(dflash("attention.sliding_window_pattern", [False] * n_layer)),
        causal=tuple(dflash("attention.causal_pattern", [dflash("attention.causal", False)] * n_layer)),
        window_origin=dflash("attention.window_origin", "query"),
        markov=dflash("markov_head_type", "vanilla") if "markov_w1" in w else None,
        d2t=d2t,
        confidence_temperature=None if temperature is None else np.array(temperature),
        weights=w,
    )
