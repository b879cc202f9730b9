"""The command line, `dspark-cpp` or `python -m dspark_cpp`: one module per subcommand.

Generated text and reports go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage,
130 interrupted.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence

from .. import __version__, errors

__all__ = ["main"]

_COMMANDS = ("generate", "inspect", "convert", "quantize", "demo", "doctor", "bench", "evaluate", "train", "serve")


class _Version(argparse.Action):
    """Prints our version and those of what we are bound to; asked for only then, since it loads llama.cpp."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        print(f"dspark-cpp {__version__}")
        try:
            import llama_cpp

            from .._native import lib, text

            print(f"llama-cpp-python {llama_cpp.__version__}")
            print(f"llama.cpp {text(lib.dspark_bound_llama_version())}, ggml {text(lib.dspark_bound_ggml_version())}")
        except ImportError as exc:
            print(f"llama.cpp: {exc}")
        parser.exit()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dspark-cpp", description="DSpark speculative decoding for GGUF models")
    parser.add_argument("--version", nargs=0, action=_Version, help="print the versions of all parts and exit")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in _COMMANDS:
        importlib.import_module(f".{name}", __name__).add_parser(subparsers)
    return parser


def _hints(words: Sequence[str], parser: argparse.ArgumentParser, command: str) -> list[str]:
    """What flags that a command does not know are likely to mean."""
    subparsers = next(a for a in parser._actions if isinstance(a, argparse._SubParsersAction))
    flags = {flag.replace("-", ""): flag for flag in subparsers.choices[command]._option_string_actions}
    found = []
    for word in words:
        name = word.split("=")[0].replace("-", "").replace("_", "").lower()
        close = difflib.get_close_matches(name, flags, n=1, cutoff=0.7) if word.startswith("-") else []
        found += [f"did you mean {flags[key]}?" for key in close]
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns its exit code."""
    parser = _parser()
    args, rest = parser.parse_known_args(argv)
    args.rest = rest
    if rest and not getattr(args, "passes_on", False):
        hints = "".join(f"; {hint}" for hint in _hints(rest, parser, args.command))
        parser.error(f"unrecognized arguments: {' '.join(rest)}{hints}")
    try:
        code = args.func(args)
        sys.stdout.flush()
        return int(code or 0)
    except KeyboardInterrupt:
        print("\ninterrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # the reader has gone (`| head`); a second error at shutdown would be noise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (errors.DSparkError, OSError, ValueError) as exc:
        print(f"dspark-cpp {args.command}: error: {exc}", file=sys.stderr)
        return 1
