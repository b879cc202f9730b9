"""The tensors: what each is called in the checkpoint and in the GGUF file, and what shape it must have.

Torch shapes are (rows, columns). Source: llama.cpp's conversion/qwen.py for the GGUF names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import FormatError
from ..normal_form import Markov
from ..safetensors_file import StoredWeight
from ..weights import BF16, PermutedWeight, Weight
from .source import Sizes, Source

__all__ = ["Mapped", "qwen3_layer", "root_tensors", "take_weights"]

_FLOATS = (np.dtype("<f4"), np.dtype("<f2"), np.dtype("<f8"), BF16)


@dataclass(frozen=True)
class Mapped:
    """One tensor: its names in the checkpoint (first is canonical), its GGUF name, its shape."""

    names: tuple[str, ...]
    gguf: str
    shape: tuple[int, ...]
    optional: bool = False


def qwen3_layer(s: Sizes, i: int) -> Iterator[Mapped]:
    """The tensors of one Qwen3-style layer."""
    p, b = f"layers.{i}.", f"blk.{i}."
    q, kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    yield Mapped((p + "input_layernorm.weight",), b + "attn_norm.weight", (s.n_embd,))
    yield Mapped((p + "mlp.down_proj.weight",), b + "ffn_down.weight", (s.n_embd, s.n_ff))
    yield Mapped((p + "mlp.gate_proj.weight",), b + "ffn_gate.weight", (s.n_ff, s.n_embd))
    yield Mapped((p + "mlp.up_proj.weight",), b + "ffn_up.weight", (s.n_ff, s.n_embd))
    yield Mapped((p + "post_attention_layernorm.weight",), b + "ffn_norm.weight", (s.n_embd,))
    yield Mapped((p + "self_attn.k_norm.weight",), b + "attn_k_norm.weight", (s.head_dim,))
    yield Mapped((p + "self_attn.k_proj.weight",), b + "attn_k.weight", (kv, s.n_embd))
    yield Mapped((p + "self_attn.o_proj.weight",), b + "attn_output.weight", (s.n_embd, q))
    yield Mapped((p + "self_attn.q_norm.weight",), b + "attn_q_norm.weight", (s.head_dim,))
    yield Mapped((p + "self_attn.q_proj.weight",), b + "attn_q.weight", (q, s.n_embd))
    yield Mapped((p + "self_attn.v_proj.weight",), b + "attn_v.weight", (kv, s.n_embd))
    sinks = tuple(p + "self_attn." + n + end for n in ("sinks", "attention_sink_bias") for end in ("", ".weight"))
    yield Mapped(sinks, b + "attn_sinks.weight", (s.n_head,), optional=True)


def root_tensors(
    s: Sizes, n_taps: int, n_draft: int, markov: Markov | None, confidence: str | None
) -> Iterator[Mapped]:
    """The tensors outside the layers, but for the embedding and the head."""
    yield Mapped(("fc.weight",), "fc.weight", (s.n_embd, n_taps * s.n_embd))
    yield Mapped(("hidden_norm.weight",), "enc.output_norm.weight", (s.n_embd,))
    yield Mapped(("norm.weight",), "output_norm.weight", (s.n_embd,))
    rank = markov.rank if markov else 0
    if markov:
        yield Mapped(("markov_head.markov_w1.weight",), "markov_w1.weight", (s.n_vocab, rank))
        yield Mapped(("markov_head.markov_w2.weight",), "markov_w2.weight", (n_draft, rank))
    if markov and markov.kind == "gated":
        yield Mapped(("markov_head.gate_proj.weight",), "markov_gate.weight", (rank, s.n_embd + rank))
        yield Mapped(("markov_head.gate_proj.bias",), "markov_gate.bias", (rank,))
    if markov and markov.kind == "rnn":
        yield Mapped(("markov_head.joint_proj.weight",), "markov_joint.weight", (3 * rank, 2 * rank + s.n_embd))
        yield Mapped(("markov_head.joint_proj.bias",), "markov_joint.bias", (3 * rank,))
    if confidence:
        width = s.n_embd + (rank if confidence == "hidden+markov" else 0)
        yield Mapped(("confidence_head.proj.weight", "confidence_proj.weight"), "conf_proj.weight", (1, width))
        yield Mapped(("confidence_head.proj.bias", "confidence_proj.bias"), "conf_proj.bias", (1,), optional=True)


# Present in some exports and without use at run time: training copies, masks, buffers that are recomputed.
_DROPPED = re.compile(r"^(t2d|d2t|verifier_.*|.*rotary_emb\.inv_freq)$")


def take_weights(
    src: Source, s: Sizes, n_draft: int, table: Iterable[Mapped]
) -> tuple[dict[str, Weight], Weight | None, Weight | None]:
    """Every tensor of the checkpoint under its GGUF name, and the embedding (V, H) and head (Vd, H) where shipped.

    Raises: FormatError, by name, for a tensor that is missing, of another shape or type, or without use.
    """
    left = {name: w for name, w in src.tensors.items() if not _DROPPED.match(name)}
    weights: dict[str, Weight] = {}
    neox = src.config.flag("rope_is_neox_style") is not False
    for entry in table:
        weight = _take(src, left, entry)
        if weight is None:
            continue
        if not neox and re.search(r"attn_(q|k)(_norm)?\.weight$", entry.gguf):
            weights[entry.gguf] = PermutedWeight(weight, s.head_dim)
        else:
            weights[entry.gguf] = weight
    if not neox:
        src.notes.append("rope_is_neox_style is false: rows of q and k reordered from interleaved pairs to halves")
    embeddings = _take(src, left, Mapped(("embed_tokens.weight",), "token_embd.weight", (s.n_vocab, s.n_embd), True))
    if src.config.flag("has_embed_tokens") is False:
        embeddings = None
    head = _take(src, left, Mapped(("lm_head.weight",), "output.weight", (n_draft, s.n_embd), True))
    if left:
        raise _unexpected(src, s, sorted(left))
    if head is None and n_draft < s.n_vocab:
        raise FormatError(
            f"{src.checkpoint.folder}: tensor lm_head.weight is missing; a draft with a reduced vocabulary "
            f"({n_draft} of {s.n_vocab}) must ship its head"
        )
    return weights, embeddings, head


def _take(src: Source, left: dict[str, StoredWeight], entry: Mapped) -> StoredWeight | None:
    present = [name for name in entry.names if name in left]
    if not present:
        if entry.optional:
            return None
        raise FormatError(f"{src.checkpoint.folder}: tensor {entry.names[0]} is missing")
    weight = left.pop(present[0])
    if weight.shape != entry.shape:
        raise FormatError(
            f"{weight.file.path}: tensor {weight.name} has shape {list(weight.shape)}, "
            f"but {list(entry.shape)} is needed{_shape_hint(entry)}"
        )
    if weight.dtype not in _FLOATS:
        raise FormatError(
            f"{weight.file.path}: tensor {weight.name} is {weight.dtype_name}, but F32, F16 or BF16 is needed "
            "(quantised checkpoints are not dequantised here)"
        )
    return weight


def _shape_hint(entry: Mapped) -> str:
    if entry.gguf == "fc.weight":
        n_taps = entry.shape[1] // entry.shape[0]
        return f" (hidden_size x {n_taps} target layer ids); the list of layer ids is likely wrong"
    if entry.gguf in ("markov_w1.weight", "markov_w2.weight"):
        return " (w1 has one row per target token, w2 one per draft token, both markov_rank columns)"
    return ""


def _unexpected(src: Source, s: Sizes, names: list[str]) -> FormatError:
    name = names[0]
    stored = src.tensors[name].name
    layer = re.match(r"layers\.(\d+)\.", name)
    if layer and int(layer.group(1)) >= s.n_layer:
        why = f"but num_hidden_layers is {s.n_layer}"
    elif name.endswith("_proj.bias") and ".self_attn." in name:
        why = "but attention biases are not supported"
    elif name.startswith("markov_head."):
        why = "which the declared Markov head does not have (markov_rank, markov_head_type)"
    elif "weight_scale" in name or name.endswith((".scale", ".scales", ".qweight", ".qzeros")):
        why = "which belongs to a quantised checkpoint; use the unquantised export"
    else:
        why = "which has no place in this kind of draft"
    more = f" (and {len(names) - 1} more)" if len(names) > 1 else ""
    return FormatError(f"{src.checkpoint.folder}: unexpected tensor {stored}, {why}{more}")
