"""The training itself: AdamW over random blocks, from a checkpoint if there is one, until steps or time are over."""

from __future__ import annotations

import contextlib
import math
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..errors import FormatError
from .batches import Batch, collate, draw
from .checkpoints import load_checkpoint, save_checkpoint
from .losses import Losses, draft_loss
from .model import Draft
from .recipe import Recipe
from .shards import ShardReader

__all__ = ["Report", "train"]

_WARMUP = 0.02  # share of the run with a rising learning rate
_LAST = 0.02  # share of the highest learning rate at the end
_CLIP = 1.0

Report = Callable[[dict[str, Any]], None]
"""Called after every step with what it gave: step, done (share of the run), seconds, loss, overlap, ..."""


def _schedule(done: float) -> float:
    """Learning rate at a share of the run, of the highest one."""
    if done < _WARMUP:
        return (done + 1e-3) / (_WARMUP + 1e-3)
    x = min((done - _WARMUP) / (1.0 - _WARMUP), 1.0)
    return _LAST + (1.0 - _LAST) * 0.5 * (1.0 + math.cos(math.pi * x))


def _groups(model: Draft, recipe: Recipe, heads_only: bool) -> list[dict[str, Any]]:
    """The head starts at the target's and needs less; vectors and the Markov tables, with rows rarely seen, more."""
    heads = {id(p) for p in model.heads()}
    groups: dict[tuple[float, float], list[Any]] = {}
    for name, p in model.named_parameters():
        if not p.requires_grad or (heads_only and id(p) not in heads):
            continue
        scale = 0.4 if name == "lm_head.weight" else 2.0 if p.dim() < 2 or "markov" in name else 1.0
        decay = recipe.weight_decay if p.dim() > 1 and "markov_w1" not in name else 0.0
        groups.setdefault((scale, decay), []).append(p)
    return [
        {"params": params, "scale": scale, "lr": scale * recipe.learning_rate, "weight_decay": decay}
        for (scale, decay), params in groups.items()
    ]


def _forward(model: Draft, batch: Batch, recipe: Recipe, heads_only: bool) -> Losses:
    with contextlib.ExitStack() as stack:
        if heads_only:
            stack.enter_context(torch.no_grad())
        hidden = model.hidden(batch.features.float(), batch.anchors, batch.anchor_ids)
    logits, confidence = model.logits(hidden.flatten(0, 1)[:, model.shape.first_slot :], batch.previous)
    return draft_loss(logits, confidence, batch.labels, recipe)


@contextlib.contextmanager
def _stop_asked() -> Iterator[Callable[[], bool]]:
    """Whether SIGINT or SIGTERM has come: a step is finished, and the state written, before the run ends."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    before: dict[signal.Signals, Any] = {}
    with contextlib.suppress(ValueError):  # not the main thread, whose signals are not ours
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, ask)
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def train(
    model: Draft,
    reader: ShardReader,
    training: NDArray[np.int64],
    recipe: Recipe,
    checkpoint: Path,
    *,
    heads_only: bool = False,
    report: Report | None = None,
) -> None:
    """Train the model in place. After KeyboardInterrupt, which SIGINT and SIGTERM end in, a second call goes on.

    With `steps` in the recipe a resumed run gives the same weights as an uninterrupted one, on a CPU in every bit.

    Raises: KeyboardInterrupt; FileError where a checkpoint cannot be written; FormatError where the loss is no number.
    """
    device = next(model.parameters()).device
    model.train()
    optimizer = torch.optim.AdamW(_groups(model, recipe, heads_only), betas=(0.9, 0.97), fused=True)
    step, seconds = 0, 0.0
    if checkpoint.exists():
        progress = load_checkpoint(checkpoint, model, optimizer)
        step, seconds = progress["step"], progress["seconds"]
    row_of = model.row_of.cpu()
    parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def done() -> float:
        return step / recipe.steps if recipe.steps else seconds / (60.0 * recipe.minutes)

    def save() -> None:
        save_checkpoint(checkpoint, model, optimizer, {"step": step, "seconds": seconds})

    last_save = time.monotonic()
    began_at = step
    with _stop_asked() as stop_asked:
        while done() < 1.0:
            began = time.monotonic()
            for group in optimizer.param_groups:
                group["lr"] = group["scale"] * recipe.learning_rate * _schedule(done())
            chosen = draw(reader, training, recipe, step)
            samples, anchors = [reader[i] for i, _ in chosen], [p for _, p in chosen]
            batch = collate(samples, anchors, model.shape, row_of).to(device)
            with torch.autocast(device.type, dtype=torch.bfloat16):
                losses = _forward(model, batch, recipe, heads_only)
            optimizer.zero_grad(set_to_none=True)
            losses.loss.backward()
            torch.nn.utils.clip_grad_norm_(parameters, _CLIP)
            loss = float(losses.loss.detach())
            if not math.isfinite(loss):
                raise FormatError(f"the loss is {loss} after {step} steps; a lower learning rate is needed")
            optimizer.step()
            took = time.monotonic() - began
            if step >= 10:  # a process that was stopped meanwhile (SIGSTOP, a debugger) has not trained for so long
                took = min(took, 10 * seconds / step)
            step += 1
            seconds += took
            if report is not None:
                try:
                    report(_numbers(step, done(), seconds, losses, int(batch.labels.valid.sum())))
                except BaseException:  # it is called after each step: what was trained since the last checkpoint stays
                    save()
                    raise
            if stop_asked():
                save()
                raise KeyboardInterrupt
            if time.monotonic() - last_save > recipe.checkpoint_seconds:
                save()
                last_save = time.monotonic()
        if step > began_at:
            save()
    model.eval()


def _numbers(step: int, done: float, seconds: float, losses: Losses, n_labels: int) -> dict[str, Any]:
    hit = losses.hit.cpu()
    return {
        "step": step,
        "done": min(done, 1.0),
        "seconds": seconds,
        "n_labels": n_labels,
        "loss": float(losses.loss.detach()),
        "ce": float(losses.ce),
        "overlap": float(losses.overlap),
        "confidence_loss": float(losses.confidence),
        "hit": [round(float(h), 4) for h in hit],
        # of independent slots; what replay() measures on whole responses
        "expected_length": 1.0 + float(torch.cumprod(hit, 0).sum()),
    }
