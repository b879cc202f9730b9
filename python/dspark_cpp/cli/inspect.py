"""dspark-cpp inspect: what a draft is, and whether it fits a target, before anything is loaded or converted."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from .. import errors

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "inspect",
        help="show what a draft file or checkpoint is",
        description="Shows what a draft is, without loading its weights. Exit code 1 if it does not fit the target.",
    )
    p.add_argument("file", metavar="DRAFT", help="a draft GGUF, or a checkpoint folder")
    p.add_argument("--target", metavar="TARGET", help="check whether the draft fits this GGUF; for a folder, also HF's")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    if os.path.isdir(args.file):
        from ..convert import describe_checkpoint

        info = describe_checkpoint(args.file, args.target)
    else:
        info = _describe_file(args.file, args.target)
    if args.json:
        print(json.dumps(info, ensure_ascii=False))
    else:
        for key, value in info.items():
            if value is not None and value != []:
                print(f"{key:20} {_shown(value)}")
    return 1 if info.get("fits") is False else 0


def _describe_file(path: str, target: str | None) -> dict[str, Any]:
    from ..draft import Draft

    with Draft(path, inspect=True) as draft:
        info = {
            **draft.describe(),
            "target_layer_outputs": [layer - 1 for layer in draft.target_layers],
            "schema": draft.meta("dflash.source.format"),
            "converter": draft.meta("dflash.source.converter"),
            "n_bytes": os.path.getsize(path),
        }
        if target:
            info["fits"], info["misfit"] = _fits(draft, target)
    return info


def _fits(draft: Any, target: str) -> tuple[bool, str | None]:
    try:
        draft.check_target(target)
    except errors.MismatchError as exc:
        return False, str(exc)
    return True, None


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and value >= 10000 else str(value)
