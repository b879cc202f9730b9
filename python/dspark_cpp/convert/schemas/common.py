"""What the schemas share: reading one aspect of a draft each, into the normal form.

A schema file chooses among these and adds what is its own. Torch shapes are (rows, columns).
Source: specification tables 2 and 3 of the checkpoint formats; llama.cpp's conversion/qwen.py for the GGUF names.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import ArgumentError, FormatError, MismatchError
from ..checkpoint import Checkpoint
from ..config import Config
from ..normal_form import LayerIds, Layout, Markov, Rope, Window
from ..safetensors_file import StoredWeight
from ..target import Target
from ..weights import BF16, PermutedWeight, Weight

__all__ = [
    "Source",
    "Sizes",
    "Mapped",
    "read_sizes",
    "read_rope",
    "read_layer_ids",
    "read_layout",
    "read_mask_token",
    "read_window",
    "read_heads",
    "read_draft_vocabulary",
    "take_weights",
    "qwen3_layer",
    "root_tensors",
]

BLOCK_SIZE = ("block_size", "dflash_config.block_size", "dspark_config.block_size")
MASK_TOKEN = ("mask_token_id", "dflash_config.mask_token_id", "dspark_config.mask_token_id")
OUTPUT_IDS = ("target_layer_ids", "dflash_config.target_layer_ids", "dspark_config.target_layer_ids")
INPUT_IDS = (
    "aux_hidden_state_layer_ids",
    "eagle_aux_hidden_state_layer_ids",
    "dflash_config.aux_hidden_state_layer_ids",
    "dspark_config.aux_hidden_state_layer_ids",
)
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_pytorch_tanh"}
_FLOATS = (np.dtype("<f4"), np.dtype("<f2"), np.dtype("<f8"), BF16)


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
    """Sizes of a draft, named as in docs/FORMAT.md."""

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
        raise FormatError(
            f"{cfg.where}: num_attention_heads {n_head} is not a multiple of {n_head_kv_key} {n_head_kv}"
        )
    head_dim = cfg.optional_integer(head_dim_key, least=1)
    if head_dim is None:
        if n_embd % n_head:
            raise FormatError(f"{cfg.where}: {head_dim_key} is missing and hidden_size {n_embd} / {n_head} is not whole")
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


# --- rotary embedding -------------------------------------------------------------------------------------------------


def _rope_table(cfg: Config, layer_type: str | None) -> dict[str, Any]:
    """The rope settings as one flat object, whichever of the two spellings the config uses."""
    parameters, legacy = cfg.table("rope_parameters"), cfg.table("rope_scaling")
    top = {key: cfg.get(key) for key in ("rope_theta", "partial_rotary_factor") if cfg.has(key)}
    if parameters is not None and any(isinstance(v, dict) for v in parameters.values()):
        top = {}  # it may hold the value of another kind of layer
        by_type = {k: v for k, v in parameters.items() if isinstance(v, dict)}
        if layer_type in by_type:
            parameters = by_type[layer_type]  # type: ignore[index]
        elif all(v == next(iter(by_type.values())) for v in by_type.values()):
            parameters = next(iter(by_type.values()))
        else:
            raise cfg.wrong("rope_parameters", parameters, "one setting for all layers")
    merged: dict[str, Any] = {}
    where: dict[str, str] = {}
    tables = (("rope_parameters", parameters), ("rope_scaling", legacy), ("", top))
    for name, table in tables:
        for key, value in (table or {}).items():
            key = "rope_type" if key == "type" else key
            if value is None:
                continue
            if key in merged and merged[key] != value:
                raise FormatError(
                    f"{cfg.where}: {where[key]}.{key} is {merged[key]!r} but {name + '.' if name else ''}{key} is "
                    f"{value!r}; they must agree"
                )
            if key not in merged:
                merged[key], where[key] = value, name
    return merged


def read_rope(src: Source, head_dim: int, layer_type: str | None = None) -> Rope:
    """The draft's rotary embedding.

    Raises: FormatError for an unknown kind or a value outside its range.
    Source: transformers' modeling_rope_utils for the kinds; llama.cpp's conversion/llama.py for llama3's divisors.
    """
    where = src.config.where
    table = Config(_rope_table(src.config, layer_type), where=f"{where}: rope_parameters")
    kind = table.text("rope_type") or "default"
    base = table.number("rope_theta")
    fraction = table.optional_number("partial_rotary_factor")
    if kind == "proportional" and fraction is None:
        fraction = 0.25  # Gemma4TextConfig's default
    if fraction is not None and fraction > 1:
        raise table.wrong("partial_rotary_factor", fraction, "a number in (0, 1]")
    n_rot = None
    if fraction is not None and fraction < 1:
        n_rot = int(head_dim * fraction)
        if n_rot < 2 or n_rot % 2 or n_rot != head_dim * fraction:
            raise FormatError(
                f"{where}: partial_rotary_factor {fraction} of head_dim {head_dim} gives {head_dim * fraction:g} rotated "
                "dimensions, but an even whole number is needed"
            )
    if kind in ("default", "mrope", "none"):
        return Rope(base, n_rot=n_rot)
    if kind == "linear":
        return Rope(base, n_rot=n_rot, scaling="linear", factor=table.number("factor"))
    if kind == "yarn":
        return _read_yarn(table, base, n_rot)
    if kind == "llama3":
        return Rope(base, n_rot=n_rot, divisors=_llama3_divisors(table, base, head_dim))
    if kind == "proportional":
        # The unrotated dimensions stay in place: their divisor is so large that the angle is 0.
        half = (n_rot or head_dim) // 2
        divisors = np.array([1.0] * half + [1e30] * (head_dim // 2 - half), np.float32)
        return Rope(base, n_rot=head_dim, divisors=divisors)
    raise table.wrong("rope_type", kind, "one of default, linear, yarn, llama3, proportional")


def _read_yarn(table: Config, base: float, n_rot: int | None) -> Rope:
    factor = table.number("factor")
    attention = table.optional_number("attention_factor", "attn_factor")
    usual = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    if attention is not None and abs(attention - usual) > 1e-6:
        # llama.cpp multiplies its own factor of `usual` in; what another value would come to there is not settled.
        raise table.wrong("attention_factor", attention, f"{usual:.6g} (YaRN's own value for factor {factor:g})")
    for key in ("mscale", "mscale_all_dim"):
        if table.has(key):
            raise table.wrong(key, table.get(key), "no such key (DeepSeek's YaRN is not supported)")
    extra = {"extrapolation_factor": "ext_factor", "beta_fast": "beta_fast", "beta_slow": "beta_slow"}
    yarn = {gguf: table.number(key) for key, gguf in extra.items() if table.has(key)}
    original = table.integer("original_max_position_embeddings", least=1)
    return Rope(base, n_rot=n_rot, scaling="yarn", factor=factor, original_context=original, yarn=yarn)


def _llama3_divisors(table: Config, base: float, head_dim: int) -> NDArray[np.float32]:
    factor = table.number("factor")
    low, high = table.number("low_freq_factor"), table.number("high_freq_factor")
    context = table.integer("original_max_position_embeddings", least=1)
    if high <= low:
        raise table.wrong("high_freq_factor", high, f"a number above low_freq_factor {low:g}")
    wavelengths = 2 * np.pi * np.float64(base) ** (np.arange(0, head_dim, 2) / head_dim)
    smooth = np.clip((context / wavelengths - low) / (high - low), 0.0, 1.0)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


# --- layer ids, layout, mask token ------------------------------------------------------------------------------------


def read_layer_ids(src: Source) -> LayerIds:
    """The tapped target layers as inputs-of-layer, in the order given.

    `target_layer_ids` name outputs (+1), `aux_hidden_state_layer_ids` inputs (+0).

    Raises: FormatError for missing, conflicting, repeated or unsorted ids; MismatchError for ids beyond the target.
    """
    cfg, n = src.config, src.target.n_layer
    outputs, inputs = cfg.integers(*OUTPUT_IDS), cfg.integers(*INPUT_IDS)
    if outputs is None and inputs is None:
        raise cfg.missing(*OUTPUT_IDS, *INPUT_IDS)
    if outputs is not None and inputs is not None and [i + 1 for i in outputs[1]] != inputs[1]:
        raise FormatError(
            f"{cfg.where}: {outputs[0]} {outputs[1]} (outputs of layers) and {inputs[0]} {inputs[1]} (inputs of layers) "
            f"name different layers; the second must be the first plus 1"
        )
    key, ids = inputs if inputs is not None else outputs  # type: ignore[misc]
    shift = 0 if inputs is not None else 1
    kind = "input" if inputs is not None else "output"
    if not ids:
        raise cfg.wrong(key, ids, "a list with at least one layer id")
    if any(b <= a for a, b in zip(ids, ids[1:], strict=False)):
        raise cfg.wrong(key, ids, "a strictly increasing list (columns of fc.weight follow its order)")
    taps = [i + shift for i in ids]
    for written, tap in zip(ids, taps, strict=True):
        if tap == n:
            raise MismatchError(
                f"{cfg.where}: {key} has {written}, the output of the target's last layer; that is ambiguous (before or "
                f"after the final norm) and not supported: ids are {kind}s of layers, at most {n - 1 - shift} "
                f"for a target of {n} layers"
            )
        if not 0 <= tap < n:
            raise MismatchError(
                f"{cfg.where}: {key} has {written}, but the target has {n} layers: "
                f"target_layer_ids (outputs) may be -1 to {n - 2}, aux_hidden_state_layer_ids (inputs) 0 to {n - 1}"
            )
    return LayerIds(taps, key, ids)


def read_layout(src: Source, block_size: int, default: bool, because: str) -> Layout:
    """Whether every slot predicts (anchor-first) or slot 0 predicts nothing (1+N).

    The caller's choice wins, then the config's flag, then `default`, the schema's rule.

    Raises: FormatError where the flag is not a boolean, where the block is too short for 1+N, or where
    speculative_tokens says otherwise.
    """
    cfg = src.config
    flag = cfg.flag("sample_from_anchor", "dflash_config.sample_from_anchor", "dspark_config.sample_from_anchor")
    if src.layout is not None:
        if src.layout not in ("anchor", "bonus"):
            raise ArgumentError(f"layout is {src.layout!r}, but 'anchor' or 'bonus' is needed")
        layout = Layout(src.layout == "anchor", "asked for by the caller")
        if flag is not None and flag != layout.sample_from_anchor:
            src.warnings.append(f"sample_from_anchor is {str(flag).lower()} in the config; the caller overrides it")
    elif flag is not None:
        layout = Layout(flag, "sample_from_anchor in the config")
    else:
        layout = Layout(default, f"no sample_from_anchor in the config: {because}")
    if not layout.sample_from_anchor and block_size < 2:
        raise cfg.wrong(BLOCK_SIZE[0], block_size, "an integer of at least 2 (in the 1+N layout slot 0 drafts nothing)")
    if src.layout is None:
        _check_speculative_tokens(src, layout, block_size)
    return layout


def _check_speculative_tokens(src: Source, layout: Layout, block_size: int) -> None:
    methods = src.config.get("speculators_config.proposal_methods")
    first = methods[0] if isinstance(methods, list) and methods and isinstance(methods[0], dict) else {}
    tokens = first.get("speculative_tokens")
    # A smaller number is a serving choice; only the other layout's own maximum contradicts.
    other = block_size - 1 if layout.sample_from_anchor else block_size
    if type(tokens) is int and (tokens == other or tokens > layout.max_draft(block_size)):
        name = "anchor-first" if layout.sample_from_anchor else "1+N"
        raise FormatError(
            f"{src.config.where}: speculative_tokens is {tokens}, but block_size {block_size} drafts "
            f"{layout.max_draft(block_size)} tokens in the {name} layout ({layout.reason}); "
            "say which one it is with --layout anchor or --layout bonus"
        )


def read_mask_token(src: Source, n_vocab: int) -> int:
    """The token of the slots after the anchor.

    Raises: FormatError where it is missing or outside the vocabulary.
    """
    cfg = src.config
    found = cfg.find(*MASK_TOKEN)
    if found is None:
        raise cfg.missing(*MASK_TOKEN)
    path, value = found
    if type(value) is not int or not 0 <= value < n_vocab:
        raise cfg.wrong(path, value, f"a token id from 0 to {n_vocab - 1}")
    for name in ("eos", "pad"):
        if src.target.special_ids.get(name) == value:
            src.warnings.append(
                f"{path} {value} is also the target's {name} token; some exporters fall back to it when the real mask "
                "token is unknown, and acceptance then suffers"
            )
    return value


# --- windows ----------------------------------------------------------------------------------------------------------


def read_window(src: Source, n_layer: int, origin: str, sliding_is_causal: bool) -> tuple[Window | None, list[bool]]:
    """The sliding window, and which layers are causal inside the block.

    Raises: FormatError where layer_types, use_sliding_window and the window do not fit together.
    Source: the masks of speculators (`origin` "anchor") and SpecForge ("query"); `is_causal` as vLLM reads it.
    """
    cfg = src.config
    kinds = cfg.strings("layer_types")
    if kinds is not None:
        if len(kinds) != n_layer:
            raise FormatError(f"{cfg.where}: layer_types has {len(kinds)} entries, but num_hidden_layers is {n_layer}")
        unknown = [k for k in kinds if k not in ("full_attention", "sliding_attention")]
        if unknown:
            raise cfg.wrong("layer_types", unknown[0], "full_attention or sliding_attention")
    slides = [k == "sliding_attention" for k in kinds or ["full_attention"] * n_layer]
    size_keys: tuple[str, ...] = ("sliding_window",)
    if cfg.flag("dflash_config.use_swa"):
        slides, size_keys = [True] * n_layer, ("dflash_config.swa_window_size", "sliding_window")
    elif any(slides) and cfg.flag("use_sliding_window") is False:
        raise FormatError(f"{cfg.where}: layer_types has sliding layers, but use_sliding_window is false")
    window = Window(cfg.integer(*size_keys, least=1), slides, origin) if any(slides) else None
    explicit = cfg.flag("is_causal", "dflash_config.causal", "dspark_config.causal")
    if explicit is not None:
        return window, [explicit] * n_layer
    return window, [s and sliding_is_causal for s in slides]


# --- vocabulary -------------------------------------------------------------------------------------------------------


def read_draft_vocabulary(src: Source, n_vocab: int) -> tuple[int, NDArray[np.int64] | None]:
    """The draft vocabulary's size and its table of absolute target ids, (Vd,) I64, or None for the full one.

    Checkpoints store offsets: target id = row + d2t[row].

    Raises: FormatError for a table that is missing, of another size, out of range or not one-to-one.
    """
    cfg = src.config
    table = src.tensors.get("d2t")
    declared = cfg.optional_integer("draft_vocab_size", "dflash_config.draft_vocab_size", least=1)
    if declared is not None and declared > n_vocab:
        raise FormatError(f"{cfg.where}: draft_vocab_size is {declared}, but vocab_size is only {n_vocab}")
    n_draft = declared
    if n_draft is None:
        n_draft = int(table.n_elements) if table is not None else n_vocab
        if table is not None:
            src.notes.append(f"draft_vocab_size is not given; {n_draft} is the length of d2t")
    if n_draft == n_vocab:
        if table is not None and not _is_zero(table):
            raise FormatError(f"{table.file.path}: d2t is present and not all zero, but the draft vocabulary is the full one")
        return n_vocab, None
    if table is None:
        raise FormatError(f"{cfg.where}: draft_vocab_size is {n_draft} of {n_vocab}, but there is no d2t table")
    path = table.file.path
    if table.shape != (n_draft,):
        raise FormatError(f"{path}: d2t has shape {list(table.shape)}, but draft_vocab_size is {n_draft}")
    if table.dtype.kind not in "iu" or table.dtype.itemsize < 4:
        raise FormatError(f"{path}: d2t is {table.dtype_name}, but integers (I64) are needed")
    offsets = [int(v) for v in table.whole()]  # Python integers: offset + row cannot wrap
    absolute = [row + offset for row, offset in enumerate(offsets)]
    for row, token in enumerate(absolute):
        if not 0 <= token < n_vocab:
            hint = ""
            if all(b > a for a, b in zip(offsets, offsets[1:], strict=False)) and 0 <= offsets[0] and offsets[-1] < n_vocab:
                hint = "; the table looks like absolute ids where offsets are expected"
            raise FormatError(
                f"{path}: d2t[{row}] is {offsets[row]}, which makes target id {token}, outside 0 to {n_vocab - 1}{hint}"
            )
    first: dict[int, int] = {}
    for row, token in enumerate(absolute):
        if first.setdefault(token, row) != row:
            raise FormatError(f"{path}: d2t rows {first[token]} and {row} both map to target id {token}")
    if not any(offsets):
        src.warnings.append(f"d2t is all zero: the draft vocabulary is taken to be the first {n_draft} target ids")
    _check_t2d(src, absolute, n_vocab)
    return n_draft, np.array(absolute, np.int64)


def _is_zero(table: Weight) -> bool:
    return not any(np.any(chunk) for chunk in table.chunks())


def _check_t2d(src: Source, absolute: list[int], n_vocab: int) -> None:
    """Compare t2d with d2t. It is not needed to run, so a disagreement of contents is only told."""
    mask = src.tensors.get("t2d")
    if mask is None:
        return
    if mask.shape != (n_vocab,):
        raise FormatError(f"{mask.file.path}: t2d has shape {list(mask.shape)}, but vocab_size is {n_vocab}")
    chosen = np.flatnonzero(mask.whole())
    if not np.array_equal(chosen, np.sort(np.array(absolute))):
        differing = len(set(chosen.tolist()) ^ set(absolute))
        src.warnings.append(
            f"t2d marks {len(chosen)} tokens and differs from d2t ({len(absolute)} rows) in {differing}; d2t is used"
        )


# --- heads ------------------------------------------------------------------------------------------------------------


def read_heads(src: Source, n_embd: int) -> tuple[Markov | None, str | None]:
    """Which heads the draft has: the Markov head, and the confidence head's input ("hidden" or "hidden+markov").

    Raises: FormatError where config and tensors disagree.
    """
    cfg, tensors = src.config, src.tensors
    markov = _read_markov(src)
    enabled = cfg.flag("enable_confidence_head", "dflash_config.enable_confidence_head", "dspark_config.enable_confidence_head")
    proj = tensors.get("confidence_head.proj.weight") or tensors.get("confidence_proj.weight")
    if proj is None:
        if enabled:
            raise FormatError(
                f"{src.checkpoint.folder}: enable_confidence_head is true, but tensor confidence_head.proj.weight is missing"
            )
        return markov, None
    if enabled is False:
        src.warnings.append("enable_confidence_head is false, but the checkpoint has a confidence head; it is kept")
    width = proj.shape[1] if len(proj.shape) == 2 else -1
    widths = {n_embd: "hidden"}
    if markov is not None:
        widths[n_embd + markov.rank] = "hidden+markov"
    with_markov = cfg.flag(
        "confidence_head_with_markov", "dflash_config.confidence_head_with_markov", "dspark_config.confidence_head_with_markov"
    )
    if with_markov and markov is None:
        raise FormatError(f"{cfg.where}: confidence_head_with_markov is true, but there is no Markov head")
    if with_markov is not None:
        widths = {w: kind for w, kind in widths.items() if (kind == "hidden+markov") == with_markov}
    if width not in widths or proj.shape[0] != 1:
        wanted = " or ".join(f"[1, {w}]" for w in widths)
        raise FormatError(
            f"{proj.file.path}: tensor {proj.name} has shape {list(proj.shape)}, but {wanted} is needed"
        )
    return markov, widths[width]


def _read_markov(src: Source) -> Markov | None:
    cfg = src.config
    found = cfg.find("markov_rank", "dflash_config.markov_rank", "dspark_config.markov_rank")
    w1 = src.tensors.get("markov_head.markov_w1.weight")
    if found is None:
        rank = w1.shape[1] if w1 is not None and len(w1.shape) == 2 else 0
    else:
        rank = cfg.integer(found[0], least=0)
    if rank == 0:
        return None
    if w1 is None:
        raise FormatError(
            f"{src.checkpoint.folder}: markov_rank is {rank}, but tensor markov_head.markov_w1.weight is missing"
        )
    keys = ("markov_head_type", "dflash_config.markov_head_type", "dspark_config.markov_head_type")
    kind = cfg.text(*keys) or "vanilla"
    if kind not in ("vanilla", "gated", "rnn"):
        raise cfg.wrong((cfg.find(*keys) or keys)[0], kind, "one of vanilla, gated, rnn")
    return Markov(kind, rank)


# --- tensors ----------------------------------------------------------------------------------------------------------


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


def root_tensors(s: Sizes, n_taps: int, n_draft: int, markov: Markov | None, confidence: str | None) -> Iterator[Mapped]:
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


def take_weights(src: Source, s: Sizes, n_draft: int, table: Iterable[Mapped]) -> tuple[dict[str, Weight], Weight | None, Weight | None]:
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
            f"{weight.file.path}: tensor {weight.name} has shape {list(weight.shape)}, but {list(entry.shape)} is needed"
            + _shape_hint(src, entry)
        )
    if weight.dtype not in _FLOATS:
        raise FormatError(
            f"{weight.file.path}: tensor {weight.name} is {weight.dtype_name}, but F32, F16 or BF16 is needed "
            "(quantised checkpoints are not dequantised here)"
        )
    return weight


def _shape_hint(src: Source, entry: Mapped) -> str:
    if entry.gguf == "fc.weight":
        return f" (hidden_size x {entry.shape[1] // entry.shape[0]} target layer ids); the list of layer ids is likely wrong"
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
