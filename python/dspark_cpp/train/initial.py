"""Where a draft starts: at the target's own last layers and head, or at an existing draft.

A layer of the draft gets the matrices and norms of one of the target's last layers where they have its shapes, `fc`
passes the last tapped layer through, and the head's rows are the target's: so an untrained draft already is a shortcut
through the target. Everything comes from the GGUF files, dequantised.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..convert.gguf_file import GGUFFile
from ..convert.weights import PermutedWeight, Weight, as_f32
from ..errors import FormatError, MismatchError
from .model import Draft, init_weights
from .shape import Shape

__all__ = ["draft_from_draft", "draft_from_target"]

#: targets whose files have rotary pairs side by side, not as halves; elsewhere a wrong order is only a worse start
_INTERLEAVED = ("llama", "deci", "baichuan", "starcoder", "internlm2", "minicpm", "granite", "command-r", "olmo")

_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_WHOLE = {
    "fc.weight": "fc.weight",
    "hidden_norm.weight": "enc.output_norm.weight",
    "norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
    "markov_head.markov_w1.weight": "markov_w1.weight",
    "markov_head.markov_w2.weight": "markov_w2.weight",
    "markov_head.gate_proj.weight": "markov_gate.weight",
    "markov_head.gate_proj.bias": "markov_gate.bias",
    "markov_head.joint_proj.weight": "markov_joint.weight",
    "markov_head.joint_proj.bias": "markov_joint.bias",
    "confidence_head.proj.weight": "conf_proj.weight",
    "confidence_head.proj.bias": "conf_proj.bias",
}


def gguf_name(parameter: str) -> str:
    """The GGUF name of a parameter: layers.0.mlp.up_proj.weight is blk.0.ffn_up.weight."""
    if parameter.startswith("layers."):
        _, layer, inner = parameter.split(".", 2)
        return f"blk.{layer}.{_LAYER[inner.removesuffix('.weight')]}.weight"
    return _WHOLE[parameter]


def _read(weight: Weight) -> Tensor:
    """A whole tensor as float32, a part at a time."""
    parts = [np.array(as_f32(chunk)) for chunk in weight.chunks()]
    return torch.from_numpy(np.concatenate(parts))


def _target_tables(target: GGUFFile, shape: Shape) -> tuple[Tensor, Weight]:
    """The target's embeddings (V, H) and its head, which may be the same tensor."""
    embeddings = target.tensors.get("token_embd.weight")
    if embeddings is None or embeddings.shape != (shape.n_vocab, shape.n_embd):
        seen = "missing" if embeddings is None else f"of shape {list(embeddings.shape)}"
        raise MismatchError(
            f"{target.path}: token_embd.weight is {seen}, but {[shape.n_vocab, shape.n_embd]} is needed"
        )
    return _read(embeddings), target.tensors.get("output.weight", embeddings)


def draft_from_target(target: GGUFFile, shape: Shape, tokens: np.ndarray, seed: int) -> Draft:
    """A new draft; tokens (D,) are the target ids of its head's rows, ascending.

    Raises: MismatchError where the target's tables do not have the shape's sizes.
    """
    embeddings, head = _target_tables(target, shape)
    model = Draft(shape, torch.from_numpy(np.asarray(tokens, np.int64)), embeddings)
    init_weights(model, seed)
    arch = target.get_text("general.architecture") or ""
    n_target = target.get_int(f"{arch}.block_count") - target.get_int(f"{arch}.nextn_predict_layers", 0)
    first = max(0, n_target - shape.n_layer)

    def source(name: str) -> Weight | None:
        weight: Weight | None = target.tensors.get(name)
        rotated = name.rpartition(".")[0].rpartition(".")[2] in ("attn_q", "attn_k")
        if weight is not None and rotated and arch in _INTERLEAVED and shape.head_dim % 2 == 0:
            return PermutedWeight(weight, shape.head_dim)
        return weight

    with torch.no_grad():
        for name, p in model.named_parameters():
            theirs: Weight | None = None
            if name.startswith("layers."):
                _, layer, inner = name.split(".", 2)
                theirs = source(f"blk.{min(first + int(layer), n_target - 1)}.{_LAYER[inner[:-7]]}.weight")
            elif name == "norm.weight":
                theirs = source("output_norm.weight")
            elif name == "hidden_norm.weight":
                # the context takes the place of a layer's normed input
                theirs = source(f"blk.{first}.attn_norm.weight")
            if theirs is not None and theirs.shape == tuple(p.shape):
                p.copy_(_read(theirs))
        rows = _read(head)
        model.lm_head.weight.copy_(rows[model.token_of])
        model.fc.weight.zero_()
        model.fc.weight[:, -shape.n_embd :] = torch.eye(shape.n_embd)
        if model.markov_head is not None:
            model.markov_head.markov_w2.weight.zero_()
    return model


def draft_from_draft(draft: GGUFFile, target: GGUFFile, shape: Shape) -> Draft:
    """An existing draft with the target's embeddings; `shape` is draft_shape() of its file.

    Raises: MismatchError where the target's tables do not suit; FormatError where a tensor is missing or of another
    shape.
    """
    embeddings, head = _target_tables(target, shape)
    d2t = draft.tensors.get("d2t")
    tokens = torch.from_numpy(np.array(d2t.whole(), np.int64)) if d2t is not None else torch.arange(shape.n_vocab)
    if len(tokens) and not (int(tokens.min()) >= 0 and int(tokens.max()) < shape.n_vocab):
        raise FormatError(f"{draft.path}: d2t has ids outside of the vocabulary of {shape.n_vocab}")
    model = Draft(shape, tokens, embeddings)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name == "embed_tokens.weight":
                continue
            stored = gguf_name(name)
            weight: Weight | None = draft.tensors.get(stored)
            if name == "lm_head.weight" and weight is None and not shape.own_head:
                weight = head
            if name == "confidence_head.proj.bias" and weight is None:
                continue  # which is a bias of 0
            if weight is None:
                raise FormatError(f"{draft.path}: tensor {stored} is missing")
            values = _read(weight).reshape(p.shape) if weight.n_elements == p.numel() else None
            if values is None:
                raise FormatError(
                    f"{draft.path}: tensor {stored} has shape {list(weight.shape)}, but {list(p.shape)} is needed"
                )
            p.copy_(values)
    return model
