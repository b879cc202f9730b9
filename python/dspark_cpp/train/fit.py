"""The second half of a run: from features to a draft in a GGUF file. Needs torch, unlike the first half.

checkpoint.safetensors   the state of the training
log.jsonl                a line per step
draft/                   the draft as speculators' checkpoint
evaluation.json          held-out responses replayed with the draft as it began and as it ended
training.png             both as a picture
draft.gguf               the draft
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..convert import convert_checkpoint
from ..convert.gguf_file import GGUFFile
from ..errors import FileError, MismatchError
from .atomic import write_atomically
from .batches import Split, count_tokens, split
from .checkpoints import load_checkpoint
from .export import save_speculators
from .initial import draft_from_draft, draft_from_target
from .loop import Report, train
from .model import Draft
from .plot import plot_training
from .recipe import Recipe
from .replay import Replay, replay
from .shape import check_target, choose_mask_token, draft_shape, shape_for_target
from .shards import ShardReader, file_sha256

__all__ = ["Fit", "evaluate_fit", "open_fit", "train_fit", "write_gguf_of_fit"]

_HELD_OUT_MAX = 64  # sequences that are replayed


@dataclass
class Fit:
    """A draft, the data that it is trained on, and the folder that the results go to."""

    folder: Path
    target: GGUFFile
    reader: ShardReader
    data: Split
    recipe: Recipe
    model: Draft
    heads_only: bool

    @property
    def checkpoint(self) -> Path:
        return self.folder / "checkpoint.safetensors"

    @property
    def log(self) -> Path:
        return self.folder / "log.jsonl"


def open_fit(
    folder: Path,
    target: Path,
    features: tuple[Path, ...],
    recipe: Recipe,
    *,
    draft: Path | None = None,
    heads_only: bool = False,
    device: str = "cpu",
) -> Fit:
    """A new draft of the target, or `draft`, to be trained on the features.

    Raises: MismatchError: Features, target and draft do not belong together. FileError, FormatError: One of them cannot
    be read.
    """
    reader = ShardReader(*features, target_sha256=file_sha256(target))
    target_file = GGUFFile(target)
    data = split(reader, recipe.held_out, recipe.seed)
    taps = tuple(reader.manifest["taps"])
    if draft is not None:
        draft_file = GGUFFile(draft)
        shape = draft_shape(draft_file)
        check_target(shape, target_file)
        if shape.taps != taps:
            raise MismatchError(
                f"the features in {reader.name} are inputs of layers {list(taps)}, but {draft} takes {list(shape.taps)}"
            )
        model = draft_from_draft(draft_file, target_file, shape)
    else:
        counts, used = count_tokens(reader, data.training)
        shape = shape_for_target(target_file, recipe, taps, choose_mask_token(target_file, used))
        # a stable sort: of tokens that are as frequent those with lower ids
        tokens = np.sort(np.argsort(-counts, kind="stable")[: shape.n_vocab_draft])
        model = draft_from_target(target_file, shape, tokens, recipe.seed)
    return Fit(folder, target_file, reader, data, recipe, model.to(device), heads_only)


def train_fit(fit: Fit, report: Report | None = None) -> None:
    """Train, or go on, or only load the weights where the training is complete.

    Raises: KeyboardInterrupt after the state is written; FileError where it cannot be written.
    """
    if not fit.checkpoint.exists():
        before = _replay(fit)
        _write_json(fit.folder / "before.json", before.to_dict())
        fit.log.unlink(missing_ok=True)
    else:
        _cut_log(fit.log, load_checkpoint(fit.checkpoint, fit.model, None)["step"])

    def note(numbers: dict[str, Any]) -> None:
        try:
            with open(fit.log, "a", encoding="utf-8") as log:
                log.write(json.dumps(numbers) + "\n")
        except OSError as e:
            raise FileError(f"{fit.log}: cannot be written: {e.strerror}; the checkpoint stays") from None
        if report is not None:
            report(numbers)

    train(
        fit.model,
        fit.reader,
        fit.data.training,
        fit.recipe,
        fit.checkpoint,
        heads_only=fit.heads_only,
        report=note,
    )


def evaluate_fit(fit: Fit) -> tuple[Replay, dict[str, Any]]:
    """Replay the held-out responses with the trained draft, write the numbers and the picture.

    Returns the replay after the training, and the one before it.
    """
    after = _replay(fit)
    before = json.loads((fit.folder / "before.json").read_text())
    numbers = {"before": before, "after": after.to_dict(), "n_held_out": len(fit.data.held_out)}
    _write_json(fit.folder / "evaluation.json", numbers)
    log = [json.loads(line) for line in fit.log.read_text().splitlines()]
    plot_training(log, before, after.to_dict(), fit.folder / "training.png")
    return after, before


def write_gguf_of_fit(fit: Fit, outtype: str, verifier: str | None = None) -> Path:
    """The draft as a checkpoint of speculators and as a GGUF file; returns the latter."""
    checkpoint, out = fit.folder / "draft", fit.folder / "draft.gguf"
    save_speculators(fit.model, checkpoint, fit.target, verifier)
    convert_checkpoint(checkpoint, fit.target.path, out, outtype=outtype)
    return out


def _replay(fit: Fit) -> Replay:
    held_out = fit.data.held_out if len(fit.data.held_out) else fit.data.training
    return replay(fit.model, fit.reader, held_out[:_HELD_OUT_MAX])


def _write_json(path: Path, numbers: dict[str, Any]) -> None:
    write_atomically(path, (json.dumps(numbers, indent=1) + "\n").encode(), "the evaluation")


def _cut_log(log: Path, step: int) -> None:
    """Forget the steps after the checkpoint, which are taken again."""
    if log.exists():
        lines = [line for line in log.read_text().splitlines() if line and json.loads(line)["step"] <= step]
        write_atomically(log, "".join(f"{line}\n" for line in lines).encode(), "the log")
