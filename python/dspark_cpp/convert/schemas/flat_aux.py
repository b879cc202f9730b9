"""Flat exports with `aux_hidden_state_layer_ids` at top level: speculators' meaning without its nesting.

Source: llama.cpp's conversion/qwen.py (DSparkModel), which reads their missing `sample_from_anchor` as 1+N.
"""

from __future__ import annotations

from dataclasses import replace

from ..checkpoint import Checkpoint
from ..fields.slots import INPUT_IDS
from ..fields.source import Source
from ..normal_form import Draft
from .qwen3_backbone import Rules, read_qwen3_draft

NAME = "flat-aux"

RULES = Rules(
    NAME,
    False,
    "exports with aux_hidden_state_layer_ids were trained 1+N",
    window_origin="anchor",
)


def matches(checkpoint: Checkpoint) -> bool:
    """Whether ids of layer inputs stand at top level, and no ids of layer outputs."""
    return any(checkpoint.config.has(key) for key in INPUT_IDS)


def read(src: Source) -> Draft:
    """Read the draft."""
    return read_qwen3_draft(src, replace(RULES, sliding_is_causal=not src.config.flag("sliding_window_non_causal")))
