"""DeepSpec's Qwen3 drafts: flat config, ids of layer outputs at top level, copies of the target's embedding and head.

Its `dflash_*_block7` baselines are the same class with markov_rank 0: anchor-first without a Markov head.
Source: DeepSpec, deepspec/models (Qwen3DSparkModel).
"""

from __future__ import annotations

from ..checkpoint import Checkpoint
from ..fields.source import Source
from ..normal_form import Draft
from .qwen3_backbone import Rules, read_qwen3_draft

NAME = "deepspec"
ARCHITECTURES = ("Qwen3DSparkModel",)

RULES = Rules(NAME, True, "DeepSpec drafts are anchor-first", window_origin="query")


def matches(checkpoint: Checkpoint) -> bool:
    """Whether this is a DeepSpec Qwen3 export."""
    return checkpoint.architecture in ARCHITECTURES


def read(src: Source) -> Draft:
    """Read the draft.

    Raises: FormatError where a layer slides: DeepSpec trains with full attention only, so no rule is known for it.
    """
    draft = read_qwen3_draft(src, RULES)
    if draft.window is not None:
        raise src.config.wrong("layer_types", "sliding_attention", "full_attention in a DeepSpec draft")
    return draft
