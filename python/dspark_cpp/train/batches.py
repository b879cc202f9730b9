"""What a step is trained on: blocks at random positions of the responses, drawn as a function of seed and step alone.

So a resumed run sees what the uninterrupted one would have seen. Prompts, not sequences, are held out: two answers to
one question are much alike.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ArgumentError
from .losses import Labels
from .recipe import Recipe
from .shape import Shape
from .shards import Sample, ShardReader

__all__ = ["Batch", "Split", "collate", "count_tokens", "draw", "positions", "split"]


class Split(NamedTuple):
    """Numbers of the sequences to train on and of those that are held out."""

    training: NDArray[np.int64]
    held_out: NDArray[np.int64]


@dataclass(frozen=True)
class Batch:
    """S sequences and A anchors in each; N = S * A blocks, K slots that predict."""

    features: Tensor  # (S, T, taps * H) float16
    anchors: Tensor  # (S, A) positions
    anchor_ids: Tensor  # (S, A)
    previous: Tensor  # (N, K) the tokens before the predicted ones
    labels: Labels

    def to(self, device: torch.device) -> Batch:
        labels = Labels(*(x.to(device) for x in (self.labels.rows, self.labels.probs, self.labels.valid)))
        return Batch(
            self.features.to(device),
            self.anchors.to(device),
            self.anchor_ids.to(device),
            self.previous.to(device),
            labels,
        )


def positions(sample: Sample) -> NDArray[np.int64]:
    """Where an anchor may be: at a response token that another one follows."""
    return np.arange(sample.prompt_length, len(sample.tokens) - 1)


def split(reader: ShardReader, share: float, seed: int) -> Split:
    """All sequences with something to predict, by prompt into two parts; `share` of the prompts is held out.

    Raises: ArgumentError: Nothing to train on.
    """
    training: list[int] = []
    held_out: list[int] = []
    for i in range(len(reader)):
        sample = reader[i]
        if len(positions(sample)) == 0:
            continue
        prompt = np.ascontiguousarray(sample.tokens[: sample.prompt_length]).tobytes()
        number = int.from_bytes(hashlib.sha256(seed.to_bytes(4, "little") + prompt).digest()[:8], "little")
        (held_out if number < share * 2.0**64 else training).append(i)
    if not training:
        raise ArgumentError(f"{reader.name}: {len(reader)} sequences, but none has a response to train on")
    return Split(np.array(training, np.int64), np.array(held_out, np.int64))


def count_tokens(reader: ShardReader, sequences: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """How often the target would write each token in these responses, by its probabilities, and which tokens occur.

    Shapes: both (V,).
    """
    n_vocab = reader.manifest["n_vocab"]
    expected = np.zeros(n_vocab)
    used = np.zeros(n_vocab, bool)
    for i in sequences:
        sample = reader[int(i)]
        first = sample.prompt_length - 1
        ids, probs = np.asarray(sample.top_ids[first:-1]), np.asarray(sample.top_probs[first:-1], np.float64)
        expected += np.bincount(ids.ravel(), probs.ravel(), minlength=n_vocab)
        used[sample.tokens] = True
    return expected, used


def draw(reader: ShardReader, training: NDArray[np.int64], recipe: Recipe, step: int) -> list[tuple[int, Any]]:
    """The sequences of a step and the anchors in each.

    Every sequence comes once in so many steps as it takes to see all; which positions of it is random.
    """
    n = len(training)
    chosen = []
    for slot in range(recipe.sequences):
        epoch, place = divmod(step * recipe.sequences + slot, n)
        order = np.random.default_rng([recipe.seed, 1, epoch]).permutation(n)
        index = int(training[order[place]])
        rng = np.random.default_rng([recipe.seed, 2, step, slot])
        possible = positions(reader[index])
        chosen.append((index, np.sort(rng.permutation(possible)[: recipe.anchors])))
    return chosen


def collate(samples: list[Sample], anchors: list[Any], shape: Shape, row_of: Tensor) -> Batch:
    """Arrays for one forward pass; shorter sequences and fewer anchors are padded with what `valid` leaves out."""
    s, a, k = len(samples), max(len(p) for p in anchors), shape.n_draft
    t = max(int(p[-1]) for p in anchors)  # no block sees a row from its anchor on
    top_k = samples[0].top_ids.shape[1]
    features = np.zeros((s, max(t, 1), samples[0].features.shape[1]), np.float16)
    where = np.zeros((s, a), np.int64)
    anchor_ids = np.zeros((s, a), np.int64)
    previous = np.zeros((s, a, k), np.int64)
    ids = np.zeros((s, a, k, top_k), np.int64)
    probs = np.zeros((s, a, k, top_k), np.float32)
    valid = np.zeros((s, a, k), bool)
    for i, (sample, p) in enumerate(zip(samples, anchors, strict=True)):
        n = len(p)
        rows = min(t, len(sample.tokens))
        features[i, :rows] = sample.features[:rows]
        where[i, :n] = p
        anchor_ids[i, :n] = sample.tokens[p]
        at = p[:, None] + np.arange(k)
        # the row of the last token tells of a token that is not there
        valid[i, :n] = at < len(sample.tokens) - 1
        at = np.minimum(at, len(sample.tokens) - 1)
        previous[i, :n] = sample.tokens[at]
        ids[i, :n] = sample.top_ids[at]
        probs[i, :n] = sample.top_probs[at]
    blocks = (s * a, k)
    labels = Labels(
        row_of[torch.from_numpy(ids.reshape(*blocks, top_k))],
        torch.from_numpy(probs.reshape(*blocks, top_k)),
        torch.from_numpy(valid.reshape(blocks)),
    )
    return Batch(
        torch.from_numpy(features),
        torch.from_numpy(where),
        torch.from_numpy(anchor_ids),
        torch.from_numpy(previous.reshape(blocks)),
        labels,
    )
