"""The draft's rotary embedding."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from ..config import Config
from ..normal_form import Rope
from .source import Source

__all__ = ["read_rope"]


def _rope_table(cfg: Config, layer_type: str | None) -> dict[str, Any]:
    """The rope settings as one flat object, whichever of the two spellings the config uses."""
    parameters, legacy = cfg.table("rope_parameters"), cfg.table("rope_scaling")
    top = {key: cfg.get(key) for key in ("rope_theta", "partial_rotary_factor") if cfg.has(key)}
    if parameters is not None and any(isinstance(v, dict) for v in parameters.values()):
        top = {}  # it may hold the value of another kind of layer
        by_type = {k: v for k, v in parameters.items() if isinstance(v, dict)}
        if layer_type in by_type:
            parameters = by_type[layer_type]
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
                f"{where}: partial_rotary_factor {fraction} of head_dim {head_dim} gives {head_dim * fraction:g} "
                "rotated dimensions, but an even whole number is needed"
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
