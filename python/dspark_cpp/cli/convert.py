"""dspark-cpp convert: a checkpoint folder and its target become one GGUF file."""

from __future__ import annotations

import argparse
import sys
from types import TracebackType

from ..convert import convert_checkpoint
from ..convert.outtype import OUTTYPES
from ..errors import DSparkError

__all__ = ["add_parser", "run"]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Register the subcommand; the parsed arguments carry `run` as `func`."""
    parser = subparsers.add_parser(
        "convert",
        help="convert a DSpark or DFlash checkpoint to GGUF",
        description="Convert a draft checkpoint (config.json and safetensors) to a GGUF file that this package and "
        "llama.cpp read. What was decided, and why, is told on stderr.",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT_DIR", help="folder with config.json and safetensors files")
    parser.add_argument(
        "--target",
        required=True,
        metavar="TARGET",
        help="the model that the draft is for: a GGUF file, or a folder with config.json and tokenizer.json",
    )
    parser.add_argument("-o", "--output", required=True, metavar="OUT.gguf", help="file to write")
    parser.add_argument(
        "--outtype",
        choices=OUTTYPES,
        default="auto",
        help="element type of the matrices; auto keeps the checkpoint's (default)",
    )
    parser.add_argument(
        "--self-contained",
        action="store_true",
        help="write the embedding and the head even where the target's can be used",
    )
    parser.add_argument(
        "--layout",
        choices=("anchor", "bonus"),
        help="anchor: every slot predicts; bonus: slot 0 predicts nothing (1+N). Default: what the checkpoint says",
    )
    parser.add_argument("-q", "--quiet", action="store_true", help="tell nothing but errors")
    parser.set_defaults(func=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Convert; 0 on success, 1 with one sentence on stderr where the checkpoint or the target does not allow it."""
    try:
        with ProgressBar(enabled=not args.quiet and sys.stderr.isatty()) as bar:
            report = convert_checkpoint(
                args.checkpoint,
                args.target,
                args.output,
                outtype=args.outtype,
                self_contained=args.self_contained,
                layout=args.layout,
                progress=bar,
            )
    except DSparkError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    if not args.quiet:
        print("\n".join(report.lines()), file=sys.stderr)
    return 0


class ProgressBar:
    """A progress callback that draws on a terminal, with tqdm where it is installed and plainly where not."""

    def __init__(self, enabled: bool) -> None:
        self.enabled, self.what, self.bar = enabled, "", None
        self.shown = -1

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None
        elif self.what and self.enabled:
            print(file=sys.stderr)

    def __call__(self, what: str, done: int, total: int) -> None:
        if not self.enabled:
            return
        if what != self.what:
            self._close()
            self.what, self.shown = what, -1
            self.bar = _tqdm(what, total)
        if self.bar is not None:
            self.bar.update(done - self.bar.n)
        elif (percent := 100 * done // max(1, total)) != self.shown:
            self.shown = percent
            print(f"\r{what} {percent:3d} %", end="", file=sys.stderr, flush=True)


def _tqdm(what: str, total: int):  # type: ignore[no-untyped-def]
    try:
        from tqdm import tqdm  # optional: only for its nicer bar
    except ImportError:
        return None
    return tqdm(desc=what, total=total, unit="B", unit_scale=True, file=sys.stderr, leave=False)
