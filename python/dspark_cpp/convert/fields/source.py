"""A checkpoint that is being read, and the sizes of its draft, checked against each other and against the target."""

from __future__ import annotations

from dataclasses import dataclass, field

from ...errors import FormatError, MismatchError
from ..checkpoint import Checkpoint
from ..config import Config
from ..safetensors_file import StoredWeight
from ..target import Target

__all__ = ["BLOCK_SIZE", "Source", "Sizes", "read_sizes", "read_activation"]

BLOCK_SIZE = ("block_size", "dflash_config.block_size", "dspark_config.block_size")
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_pytorch_tanh"}


@dataclass
class Source:
    """One checkpoint being read: its merged config, its tensors, the target, and what is to be told to the user."""

    checkpoint: Checkpoint
    config: Config
    target: Target
    layout: str | None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def tensors(self) -> dict[str, StoredWeight]:
        """Tensors under plain names."""
        return self.checkpoint.tensors


@dataclass(frozen=True)
class Sizes:
    """Sizes of a draft, named as in docs/FILE_FORMAT.md."""

    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    context_length: int
    rms_eps: float
    block_size: int


def read_sizes(src: Source, head_dim_key: str = "head_dim", n_head_kv_key: str = "num_key_value_heads") -> Sizes:
    """The sizes of a draft, checked against each other and against the target.

    Raises: FormatError for a missing or impossible value; MismatchError where the target has other sizes.
    """
    cfg, target = src.config, src.target
    refuse_quantised(cfg)
    if cfg.flag("attention_bias"):
        raise cfg.wrong("attention_bias", True, "false (there is no place for attention biases in the draft format)")
    n_embd = cfg.integer("hidden_size", least=1)
    n_head = cfg.integer("num_attention_heads", least=1)
    n_head_kv = cfg.integer(n_head_kv_key, least=1)
    if n_head % n_head_kv:
        raise FormatError(f"{cfg.where}: num_attention_heads {n_head} is not a multiple of {n_head_kv_key} {n_head_kv}")
    head_dim = cfg.optional_integer(head_dim_key, least=1)
    if head_dim is None:
        if n_embd % n_head:
            raise FormatError(
                f"{cfg.where}: {head_dim_key} is missing and hidden_size {n_embd} / {n_head} is not whole"
            )
        head_dim = n_embd // n_head
    if head_dim % 2:
        raise cfg.wrong(head_dim_key, head_dim, "an even number (rotary pairs)")
    if target.hidden_size != n_embd:
        raise MismatchError(
            f"{cfg.where}: hidden_size is {n_embd}, but the target {target.path} has {target.hidden_size}; "
            "this draft is for another target"
        )
    target_hidden = cfg.optional_integer("target_hidden_size", least=1)
    if target_hidden is not None and target_hidden != target.hidden_size:
        raise MismatchError(
            f"{cfg.where}: target_hidden_size is {target_hidden}, but the target {target.path} has {target.hidden_size}"
        )
    n_vocab = cfg.integer("vocab_size", least=1)
    if target.n_vocab != n_vocab:
        raise MismatchError(
            f"{cfg.where}: vocab_size is {n_vocab}, but the target {target.path} has {target.n_vocab} tokens; "
            "this draft is for another target"
        )
    n_target_layers = cfg.optional_integer("num_target_layers", least=1)
    if n_target_layers is not None and n_target_layers != target.n_layer:
        raise MismatchError(
            f"{cfg.where}: num_target_layers is {n_target_layers}, but the target {target.path} has {target.n_layer}; "
            "this draft is for another target"
        )
    return Sizes(
        n_layer=cfg.integer("num_hidden_layers", least=1),
        n_embd=n_embd,
        n_ff=cfg.integer("intermediate_size", least=1),
        n_head=n_head,
        n_head_kv=n_head_kv,
        head_dim=head_dim,
        n_vocab=n_vocab,
        context_length=cfg.integer("max_position_embeddings", least=1),
        rms_eps=cfg.number("rms_norm_eps"),
        block_size=cfg.integer(*BLOCK_SIZE, least=1),
    )


def refuse_quantised(cfg: Config) -> None:
    """Refuse a checkpoint whose weights were quantised by its exporter.

    Raises: FormatError with the method's name.
    """
    for key in ("quantization_config", "compression_config"):
        table = cfg.table(key)
        if table:
            method = table.get("quant_method") or table.get("format") or table.get("quant_algo") or "an unnamed method"
            raise FormatError(
                f"{cfg.where}: {key} says that the weights are quantised by {method}, but float weights are needed; "
                "use the unquantised export"
            )


def read_activation(cfg: Config, default: str | None) -> str:
    """The gate's activation, under the name that the GGUF uses."""
    found = cfg.find("hidden_act", "hidden_activation")
    if found is None:
        if default is None:
            raise cfg.missing("hidden_act", "hidden_activation")
        return default
    path, value = found
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise cfg.wrong(path, value, f"one of {', '.join(_ACTIVATIONS)}")
    return _ACTIVATIONS[value]
