"""The report as a picture."""

from __future__ import annotations

from typing import Any

__all__ = ["plot"]


def plot(report: dict[str, Any], path: str) -> None:
    """Acceptance by position, and how often prefixes stood for what the confidence head had promised."""
    import matplotlib  # type: ignore[import-not-found, unused-ignore]

    matplotlib.use("Agg")
    from matplotlib import pyplot

    first = report["runs"][0]
    panels = [
        (f"confidence head as the file has it, {_name(first)}", first["confidence"]),
        ("with the temperatures fitted on other prompts", first["calibrated"]),
    ]
    panels = [(title, positions) for title, positions in panels if positions]
    figure, axes = pyplot.subplots(1, 1 + len(panels), figsize=(6 + 5 * len(panels), 5), squeeze=False)
    _acceptance(axes[0][0], report)
    for axis, (title, positions) in zip(axes[0][1:], panels, strict=True):
        _reliability(axis, title, positions, pyplot.get_cmap("viridis"), report["n_draft_max"])
    figure.suptitle(f"{report['target']} with {report['draft']}", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)


def _name(run: dict[str, Any]) -> str:
    return "greedy" if run["temperature"] == 0 else f"temperature {run['temperature']:g}"


def _acceptance(axis: Any, report: dict[str, Any]) -> None:
    def line(row: dict[str, Any], label: str, **style: Any) -> None:
        known = [p for p in row["positions"] if p["conditional"] is not None]
        at, rates = [p["position"] for p in known], [p["conditional"] for p in known]
        if "capsize" in style:
            axis.errorbar(at, rates, yerr=[p["conditional_error"] or 0 for p in known], label=label, **style)
        else:
            axis.plot(at, rates, label=label, **style)

    first, *others = report["runs"]
    if len(first["sets"]) > 1:
        for name, row in first["sets"].items():
            line(row, f"{name}, {_name(first)}: {_length(row)}", marker=".", linewidth=1, alpha=0.7)
    for run, style in zip(report["runs"], ["-"] + ["--"] * len(others), strict=True):
        label = f"all, {_name(run)}: {_length(run['overall'])}"
        line(run["overall"], label, color="black", linewidth=2, linestyle=style, capsize=3)
    axis.set_title("acceptance by position, and tokens a round", fontsize=10)
    axis.set_xlabel("position in the block")
    axis.set_ylabel("stands if all before it do")
    axis.set_xticks(range(1, report["n_draft_max"] + 1))
    axis.set_ylim(0, 1)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def _length(row: dict[str, Any]) -> str:
    return "-" if row["mean_accepted_length"] is None else f"{row['mean_accepted_length']:.2f}"


def _reliability(axis: Any, title: str, positions: list[dict[str, Any]], colours: Any, n_draft_max: int) -> None:
    axis.plot([0, 1], [0, 1], color="grey", linewidth=1, linestyle=":")
    for row in positions:
        # a bin of a handful of rounds is a dot that chance has put there
        bins = [b for b in row["bins"] if b["n"] >= 10]
        colour = colours((row["position"] - 1) / max(1, n_draft_max - 1) * 0.9)
        x, y = [b["promised"] for b in bins], [b["stood"] for b in bins]
        axis.plot(x, y, color=colour, linewidth=1)
        axis.scatter(
            x,
            y,
            s=[4 + 2 * b["n"] ** 0.5 for b in bins],
            color=colour,
            label=f"{row['position']}: ECE {row['ece']:.1%}",
        )
    axis.set_title(title, fontsize=10)
    axis.set_xlabel("promised: product of confidences up to the position")
    axis.set_ylabel("share of prefixes that stood")
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.set_aspect("equal")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8, loc="upper left", title="position", title_fontsize=8)
