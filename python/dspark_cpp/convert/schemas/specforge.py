"""SpecForge's DSpark exports: flat Qwen3 keys plus `dflash_config`, without embedding and head.

Also LFM2 and Ling drafts, which use the same keys. Its objective trains every slot from the anchor on, although its own
generator reads slots 1 and up; measured, the anchor-first reading needs fewer steps.
Source: SpecForge, specforge/modeling/draft (DSparkDraftModel) and its training labels.
"""

from __future__ import annotations

from ..checkpoint import Checkpoint
from ..fields.source import Source
from ..normal_form import Draft
from .qwen3_backbone import Rules, read_qwen3_draft

NAME = "specforge"
ARCHITECTURES = ("DSparkDraftModel", "Qwen3DSparkModel", "Lfm2DSparkDraftModel", "LingDSparkModel")

RULES = Rules(NAME, True, "SpecForge trains its DSpark drafts anchor-first", window_origin="query")


def matches(checkpoint: Checkpoint) -> bool:
    """Whether this is a flat DSpark export; DeepSpec's has no `dflash_config`."""
    name = checkpoint.architecture
    if name == "Qwen3DSparkModel":
        return checkpoint.config.has("dflash_config")
    return name in ARCHITECTURES


def read(src: Source) -> Draft:
    """Read the draft."""
    return read_qwen3_draft(src, RULES)
