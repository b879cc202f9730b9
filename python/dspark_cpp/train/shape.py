"""The sizes of a draft: chosen for a target, read from a draft's GGUF file, or written as speculators' config.

Letters in shape comments of this package: S sequences, T context positions, A anchors, B slots of a block, H hidden
size, V the target's vocabulary, D rows of the draft's head, R Markov rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gguf import TokenType

from ..convert.gguf_file import GGUFFile
from ..errors import FileError, FormatError, MismatchError
from .recipe import Recipe

__all__ = [
    "Shape",
    "check_target",
    "choose_mask_token",
    "default_taps",
    "draft_shape",
    "shape_for_target",
    "speculators_config",
]

#: metadata and tensors of drafts that the training does not know; it would silently train another model
_UNKNOWN_KEYS = (
    "dflash.attention.sliding_window",
    "dflash.attention.scale",
    "dflash.attention.value_scale",
    "dflash.attention.value_norm",
    "dflash.embedding_scale",
    "dflash.logit_scale",
    "dflash.final_logit_softcapping",
    "dflash.rope.scaling.type",
    "dflash.rope.dimension_sections",
    "dflash.rope.dimension_count",
    "dflash.selector_rank",
    "dflash.hyper_connection.count",
)
_UNKNOWN_TENSORS = (
    "attn_sinks",
    "post_attention_norm",
    "post_ffw_norm",
    "layer_output_scale",
    "rope_freqs",
    "token_embd",
)


@dataclass(frozen=True)
class Shape:
    """Sizes of one draft with a Qwen3-style backbone; full attention, no biases."""

    n_embd: int
    n_layer: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_ff: int
    n_vocab: int  # of the target
    n_vocab_draft: int  # rows of the draft's head; n_vocab: the target's head, which is not trained
    taps: tuple[int, ...]  # layers of the target whose inputs are its features
    block_size: int
    sample_from_anchor: bool
    mask_token_id: int
    markov: str | None  # vanilla, gated, rnn
    markov_rank: int  # 0 without
    confidence: bool
    rope_base: float
    rms_eps: float
    context_length: int

    @property
    def own_head(self) -> bool:
        """Whether the draft has a head of its own."""
        return self.n_vocab_draft < self.n_vocab

    @property
    def first_slot(self) -> int:
        """The first slot that predicts."""
        return 0 if self.sample_from_anchor else 1

    @property
    def n_draft(self) -> int:
        """Tokens that one block drafts."""
        return self.block_size - self.first_slot


def default_taps(n_layer: int) -> tuple[int, ...]:
    """Inputs of an early, the middle and a late layer, as speculators and EAGLE-3 take them; fewer of a tiny target."""
    return tuple(sorted({min(2, n_layer - 1), n_layer // 2, max(n_layer - 3, 1)}))


def _number(file: GGUFFile, key: str, default: Any = None) -> Any:
    """A number; of a list with one value per layer the last, since the draft takes after the last layers."""
    found = file.metadata.get(key)
    value = default if found is None else found.value
    if isinstance(value, list) and value:
        value = value[-1]
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise FileError(f"{file.path}: key {key} is {found!r}, but a number is needed")
    return value


def _token_count(file: GGUFFile) -> int:
    tokens = file.metadata.get("tokenizer.ggml.tokens")
    if tokens is None or not isinstance(tokens.value, list):
        raise FormatError(f"{file.path}: tokenizer.ggml.tokens is missing")
    return len(tokens.value)


def choose_mask_token(file: GGUFFile, used: np.ndarray[Any, Any]) -> int:
    """The token whose embedding fills the slots that have none: one that the target's tokenizer calls mask, or the
    first that the data (boolean `used`, (V,)) never has, unused ones before special ones before others.

    Raises: FormatError where the data has every token.
    """
    named = file.metadata.get("tokenizer.ggml.mask_token_id")
    if named is not None and isinstance(named.value, int) and 0 <= named.value < len(used):
        return named.value
    types = file.metadata.get("tokenizer.ggml.token_type")
    kinds = np.asarray(types.value if types is not None else np.full(len(used), int(TokenType.NORMAL)))
    ends = [file.get_int(f"tokenizer.ggml.{name}_token_id", -1) for name in ("bos", "eos", "eot", "padding", "unknown")]
    free = ~used
    free[[i for i in ends if 0 <= i < len(free)]] = False
    for kind in (TokenType.UNUSED, TokenType.CONTROL, None):
        ids = np.flatnonzero(free & (kinds == int(kind)) if kind is not None else free)
        if len(ids):
            return int(ids[0])
    raise FormatError(f"{file.path}: the data has every token of the vocabulary, so that none is left as mask")


def shape_for_target(file: GGUFFile, recipe: Recipe, taps: tuple[int, ...], mask_token_id: int) -> Shape:
    """A new draft's sizes: the target's own, with the recipe's choices."""
    arch = file.get_text("general.architecture")
    n_embd, n_head = (int(_number(file, f"{arch}.{key}")) for key in ("embedding_length", "attention.head_count"))
    n_vocab = _token_count(file)
    markov = None if recipe.markov == "none" else recipe.markov
    return Shape(
        n_embd=n_embd,
        n_layer=recipe.n_layer,
        n_head=n_head,
        n_head_kv=int(_number(file, f"{arch}.attention.head_count_kv", n_head)),
        head_dim=int(_number(file, f"{arch}.attention.key_length", n_embd // n_head)),
        n_ff=int(_number(file, f"{arch}.feed_forward_length")),
        n_vocab=n_vocab,
        n_vocab_draft=recipe.n_vocab if 0 < recipe.n_vocab < n_vocab else n_vocab,
        taps=taps,
        block_size=recipe.block_size,
        sample_from_anchor=recipe.layout == "anchor",
        mask_token_id=mask_token_id,
        markov=markov,
        markov_rank=recipe.markov_rank if markov else 0,
        confidence=recipe.confidence,
        rope_base=float(_number(file, f"{arch}.rope.freq_base", 10000.0)),
        rms_eps=float(_number(file, f"{arch}.attention.layer_norm_rms_epsilon", 1e-6)),
        context_length=int(_number(file, f"{arch}.context_length")),
    )


def draft_shape(file: GGUFFile) -> Shape:
    """The sizes of an existing draft.

    Raises: FormatError for a draft with parts that the training does not know. FileError: A size is missing.
    """
    if file.get_text("general.architecture") != "dflash":
        raise FormatError(f"{file.path}: general.architecture is not 'dflash'; this is no draft")
    odd = [key for key in _UNKNOWN_KEYS if key in file.metadata]
    odd += [name for name in file.tensors if any(part in name for part in _UNKNOWN_TENSORS)]
    if (file.get_text("dflash.hidden_activation") or "silu") != "silu":
        odd.append("dflash.hidden_activation")
    if odd:
        raise FormatError(f"{file.path}: a draft with {odd[0]} cannot be trained on")
    causal = file.metadata.get("dflash.attention.causal")
    if causal is not None and causal.value:
        raise FormatError(f"{file.path}: a draft whose blocks are causal cannot be trained on")
    taps = file.metadata.get("dflash.target_layers")
    if taps is None or not isinstance(taps.value, list):
        raise FileError(f"{file.path}: key dflash.target_layers is missing")
    anchor = file.metadata.get("dflash.sample_from_anchor")
    w1, d2t = file.tensors.get("markov_w1.weight"), file.tensors.get("d2t")
    n_vocab = _token_count(file)
    n_head = int(_number(file, "dflash.attention.head_count"))
    n_embd = int(_number(file, "dflash.embedding_length"))
    return Shape(
        n_embd=n_embd,
        n_layer=int(_number(file, "dflash.block_count")),
        n_head=n_head,
        n_head_kv=int(_number(file, "dflash.attention.head_count_kv", n_head)),
        head_dim=int(_number(file, "dflash.attention.key_length", n_embd // n_head)),
        n_ff=int(_number(file, "dflash.feed_forward_length")),
        n_vocab=n_vocab,
        n_vocab_draft=d2t.shape[0] if d2t is not None else n_vocab,
        taps=tuple(taps.value),
        block_size=int(_number(file, "dflash.block_size")),
        sample_from_anchor=bool(anchor.value) if anchor is not None else w1 is not None,
        mask_token_id=int(_number(file, "tokenizer.ggml.mask_token_id")),
        markov=(file.get_text("dflash.markov_head_type") or "vanilla") if w1 is not None else None,
        markov_rank=w1.shape[1] if w1 is not None else 0,
        confidence="conf_proj.weight" in file.tensors,
        rope_base=float(_number(file, "dflash.rope.freq_base", 10000.0)),
        rms_eps=float(_number(file, "dflash.attention.layer_norm_rms_epsilon")),
        context_length=int(_number(file, "dflash.context_length")),
    )


def check_target(shape: Shape, file: GGUFFile) -> None:
    """Raises: MismatchError: The draft is for a target of other sizes."""
    arch = file.get_text("general.architecture")
    for what, seen, wanted in (
        ("a hidden size", int(_number(file, f"{arch}.embedding_length")), shape.n_embd),
        ("a vocabulary", _token_count(file), shape.n_vocab),
    ):
        if seen != wanted:
            raise MismatchError(f"{file.path}: the target has {what} of {seen}, but the draft needs {wanted}")


def speculators_config(shape: Shape, verifier: str, verifier_architecture: str) -> dict[str, Any]:
    """config.json of speculators 0.9.0 for a draft of this shape."""
    return {
        "architectures": ["DSparkDraftModel"],
        "speculators_model_type": "dspark",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "dspark",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": shape.n_draft,
                    "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {"name_or_path": verifier, "architectures": [verifier_architecture]},
        },
        "aux_hidden_state_layer_ids": list(shape.taps),
        "block_size": shape.block_size,
        "draft_vocab_size": shape.n_vocab_draft,
        "dtype": "bfloat16",
        "enable_confidence_head": shape.confidence,
        "confidence_head_with_markov": shape.confidence and shape.markov is not None,
        "markov_head_type": shape.markov or "vanilla",
        "markov_rank": shape.markov_rank,
        "mask_token_id": shape.mask_token_id,
        "sample_from_anchor": shape.sample_from_anchor,
        "sliding_window_non_causal": False,
        "target_hidden_size": None,
        "tie_word_embeddings": False,
        "transformer_layer_config": {
            "model_type": "qwen3",
            "attention_bias": False,
            "attention_dropout": 0.0,
            "head_dim": shape.head_dim,
            "hidden_act": "silu",
            "hidden_size": shape.n_embd,
            "initializer_range": 0.02,
            "intermediate_size": shape.n_ff,
            "layer_types": ["full_attention"] * shape.n_layer,
            "max_position_embeddings": shape.context_length,
            "max_window_layers": shape.n_layer,
            "num_attention_heads": shape.n_head,
            "num_hidden_layers": shape.n_layer,
            "num_key_value_heads": shape.n_head_kv,
            "rms_norm_eps": shape.rms_eps,
            "rope_parameters": {"rope_theta": shape.rope_base, "rope_type": "default"},
            "sliding_window": None,
            "tie_word_embeddings": False,
            "use_cache": True,
            "use_sliding_window": False,
            "vocab_size": shape.n_vocab,
        },
    }
