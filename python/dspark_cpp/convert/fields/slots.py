"""Which layers are tapped, which token a slot predicts, and which token fills the slots."""

from __future__ import annotations

from ...errors import FormatError, MismatchError
from ..normal_form import LayerIds, Layout
from .source import BLOCK_SIZE, Source

__all__ = ["INPUT_IDS", "OUTPUT_IDS", "read_layer_ids", "read_layout", "read_mask_token"]

MASK_TOKEN = ("mask_token_id", "dflash_config.mask_token_id", "dspark_config.mask_token_id")
OUTPUT_IDS = ("target_layer_ids", "dflash_config.target_layer_ids", "dspark_config.target_layer_ids")
INPUT_IDS = (
    "aux_hidden_state_layer_ids",
    "eagle_aux_hidden_state_layer_ids",
    "dflash_config.aux_hidden_state_layer_ids",
    "dspark_config.aux_hidden_state_layer_ids",
)


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
            f"{cfg.where}: {outputs[0]} {outputs[1]} (outputs of layers) and {inputs[0]} {inputs[1]} "
            "(inputs of layers) name different layers; the second must be the first plus 1"
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
                f"{cfg.where}: {key} has {written}, the output of the target's last layer; that is ambiguous "
                f"(before or after the final norm) and not supported: ids are {kind}s of layers, "
                f"at most {n - 1 - shift} for a target of {n} layers"
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
