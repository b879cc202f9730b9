"""The report as a picture."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError

__all__ = ["plot", "require_matplotlib"]

_PLAIN = ("llama-cpp-python", "its prompt lookup")


def require_matplotlib() -> None:
    """Raises: ArgumentError: matplotlib is not installed."""
    try:
        import matplotlib  # type: ignore[import-not-found, unused-ignore]  # noqa: F401
    except ImportError:
        raise ArgumentError("--plot needs matplotlib: pip install 'dspark-cpp-python[bench]'") from None


def plot(report: dict[str, Any], path: str) -> None:
    """Speed of every arm relative to plain llama-cpp-python, by prompt set, and what a batch of n costs."""
    import matplotlib  # type: ignore[import-not-found, unused-ignore]

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.8), width_ratios=(2.2, 1))
    sets = [*report["sets"], "overall"]
    arms = list(report["overall"]["arms"])
    width = 0.84 / len(arms)
    for i, arm in enumerate(arms):
        heights = [
            (report["sets"][name] if name in report["sets"] else report["overall"])["arms"][arm]["speedup_vs_plain"]
            for name in sets
        ]
        places = [x + (i - (len(arms) - 1) / 2) * width for x in range(len(sets))]
        shades = "Greys" if arm in _PLAIN else "Purples" if arm.startswith("peer") else "Greens"
        shade = pyplot.get_cmap(shades)(0.9 - 0.55 * i / len(arms))
        left.bar(places, heights, width, label=arm, color="tab:orange" if arm == "auto" else shade)
    left.axhline(1, color="black", linewidth=0.8)
    left.set_xticks(range(len(sets)), sets)
    left.set_ylabel("speed, plain llama-cpp-python = 1")
    left.legend(fontsize=8, ncols=5, loc="upper center", bbox_to_anchor=(0.5, -0.08))  # beside the bars, not on them
    for name, times in report["t_n"].items():
        sizes = [int(n) for n in times]
        right.plot(sizes, list(times.values()), marker="o", label="llama.cpp's kernels" if "python" in name else "ours")
    right.set_xlabel("tokens in the batch")
    right.set_ylabel("ms a batch")
    right.set_ylim(bottom=0)
    right.legend(fontsize=8)
    figure.suptitle(f"{report['target']} with {report['draft']}, {report['n_threads']} threads", fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=130)
    pyplot.close(figure)
