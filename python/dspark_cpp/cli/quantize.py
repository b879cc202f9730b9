"""dspark-cpp quantize: a draft file in another element type."""

from __future__ import annotations

import argparse
import sys

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
        "on stderr. Norms and biases stay f32, the Markov and confidence heads f16.",
    )
    parser.add_argument("input", metavar="IN.gguf", help="draft file to read")
    parser.add_argument("-o", "--output", required=True, metavar="OUT.gguf", help="file to write")
    parser.add_argument("--outtype", required=True, choices=tuple(FILE_TYPES), help="element type of the matrices")
    parser.add_argument("--quantize-heads", action="store_true", help="the Markov and confidence heads too")
    parser.add_argument("-q", "--quiet", action="store_true", help="tell nothing but errors")
    parser.set_defaults(func=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Re-type; 0 on success, 1 with one sentence on stderr where the file does not allow it."""
    try:
        report = quantize_gguf(args.input, args.output, args.outtype, quantize_heads=args.quantize_heads)
    except DSparkError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    if not args.quiet:
        print("\n".join(report.lines()), file=sys.stderr)
    return 0
