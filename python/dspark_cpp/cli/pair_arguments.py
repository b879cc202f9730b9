"""Arguments of the subcommands that drive a target with a draft over prompt sets: bench and evaluate."""

from __future__ import annotations

import argparse
import os

__all__ = ["add_pair_arguments"]


def add_pair_arguments(parser: argparse.ArgumentParser) -> None:
    """The pair, the prompts, and how much of them."""
    parser.add_argument("-m", "--model", required=True, metavar="TARGET.gguf", help="the target")
    parser.add_argument("-md", "--draft", required=True, metavar="DRAFT.gguf", help="its draft")
    parser.add_argument(
        "--prompts",
        required=True,
        nargs="+",
        metavar="FILE",
        help='JSON lines with "prompt", "turns", "messages" or "ids", or text with a prompt a line; a file is a set',
    )
    parser.add_argument("-n", "--n-predict", type=int, default=128, metavar="N", help="tokens of each (default: 128)")
    parser.add_argument("-c", "--ctx-size", type=int, default=2048, metavar="N", help="context (default: 2048)")
    parser.add_argument("-t", "--threads", type=int, default=os.cpu_count() or 1, metavar="N", help="threads")
    parser.add_argument("--limit", type=int, metavar="N", help="prompts of each file (default: all)")
