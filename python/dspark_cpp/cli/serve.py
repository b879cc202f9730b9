"""dspark-cpp serve: llama_cpp's server with drafts; its flags are those of python -m dspark_cpp.server."""

from __future__ import annotations

import argparse

from .. import errors


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    # the flags are made from the server's settings, whose packages the other commands do not need
    p = subparsers.add_parser("serve", help="OpenAI-compatible server, with drafts", add_help=False)
    p.set_defaults(func=run, passes_on=True)


def run(args: argparse.Namespace) -> int:
    try:
        from ..server.main import main
    except ModuleNotFoundError as exc:
        raise errors.StateError(f"the server needs {exc.name}: pip install 'dspark-cpp-python[server]'") from None
    return main(args.rest, prog="dspark-cpp serve")
