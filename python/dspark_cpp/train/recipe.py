"""Every choice of a training run, with its default; checked once, here."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from ..errors import ArgumentError

__all__ = ["MARKOV_KINDS", "Recipe"]

MARKOV_KINDS = ("none", "vanilla", "gated", "rnn")


@dataclass(frozen=True)
class Recipe:
    """How the draft is shaped and how it is trained.

    The shape (not used where an existing draft is trained on):

    * n_layer: Layers; they start from the target's last ones.
    * block_size: Slots of a block. layout: "anchor" (every slot predicts) or "bonus" (slot 0 does not).
    * n_vocab: Rows of the draft's own head, the tokens that the target writes most; 0: the target's whole head.
    * markov: Kind of the Markov head, markov_rank its width. confidence: Whether there is a confidence head.

    The training:

    * steps, or minutes of the clock where steps is 0: how long; the learning rate follows half a cosine over it.
    * sequences, anchors: Blocks of a step are drawn from so many sequences, and from each at so many positions.
    * learning_rate: Highest one, of matrices of the layers; weight_decay is on matrices only.
    * hard: Share of the target's likeliest token in the labels of the cross entropy, the rest is its distribution.
    * l1: Weight of the distance to the target's distribution. confidence_weight: of the confidence head's loss.
    * decay: Slot k weighs exp(-k / decay).
    * held_out: Share of the prompts that are kept for evaluation.
    * checkpoint_seconds: Time between checkpoints.

    Raises: ArgumentError: A value is outside its range.
    """

    n_layer: int = 2
    block_size: int = 6
    layout: str = "anchor"
    n_vocab: int = 8192
    markov: str = "vanilla"
    markov_rank: int = 64
    confidence: bool = True

    seed: int = 0
    steps: int = 0
    minutes: float = 45.0
    sequences: int = 8
    anchors: int = 32
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    hard: float = 0.5
    l1: float = 0.25
    confidence_weight: float = 0.2
    decay: float = 4.0
    held_out: float = 0.02
    checkpoint_seconds: float = 180.0

    def __post_init__(self) -> None:
        def need(name: str, ok: bool, wanted: str) -> None:
            if not ok:
                raise ArgumentError(f"{name} is {getattr(self, name)!r}, but {wanted} is needed")

        for field in fields(self):
            value = getattr(self, field.name)
            kinds: Any = {"int": int, "float": (int, float), "bool": bool, "str": str}[str(field.type)]
            number = not isinstance(value, bool) or field.type == "bool"
            need(field.name, isinstance(value, kinds) and number, f"a value of type {field.type}")
        need("n_layer", self.n_layer >= 1, "1 or more")
        need("layout", self.layout in ("anchor", "bonus"), "'anchor' or 'bonus'")
        least = 1 if self.layout == "anchor" else 2
        need("block_size", least <= self.block_size <= 64, f"{least} to 64")
        need("n_vocab", self.n_vocab >= 0, "0 or more")
        need("markov", self.markov in MARKOV_KINDS, f"one of {', '.join(MARKOV_KINDS)}")
        need("markov_rank", self.markov_rank >= 1, "1 or more")
        need("seed", 0 <= self.seed < 2**32, "0 to 2^32 - 1")
        need("steps", self.steps >= 0, "0 or more")
        need("minutes", self.minutes > 0, "more than 0")
        for name in ("sequences", "anchors"):
            need(name, getattr(self, name) >= 1, "1 or more")
        for name in ("learning_rate", "decay", "checkpoint_seconds"):
            need(name, getattr(self, name) > 0, "more than 0")
        for name in ("weight_decay", "l1", "confidence_weight"):
            need(name, getattr(self, name) >= 0, "0 or more")
        need("hard", 0 <= self.hard <= 1, "0 to 1")
        need("held_out", 0 <= self.held_out < 1, "0 to less than 1")
