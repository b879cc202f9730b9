"""The server's command line: the flags of llama_cpp.server, and those of drafts."""

from __future__ import annotations

import argparse
import difflib
import json
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

import uvicorn
from llama_cpp.server import app as base
from llama_cpp.server.cli import add_args_from_model, parse_model_from_args
from pydantic import ValidationError

from .. import errors
from .app import create_app
from .model import stopping
from .settings import ConfigFileSettings, ModelSettings, ServerSettings, Settings

__all__ = ["main"]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        flags = [option for action in self._actions for option in action.option_strings]
        for word in message.removeprefix("unrecognized arguments: ").split():
            if word.startswith("--") and message.startswith("unrecognized"):
                message = f"{message}; {_hint(word.split('=')[0], flags)}"
        self.exit(2, f"{self.prog}: error: {message}\n")  # the usage is a hundred lines


class _Server(uvicorn.Server):
    def handle_exit(self, sig: int, frame: Any) -> None:
        stopping.set()
        super().handle_exit(sig, frame)


def main(argv: Sequence[str] | None = None, prog: str = "python -m dspark_cpp.server") -> int:
    """Serves until interrupted; returns the exit code: 0 after Ctrl-C, 1 for what cannot be loaded, 2 for usage."""
    parser = _Parser(prog=prog, description="llama_cpp's OpenAI-compatible server, with drafts")
    add_args_from_model(parser, Settings)
    parser.add_argument("--config_file", help="JSON or YAML file with the server's settings and its models")
    args = parser.parse_args(argv)
    try:
        server_settings, model_settings = _read_settings(args)
    except ValidationError as exc:
        print(f"{prog}: error: {'; '.join(_sentences(exc))}", file=sys.stderr)
        return 2
    except (OSError, ValueError) as exc:
        print(f"{prog}: error: {exc}", file=sys.stderr)
        return 2
    os.environ.pop("CONFIG_FILE", None)  # read here; create_app() would read it again
    try:
        app = create_app(server_settings=server_settings, model_settings=model_settings)
    except (errors.DSparkError, OSError, ValueError) as exc:
        print(f"{prog}: error: {exc}", file=sys.stderr)
        return 1
    stopping.clear()
    config = uvicorn.Config(
        app,
        host=os.getenv("HOST", server_settings.host),
        port=int(os.getenv("PORT", str(server_settings.port))),
        ssl_keyfile=server_settings.ssl_keyfile,
        ssl_certfile=server_settings.ssl_certfile,
    )
    server = _Server(config)
    try:
        server.run()
    except KeyboardInterrupt:
        pass  # uvicorn raises the signal again once it has shut down
    finally:
        if base._llama_proxy is not None:
            base._llama_proxy.free()
    return 0 if server.started else 1


def _read_settings(args: argparse.Namespace) -> tuple[ServerSettings, list[ModelSettings]]:
    path = os.environ.get("CONFIG_FILE", args.config_file)
    if not path:
        return parse_model_from_args(ServerSettings, args), [parse_model_from_args(ModelSettings, args)]
    text = Path(path).read_text(encoding="utf-8")
    if path.endswith((".yaml", ".yml")):
        import yaml

        text = json.dumps(yaml.safe_load(text))
    config = ConfigFileSettings.model_validate_json(text)
    if not config.models:
        raise ValueError(f"{path} has no models, expected at least one")
    return ServerSettings.model_validate(config), config.models


def _sentences(exc: ValidationError) -> Iterable[str]:
    """What pydantic found, a sentence each, with a hint for names that it does not know."""
    for error in exc.errors():
        name = str(error["loc"][-1]) if error["loc"] else ""
        where = ".".join(str(part) for part in error["loc"])
        if error["type"] == "extra_forbidden":
            known = {**ConfigFileSettings.model_fields, **ModelSettings.model_fields}
            yield f"{where} is not a setting; {_hint(name, known)}"
        elif error["type"] == "missing" and name == "model":
            yield "no model is given (--model FILE.gguf)"
        else:
            yield f"{where}: {error['msg']}".removeprefix(": ").replace("Value error, ", "")


def _hint(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name.replace("-", "_").replace("__", "--", 1), known, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else "see --help"
