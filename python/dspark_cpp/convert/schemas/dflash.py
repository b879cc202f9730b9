"""z-lab's DFlash drafts, and SpecForge's of the same class: flat Qwen3 keys plus `dflash_config`, layout 1+N.

A side file `mask_embedding.pt` replaces the mask token's row of the input embedding.
Source: SpecForge, specforge/modeling/draft (DFlashDraftModel); llama.cpp's conversion/qwen.py (DFlashModel).
"""

from __future__ import annotations

from ..checkpoint import Checkpoint
from ..fields.source import Source
from ..normal_form import Draft
from .qwen3_backbone import Rules, read_qwen3_draft

NAME = "dflash"
ARCHITECTURES = ("DFlashDraftModel",)

RULES = Rules(NAME, False, "DFlash drafts are 1+N", window_origin="query")


def matches(checkpoint: Checkpoint) -> bool:
    """Whether this is a flat DFlash export."""
    return checkpoint.architecture in ARCHITECTURES


def read(src: Source) -> Draft:
    """Read the draft."""
    return read_qwen3_draft(src, RULES)
