"""dspark-cpp quantize: a draft file in another element type, and how far it still agrees with the original."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

from ..convert.outtype import FILE_TYPES
from ..convert.quantize import quantize_gguf
from ..errors import DSparkError

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Register the subcommand; the parsed arguments carry `run` as `func`."""
    parser = subparsers.add_parser(
        "quantize",
        help="store a draft in another element type",
        description="Write a draft file with its matrices in another element type; how much its values changed is told "
        "on stderr, and with --target how often it still proposes what the original proposes. Norms and biases stay "
        "f32, the Markov and confidence heads f16.",
    )
    parser.add_argument("input", metavar="IN.gguf", help="draft file to read")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.gguf", help="file to write")
    parser.add_argument("--outtype", required=True, choices=tuple(FILE_TYPES), help="element type of the matrices")
    parser.add_argument("--quantize-heads", action="store_true", help="the Markov and confidence heads too")
    parser.add_argument("--target", metavar="TARGET.gguf", help="run both drafts with this target and compare them")
    parser.add_argument(
        "--prompts",
        metavar="FILE.jsonl",
        help='what to compare on, a line each: {"prompt": text}, {"turns": [text]} or {"ids": [...]}; '
        "default: a handful that is built in",
    )
    parser.add_argument(
        "-n", "--n-predict", type=_positive, default=64, metavar="N", help="tokens of each prompt (default: 64)"
    )
    parser.add_argument("-t", "--threads", type=_positive, metavar="N", help="threads of the comparison")
    parser.add_argument("-q", "--quiet", action="store_true", help="tell nothing but errors")
    parser.set_defaults(func=run)
    return parser


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{value} is not 1 or more")
    return value


def run(args: argparse.Namespace) -> int:
    """Re-type; 0 on success, 1 with one sentence on stderr where a file does not allow it.

    A comparison that fails leaves the new file: it is complete by then, and the report says that it was written.
    """
    tell = _silent if args.quiet else _tell
    try:
        if args.target:
            _compare(args, tell)
        else:
            tell(_quantize(args))
            tell(["agreement:    not measured; --target TARGET.gguf runs both drafts and compares"])
    except DSparkError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


def _tell(lines: list[str]) -> None:
    print("\n".join(lines), file=sys.stderr)


def _silent(lines: list[str]) -> None:
    pass


def _quantize(args: argparse.Namespace) -> list[str]:
    return quantize_gguf(args.input, args.output, args.outtype, quantize_heads=args.quantize_heads).lines()


def _compare(args: argparse.Namespace, tell: Callable[[list[str]], None]) -> None:
    from ..convert.agreement import PROMPTS, measure_agreement, read_prompts
    from ..draft import Draft

    # whatever can be known to be wrong is known before anything is written
    prompts = read_prompts(args.prompts) if args.prompts else PROMPTS
    with Draft(args.input, inspect=True) as draft:
        draft.check_target(args.target)
    tell(_quantize(args))
    found = measure_agreement(
        args.input, args.output, args.target, prompts, n_predict=args.n_predict, n_threads=args.threads
    )
    tell(found.lines())
