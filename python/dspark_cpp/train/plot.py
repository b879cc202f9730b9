"""The training as a picture: the loss and the accepted length over the steps, and what came out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["plot_training"]


def _smooth(values: list[float], n_points: int) -> tuple[list[float], list[float]]:
    """Means of consecutive parts, and where in the list the parts have their middles."""
    parts = np.array_split(np.arange(len(values)), min(n_points, len(values)))
    return [float(p.mean()) for p in parts], [float(np.mean([values[i] for i in p])) for p in parts]


def plot_training(log: list[dict[str, Any]], before: dict[str, Any], after: dict[str, Any], path: Path) -> None:
    """log: lines of the run's log; before, after: replays of held-out responses, as Replay.to_dict() gives them."""
    import matplotlib  # type: ignore[import-not-found, unused-ignore]

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, middle, right) = pyplot.subplots(1, 3, figsize=(14, 4.2))
    steps = [line["step"] for line in log]
    if steps:
        for axes, key, label in ((left, "loss", "loss"), (middle, "expected_length", "training blocks")):
            places, means = _smooth([line[key] for line in log], 100)
            axes.plot(np.interp(places, range(len(steps)), steps), means, label=label)
    left.set_xlabel("step")
    left.set_ylabel("loss")
    held_out = f"held out, after: {after['mean_accepted_length']:.2f}"
    middle.axhline(after["mean_accepted_length"], color="tab:green", label=held_out)
    middle.axhline(before["mean_accepted_length"], color="grey", linestyle=":", label="held out, before")
    middle.set_xlabel("step")
    middle.set_ylabel("accepted tokens a round, bonus included")
    middle.legend(fontsize=8)
    slots = np.arange(len(after["acceptance"])) + 1
    right.bar(slots - 0.2, before["acceptance"], 0.4, label="before", color="lightgrey")
    right.bar(slots + 0.2, after["acceptance"], 0.4, label="after", color="tab:green")
    right.set_xticks(slots)
    right.set_ylim(0, 1)
    right.set_xlabel("drafted token")
    right.set_ylabel("accepted, if all before it were")
    right.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
