"""dspark-cpp inspect: what a draft file is, and whether it fits a target, before anything is loaded."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .. import errors

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "inspect", help="show what a draft file is", description="Shows what a draft is, without loading its weights."
    )
    p.add_argument("file", metavar="FILE", help="a draft GGUF")
    p.add_argument("--target", metavar="GGUF", help="check whether the draft fits this target")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from ..draft import Draft

    with Draft(args.file, inspect=True) as draft:
        info = draft.describe()
        if args.target:
            info["fits"], info["misfit"] = _fits(draft, args.target)
    if args.json:
        print(json.dumps(info, ensure_ascii=False))
    else:
        for key, value in info.items():
            if value is not None:
                print(f"{key:20} {_shown(value)}")
    return 1 if info.get("fits") is False else 0


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
