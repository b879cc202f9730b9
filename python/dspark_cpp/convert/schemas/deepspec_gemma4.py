"""DeepSpec's Gemma 4 drafts: four norms a layer, a layer scalar, V from K, proportional rope, scaled embeddings.

Source: DeepSpec, deepspec/models (Gemma4DSparkModel); llama.cpp's conversion/gemma.py for the GGUF names. Unlike that
converter, a softcap and separate V projections are written rather than refused.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ..checkpoint import Checkpoint
from ..fields.heads import read_heads
from ..fields.rope import read_rope
from ..fields.slots import read_layer_ids, read_layout, read_mask_token
from ..fields.source import Sizes, Source, read_activation, read_sizes
from ..fields.tensors import Mapped, root_tensors, take_weights
from ..fields.vocabulary import read_draft_vocabulary
from ..fields.window import read_window
from ..normal_form import Draft
from .qwen3_backbone import read_softcap

NAME = "deepspec-gemma4"
ARCHITECTURES = ("Gemma4DSparkModel",)


def matches(checkpoint: Checkpoint) -> bool:
    """Whether this is a DeepSpec Gemma 4 export."""
    return checkpoint.architecture in ARCHITECTURES


def _layer(s: Sizes, i: int, k_eq_v: bool) -> Iterator[Mapped]:
    p, b = f"layers.{i}.", f"blk.{i}."
    q, kv = s.n_head * s.head_dim, s.n_head_kv * s.head_dim
    scalar = (p + "layer_scalar", p + "layer_scalar.weight")
    yield Mapped((p + "input_layernorm.weight",), b + "attn_norm.weight", (s.n_embd,))
    yield Mapped(scalar, b + "layer_output_scale.weight", (1,))
    yield Mapped((p + "mlp.down_proj.weight",), b + "ffn_down.weight", (s.n_embd, s.n_ff))
    yield Mapped((p + "mlp.gate_proj.weight",), b + "ffn_gate.weight", (s.n_ff, s.n_embd))
    yield Mapped((p + "mlp.up_proj.weight",), b + "ffn_up.weight", (s.n_ff, s.n_embd))
    # Gemma's post norms act on the sublayer's output; Qwen's tensor of the same name is the norm before the FFN.
    yield Mapped((p + "post_attention_layernorm.weight",), b + "post_attention_norm.weight", (s.n_embd,))
    yield Mapped((p + "post_feedforward_layernorm.weight",), b + "post_ffw_norm.weight", (s.n_embd,))
    yield Mapped((p + "pre_feedforward_layernorm.weight",), b + "ffn_norm.weight", (s.n_embd,))
    yield Mapped((p + "self_attn.k_norm.weight",), b + "attn_k_norm.weight", (s.head_dim,))
    yield Mapped((p + "self_attn.k_proj.weight",), b + "attn_k.weight", (kv, s.n_embd))
    yield Mapped((p + "self_attn.o_proj.weight",), b + "attn_output.weight", (s.n_embd, q))
    yield Mapped((p + "self_attn.q_norm.weight",), b + "attn_q_norm.weight", (s.head_dim,))
    yield Mapped((p + "self_attn.q_proj.weight",), b + "attn_q.weight", (q, s.n_embd))
    if not k_eq_v:
        yield Mapped((p + "self_attn.v_proj.weight",), b + "attn_v.weight", (kv, s.n_embd))


def read(src: Source) -> Draft:
    """Read the draft.

    Raises: FormatError for mixture-of-experts, per-layer inputs and other parts of Gemma 4 that drafts do not have.
    """
    cfg = src.config
    for key in ("enable_moe_block", "use_double_wide_mlp"):
        if cfg.flag(key):
            raise cfg.wrong(key, True, "false")
    for key in ("hidden_size_per_layer_input", "num_kv_shared_layers"):
        if cfg.integer(key, least=0, default=0):
            raise cfg.wrong(key, cfg.get(key), "0")
    if not cfg.has("global_head_dim"):
        raise cfg.missing("global_head_dim")
    k_eq_v = bool(cfg.flag("attention_k_eq_v"))
    sizes = read_sizes(src, "global_head_dim", "num_global_key_value_heads" if k_eq_v else "num_key_value_heads")
    layout = read_layout(src, sizes.block_size, True, "DeepSpec drafts are anchor-first")
    mask_token_id = read_mask_token(src, sizes.n_vocab)
    layers = read_layer_ids(src)
    window, causal = read_window(src, sizes.n_layer, "query", True)
    if window is not None:
        raise cfg.wrong("layer_types", "sliding_attention", "full_attention in a DeepSpec draft")
    n_draft, d2t = read_draft_vocabulary(src, sizes.n_vocab)
    markov, confidence = read_heads(src, sizes.n_embd)
    if k_eq_v and "layers.0.self_attn.v_proj.weight" in src.tensors:
        raise cfg.wrong("attention_k_eq_v", True, "no tensor layers.0.self_attn.v_proj.weight, which is present,")
    table = list(root_tensors(sizes, len(layers.inputs), n_draft, markov, confidence))
    table += [entry for i in range(sizes.n_layer) for entry in _layer(sizes, i, k_eq_v)]
    weights, embeddings, head = take_weights(src, sizes, n_draft, table)
    return Draft(
        schema=NAME,
        n_layer=sizes.n_layer,
        n_embd=sizes.n_embd,
        n_ff=sizes.n_ff,
        n_head=sizes.n_head,
        n_head_kv=sizes.n_head_kv,
        head_dim=sizes.head_dim,
        n_vocab=sizes.n_vocab,
        n_vocab_draft=n_draft,
        context_length=sizes.context_length,
        rms_eps=sizes.rms_eps,
        rope=read_rope(src, sizes.head_dim, "full_attention"),
        block_size=sizes.block_size,
        layers=layers,
        mask_token_id=mask_token_id,
        layout=layout,
        hidden_activation=read_activation(cfg, default="gelu_pytorch_tanh"),
        markov=markov,
        confidence=confidence,
        causal=causal,
        window=None,
        weights=weights,
        d2t=d2t,
        embeddings=embeddings,
        head=head,
        attention_scale=1.0,
        embedding_scale=math.sqrt(sizes.n_embd),
        softcap=read_softcap(src),
        value_norm=not k_eq_v,
        notes=src.notes,
        warnings=src.warnings,
    )
