"""dspark-cpp bench: what a draft brings on this machine, against plain decoding and against a peer."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from .. import __version__, errors
from .pair_arguments import add_pair_arguments

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "bench",
        help="measure what a draft brings on this machine",
        description="Decode the same prompts greedily with plain llama-cpp-python, with its prompt lookup, and with "
        "this package without a draft, with fixed draft lengths and with the automatic one; in turns, so that a busy "
        "machine disturbs all alike. Speeds are of generation; geometric means over prompts.",
    )
    add_pair_arguments(parser)
    parser.add_argument("--n-max", metavar="K,K", help="fixed draft lengths (default: 1, 2, 4 and the draft's longest)")
    parser.add_argument("--no-lookup", action="store_true", help="leave out llama-cpp-python's prompt lookup")
    parser.add_argument("--peer", action="store_true", help="also llama.cpp's own drafts, by the package xllamacpp")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the report (needs matplotlib)")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Measure; 0 on success."""
    from ..bench.arms import make_arms, require_peer
    from ..bench.measure import measure_sets, measure_t_n
    from ..bench.plot import plot, require_matplotlib
    from ..bench.prompts import read_prompts
    from ..draft import Draft

    for name in ("n_predict", "ctx_size", "threads"):
        if getattr(args, name) < 1:
            raise errors.ArgumentError(f"{name} is {getattr(args, name)}, expected 1 or more")
    with Draft(args.draft, inspect=True) as draft:
        draft.check_target(args.model)
        longest = draft.n_draft_max
    if args.plot:
        require_matplotlib()
    if args.peer:
        require_peer()
    lengths = _lengths(args.n_max, longest)
    arms = make_arms(
        args.model,
        args.draft,
        lengths,
        n_ctx=args.ctx_size,
        n_threads=args.threads,
        peer=args.peer,
        lookup=not args.no_lookup,
    )
    try:
        llm = arms[0].llm  # type: ignore[attr-defined]
        sets = [read_prompts(path, llm, args.limit) for path in args.prompts]
        report: dict[str, Any] = {
            "target": os.path.basename(args.model),
            "draft": os.path.basename(args.draft),
            "n_threads": args.threads,
            "n_predict": args.n_predict,
            "version": __version__,
            **measure_sets(arms, sets, args.n_predict, _tell),
            "t_n": measure_t_n(arms, longest),
            "peak_memory_bytes": _peak_memory(),
        }
    finally:
        for arm in arms:
            arm.close()
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if args.plot:
        plot(report, args.plot)
    print(json.dumps(report, indent=1) if args.json else "\n".join(_lines(report)))
    return 0


def _lengths(text: str | None, longest: int) -> list[int]:
    try:
        wanted = [int(k) for k in text.split(",")] if text else [1, 2, 4, longest]
    except ValueError:
        raise errors.ArgumentError(f"--n-max is {text!r}, expected numbers with commas between them") from None
    if not all(k >= 1 for k in wanted):
        raise errors.ArgumentError(f"--n-max is {text!r}, expected lengths of 1 or more")
    return sorted({min(k, longest) for k in wanted})


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def _peak_memory() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _lines(report: dict[str, Any]) -> list[str]:
    out = [f"{report['target']} with {report['draft']}, {report['n_threads']} threads"]
    for name, part in (*report["sets"].items(), ("all", report["overall"])):
        label = "" if part.get("kind", "text") == "text" else f"  [{part['kind']}]"
        out += [
            "",
            f"{name}{label}",
            f"  {'':22} tokens/s  x plain  x no draft  tokens/round  drafted/round  accepted at",
        ]
        for arm, row in part["arms"].items():
            rates = " ".join(f"{rate:.2f}" for rate in row.get("acceptance_per_position", []))
            out.append(
                f"  {arm:22} {row['tokens_per_second']:8.1f} {row['speedup_vs_plain']:8.2f} "
                f"{row['speedup_vs_no_draft']:11.2f} {row.get('tokens_per_round', 1):13.2f} "
                f"{row.get('mean_draft_length', 0):14.2f}  {rates}"
            )
    overall = report["overall"]
    out += ["", "one batch of n tokens, ms:"]
    for name, times in report["t_n"].items():
        one = times[1]
        out.append(f"  {name:22} " + "  ".join(f"{n}: {ms:.1f} ({ms / one:.2f})" for n, ms in times.items()))
    out.append("")
    out.append(
        f"automatic length: {overall['speedup_vs_plain']:.2f}x of plain llama-cpp-python, "
        f"{overall['speedup_vs_no_draft']:.2f}x of no draft"
    )
    if "speedup_vs_peer" in overall:
        out.append(f"against the peer at its best ({overall['best_peer']}): {overall['speedup_vs_peer']:.2f}x")
    out.append(
        f"texts that differ from those without a draft: {overall['texts_that_differ']} "
        f"({overall['tokens_compared']} tokens compared)"
    )
    return out
