"""The one form that every checkpoint schema is brought into, and that the GGUF writer takes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .weights import Weight

__all__ = ["Rope", "Window", "Layout", "LayerIds", "Markov", "Draft"]


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of the draft; `divisors` (head_dim / 2,) divides the frequencies where given."""

    base: float
    n_rot: int | None = None
    scaling: str | None = None
    factor: float | None = None
    original_context: int | None = None
    yarn: dict[str, float] = field(default_factory=dict)
    divisors: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Window:
    """Sliding-window attention: which layers slide, and from where the window is counted."""

    size: int
    slides: list[bool]
    origin: str  # "query" or "anchor", see docs/FILE_FORMAT.md


@dataclass(frozen=True)
class Layout:
    """Which token a slot predicts, and how that was decided."""

    sample_from_anchor: bool
    reason: str

    def max_draft(self, block_size: int) -> int:
        """The most tokens that one block can draft."""
        return block_size if self.sample_from_anchor else block_size - 1


@dataclass(frozen=True)
class LayerIds:
    """Tapped target layers as inputs-of-layer, with the config's own words for them."""

    inputs: list[int]
    key: str
    as_written: list[int]


@dataclass(frozen=True)
class Markov:
    """The Markov head: `kind` is vanilla, gated or rnn."""

    kind: str
    rank: int


@dataclass
class Draft:
    """One draft, ready to be written. Sizes are named as in docs/FILE_FORMAT.md; `weights` has GGUF names."""

    schema: str
    n_layer: int
    n_embd: int
    n_ff: int
    n_head: int
    n_head_kv: int
    head_dim: int
    n_vocab: int
    n_vocab_draft: int
    context_length: int
    rms_eps: float
    rope: Rope
    block_size: int
    layers: LayerIds
    mask_token_id: int
    layout: Layout
    hidden_activation: str
    markov: Markov | None
    confidence: str | None  # None, "hidden" or "hidden+markov"
    causal: list[bool]
    window: Window | None
    weights: dict[str, Weight]
    d2t: NDArray[np.int64] | None
    embeddings: Weight | None = None
    head: Weight | None = None
    mask_row: NDArray[np.float32] | None = None
    attention_scale: float | None = None
    value_scale: float | None = None
    embedding_scale: float | None = None
    logit_scale: float | None = None
    softcap: float | None = None
    value_norm: bool = False
    verifier: str | None = None
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def family(self) -> str:
        """ "dspark" with a Markov head, "dflash" without."""
        return "dspark" if self.markov else "dflash"
