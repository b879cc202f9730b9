"""Sliding windows and causality inside the block."""

from __future__ import annotations

from ...errors import FormatError
from ..normal_form import Window
from .source import Source

__all__ = ["read_window"]


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
