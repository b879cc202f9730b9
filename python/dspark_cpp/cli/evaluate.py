"""dspark-cpp evaluate: how many of a draft's tokens stand, and whether its confidence head says so truly."""

from __future__ import annotations

import argparse
import json
import os
import sys
from typing import Any

from .. import errors
from .pair_arguments import add_pair_arguments

__all__ = ["add_parser", "run"]

_FEW = 5  # prompts; below that chance decides


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Register the subcommand."""
    parser = subparsers.add_parser(
        "evaluate",
        help="measure how many of a draft's tokens stand",
        description="Drive a target with a draft, always at its full length, and count which of its tokens stand: by "
        "prompt set, by position in the block and by length of the context; and how true its confidence head is. "
        "Speed is `bench`'s.",
    )
    add_pair_arguments(parser)
    parser.add_argument(
        "--temperature",
        type=float,
        nargs="+",
        default=[0.0, 1.0],
        metavar="T",
        help="each is a run of its own; 0: greedy (default: 0 1)",
    )
    parser.add_argument(
        "--verify",
        choices=("match", "rejection"),
        default="match",
        help="how drafts are verified at a temperature: by the target's own draw, or by rejection sampling (match)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the draws (default: 0)")
    parser.add_argument("--json", metavar="FILE", help="also write the report as JSON; -: print it instead")
    parser.add_argument("--plot", metavar="FILE.png", help="draw the report (needs matplotlib)")
    parser.add_argument(
        "--calibrate",
        metavar="OUT.gguf",
        help="write a copy of the draft whose confidence head is calibrated for the first temperature; the first, "
        "third, ... prompt of each file is for that, and the report is about the others",
    )
    parser.add_argument(
        "--calibration-prompts", nargs="+", default=[], metavar="FILE", help="calibrate on these, report on --prompts"
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Measure; 0 on success."""
    from ..bench.plot import require_matplotlib
    from ..evaluation import evaluate
    from ..evaluation.plot import plot

    for path in (args.json, args.plot, args.calibrate):
        _check_folder(path)
    if args.plot:
        require_matplotlib()
    report = evaluate(
        args.model,
        args.draft,
        args.prompts,
        n_predict=args.n_predict,
        limit=args.limit,
        temperatures=args.temperature,
        verify=args.verify,
        calibrate=args.calibrate,
        calibration_prompts=args.calibration_prompts,
        n_ctx=args.ctx_size,
        n_threads=args.threads,
        seed=args.seed,
        tell=_tell,
    )
    if sys.stderr.isatty():
        print(file=sys.stderr)
    if args.json and args.json != "-":
        _write(args.json, json.dumps(report, indent=1))
    if args.plot:
        plot(report, args.plot)
    print(json.dumps(report, indent=1) if args.json == "-" else "\n".join(_lines(report)))
    return 0


def _tell(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def _check_folder(path: str | None) -> None:
    """Measuring takes minutes: what cannot be written is known before."""
    if path and not os.path.isdir(os.path.dirname(path) or "."):
        raise errors.FileError(f"{path}: there is no folder of that name")


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as exc:
        raise errors.FileError(f"{path}: cannot be written: {exc.strerror or exc}") from None


def _lines(report: dict[str, Any]) -> list[str]:
    n = report["n_draft_max"]
    out = [f"{report['target']} with {report['draft']}, {n} drafted tokens a round"]
    for part in report["runs"]:
        t = part["temperature"]
        out += [
            "",
            "greedy" if t == 0 else f"temperature {t:g}, verified by {report['verify']}",
            f"  {'':22} prompts  rounds  tokens/round  stands if all before it do, by position",
        ]
        for name, row in (*part["sets"].items(), ("all", part["overall"])):
            out.append(_row(name, row) + (f"  [{row['kind']}]" if row.get("kind", "text") != "text" else ""))
        out.append(f"  {'':22} stands, of all rounds: {_rates(part['overall'], 'cumulative')}")
        out.append("  by position of the anchor:")
        for row in part["depths"]:
            name = f"{row['from']} to {row['to']}"
            notes = [f"only {row['n_prompts']} prompts"] if row["n_prompts"] < _FEW else []
            notes += ["beyond the length that the draft was trained for"] if row["to"] >= report["n_ctx_train"] else []
            out.append(_row(name, row) + (f"  [{', '.join(notes)}]" if notes else ""))
        out += _confidence_lines(part)
    if report["calibration"]:
        fit = report["calibration"]
        values = " ".join(f"{t:.2f}" for t in fit["confidence_temperature"])
        out += ["", f"temperatures of the confidence head, from {fit['n_rounds']} rounds of other prompts: {values}"]
    return out


def _confidence_lines(part: dict[str, Any]) -> list[str]:
    if part["confidence"] is None:
        return ["  the draft has no confidence head"]
    out = ["  confidence head, of the whole prefix up to a position:"]
    out.append(f"  {'position':>22}  rounds  promised  stood  ECE (by chance)   AUC  Brier")
    for name, rows in (("", part["confidence"]), ("calibrated, ", part["calibrated"] or [])):
        for row in rows:
            auc = "    -" if row["auc"] is None else f"{row['auc']:5.2f}"
            out.append(
                f"  {name + str(row['position']):>22} {row['n_rounds']:7} {row['promised']:9.3f} {row['stood']:6.3f} "
                f"{row['ece']:6.3f} ({row['ece_by_chance']:.3f})  {auc} {row['brier']:6.3f}"
            )
    return out


def _row(name: str, row: dict[str, Any]) -> str:
    length = row["mean_accepted_length"]
    error = "" if row["standard_error"] is None else f" ± {row['standard_error']:.2f}"
    length = "-" if length is None else f"{length:.2f}{error}"
    return f"  {name:22} {row['n_prompts']:7} {row['n_rounds']:7} {length:>13}  {_rates(row, 'conditional')}"


def _rates(row: dict[str, Any], which: str) -> str:
    return " ".join("-" if p[which] is None else f"{p[which]:.2f}" for p in row["positions"])
