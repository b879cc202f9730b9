"""How long the accepted prefixes are on held-out responses: decoding is replayed round by round, without the target.

A response is what the target wrote, so a round at any of its positions accepts drafts for as long as they are the
response's own tokens: for greedy responses this is greedy decoding, for sampled ones sampling and comparing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from .batches import collate, positions
from .model import Draft
from .shards import ShardReader

__all__ = ["Replay", "replay"]

#: blocks of one forward pass, for which logits are held
_BLOCKS = 128


@dataclass(frozen=True)
class Replay:
    """`mean_accepted_length` counts the target's own token of each round; `acceptance` is of slot k where all earlier
    ones were accepted. `calibration_error` is the mean distance of the confidence from what happens, in ten bins.
    """

    n_sequences: int
    n_rounds: int
    mean_accepted_length: float
    acceptance: list[float]
    calibration_error: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def replay(model: Draft, reader: ShardReader, sequences: NDArray[np.int64], *, bf16: bool = True) -> Replay:
    """Rounds with fewer tokens left than a block drafts are not counted."""
    device = next(model.parameters()).device
    row_of = model.row_of.cpu()
    k = model.shape.n_draft
    n_rounds, tried, accepted = 0, np.zeros(k), np.zeros(k)
    confidences: list[float] = []
    happened: list[bool] = []
    was_training = model.training
    model.eval()
    with torch.no_grad(), torch.autocast(device.type, dtype=torch.bfloat16, enabled=bf16):
        for index in sequences:
            sample = reader[int(index)]
            possible = positions(sample)
            possible = possible[possible + k < len(sample.tokens)]
            if len(possible) == 0:
                continue
            found, sure = [], []
            for start in range(0, len(possible), _BLOCKS):
                batch = collate([sample], [possible[start : start + _BLOCKS]], model.shape, row_of).to(device)
                hidden = model.hidden(batch.features.float(), batch.anchors, batch.anchor_ids)
                predicted = hidden[0, :, model.shape.first_slot :]
                tokens, _, confidence = model.propose(predicted, batch.anchor_ids[0])
                found.append(tokens.cpu().numpy())
                if confidence is not None:
                    sure.append(torch.sigmoid(confidence.float()).cpu().numpy())
            drafts = np.concatenate(found)
            agree = drafts == np.asarray(sample.tokens)[possible[:, None] + 1 + np.arange(k)]
            length = np.cumprod(agree, axis=1).sum(axis=1)
            at = 0
            while at < len(possible):
                n = int(length[at])
                n_rounds += 1
                tried[: n + 1] += 1
                accepted[:n] += 1
                if sure:
                    reached = min(n + 1, k)
                    confidences += list(np.concatenate(sure)[at, :reached])
                    happened += [True] * n + [False] * (reached - n)
                at += n + 1
    model.train(was_training)
    return Replay(
        n_sequences=len(sequences),
        n_rounds=n_rounds,
        mean_accepted_length=1.0 + float(accepted.sum()) / max(n_rounds, 1),
        acceptance=[float(a / t) if t else 0.0 for a, t in zip(accepted, tried, strict=True)],
        calibration_error=_calibration_error(confidences, happened) if happened else None,
    )


def _calibration_error(confidences: list[float], happened: list[bool]) -> float:
    p, y = np.array(confidences), np.array(happened, float)
    bins = np.minimum((p * 10).astype(int), 9)
    return float(sum(abs(p[bins == b].sum() - y[bins == b].sum()) for b in range(10)) / len(p))
