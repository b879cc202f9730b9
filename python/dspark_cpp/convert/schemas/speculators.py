"""speculators' exports: the backbone's config nested in `transformer_layer_config`, ids of layer inputs.

The backbone is Qwen3-style whatever the verifier is. LiquidAI's nested exports carry no `speculators_*` tags.
Source: speculators 0.9.0, models/dspark and models/dflash.
"""

from __future__ import annotations

from dataclasses import replace

from ...errors import FormatError
from ..checkpoint import Checkpoint
from ..config import Config
from ..fields.source import Source
from ..normal_form import Draft
from .qwen3_backbone import Rules, read_qwen3_draft

NAME = "speculators"
ARCHITECTURES = ("DSparkSpeculator", "DFlashSpeculator", "DSparkDraftModel", "DFlashDraftModel", "Lfm2DSparkDraftModel")
NESTED = "transformer_layer_config"

RULES = Rules(
    NAME,
    False,
    "speculators' exports without it were trained 1+N",
    window_origin="anchor",
)


def matches(checkpoint: Checkpoint) -> bool:
    """Whether the backbone's config is nested."""
    return checkpoint.config.has(NESTED)


def read(src: Source) -> Draft:
    """Read the draft; where both levels have a key, the nested one is used.

    Raises: FormatError where the backbone is of another kind.
    """
    nested = src.config.table(NESTED)
    assert nested is not None  # `matches`
    kind = nested.get("model_type", "qwen3")
    if kind != "qwen3":
        raise FormatError(f"{src.config.where}: {NESTED}.model_type is {kind!r}, but a DSpark backbone is 'qwen3'")
    merged = {**src.config.values, **{k: v for k, v in nested.items() if v is not None}}
    rules = replace(RULES, sliding_is_causal=not src.config.flag("sliding_window_non_causal"))
    return read_qwen3_draft(replace(src, config=Config(merged, where=src.config.where)), rules)
