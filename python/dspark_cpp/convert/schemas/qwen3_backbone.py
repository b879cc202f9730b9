"""A draft with the Qwen3-style backbone, which every schema but Gemma 4's shares; schemas differ in their rules."""

from __future__ import annotations

from dataclasses import dataclass

from ..fields.heads import read_heads
from ..fields.rope import read_rope
from ..fields.slots import read_layer_ids, read_layout, read_mask_token
from ..fields.source import Source, read_activation, read_sizes
from ..fields.tensors import qwen3_layer, root_tensors, take_weights
from ..fields.vocabulary import read_draft_vocabulary
from ..fields.window import read_window
from ..normal_form import Draft
from ..torch_pickle import read_mask_embedding

__all__ = ["Rules", "read_qwen3_draft"]


@dataclass(frozen=True)
class Rules:
    """What a schema means where its config is silent."""

    schema: str
    anchor_first: bool
    because: str
    window_origin: str
    sliding_is_causal: bool = True


def read_qwen3_draft(src: Source, rules: Rules) -> Draft:
    """Read a Qwen3-style draft into the normal form.

    Raises: FormatError or MismatchError, as the readers of `common`.
    """
    cfg = src.config
    sizes = read_sizes(src)
    layout = read_layout(src, sizes.block_size, rules.anchor_first, rules.because)
    mask_token_id = read_mask_token(src, sizes.n_vocab)
    layers = read_layer_ids(src)
    window, causal = read_window(src, sizes.n_layer, rules.window_origin, rules.sliding_is_causal)
    rope = read_rope(src, sizes.head_dim)
    activation = read_activation(cfg, default="silu")
    n_draft, d2t = read_draft_vocabulary(src, sizes.n_vocab)
    markov, confidence = read_heads(src, sizes.n_embd)
    table = list(root_tensors(sizes, len(layers.inputs), n_draft, markov, confidence))
    table += [entry for i in range(sizes.n_layer) for entry in qwen3_layer(sizes, i)]
    weights, embeddings, head = take_weights(src, sizes, n_draft, table)
    if cfg.flag("dflash_config.attention_sink_bias") and "blk.0.attn_sinks.weight" not in weights:
        raise cfg.wrong("dflash_config.attention_sink_bias", True, "a tensor layers.0.self_attn.attention_sink_bias")
    return Draft(
        schema=rules.schema,
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
        rope=rope,
        block_size=sizes.block_size,
        layers=layers,
        mask_token_id=mask_token_id,
        layout=layout,
        hidden_activation=activation,
        markov=markov,
        confidence=confidence,
        causal=causal,
        window=window,
        weights=weights,
        d2t=d2t,
        embeddings=embeddings,
        head=head,
        mask_row=read_mask_embedding(src.checkpoint.folder, mask_token_id, sizes.n_embd),
        value_scale=cfg.optional_number("dflash_config.attention_value_scale", "attention_value_scale", positive=False),
        embedding_scale=cfg.optional_number("dflash_config.input_embedding_scale", "input_embedding_scale"),
        logit_scale=cfg.optional_number("dflash_config.output_multiplier", "output_multiplier", positive=False),
        softcap=read_softcap(src),
        verifier=cfg.text("speculators_config.verifier.name_or_path"),
        notes=src.notes,
        warnings=src.warnings,
    )


def read_softcap(src: Source) -> float | None:
    """The softcap of the logits; 0 and null mean none."""
    keys = ("dflash_config.final_logit_softcapping", "final_logit_softcapping")
    found = src.config.find(*keys)
    return None if found is not None and found[1] == 0 else src.config.optional_number(*keys)
