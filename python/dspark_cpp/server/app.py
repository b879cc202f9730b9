"""The server's app: llama_cpp.server's own, with our models in it, timings in its answers, and /metrics."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from fastapi import Depends, FastAPI, Response
from llama_cpp.server import app as base
from llama_cpp.server.errors import RouteErrorHandler
from prometheus_client import CONTENT_TYPE_LATEST

from .metrics import Metrics
from .model import DraftProxy
from .settings import ConfigFileSettings, ModelSettings, ServerSettings, Settings
from .timings import TimingsMiddleware

__all__ = ["create_app"]


def create_app(
    settings: Settings | None = None,
    server_settings: ServerSettings | None = None,
    model_settings: list[ModelSettings] | None = None,
) -> FastAPI:
    """The app of llama_cpp.server, which keeps the models of a process in a global variable: one app a process.

    Raises: as Llama() does for a model or draft that cannot be loaded.
    """
    metrics = Metrics()
    with _in_place(
        LlamaProxy=partial(DraftProxy, metrics=metrics),
        Settings=Settings,
        ModelSettings=ModelSettings,
        ConfigFileSettings=ConfigFileSettings,
    ):
        app: FastAPI = base.create_app(settings, server_settings, model_settings)
    app.add_middleware(TimingsMiddleware)

    @app.get("/metrics", summary="Metrics", dependencies=[Depends(base.authenticate)], tags=[base.extras_tag])
    def get_metrics() -> Response:
        return Response(metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return app


@contextmanager
def _in_place(**ours: Any) -> Iterator[None]:
    """Our classes where the base's module looks for its own."""
    theirs = {name: getattr(base, name) for name in ours}
    vars(base).update(ours)
    try:
        yield
    finally:
        vars(base).update(theirs)


def _logprobs_unavailable(request: Any, match: Any) -> tuple[int, dict[str, Any]]:
    return 400, {
        "message": "logprobs need a model with logits_all (start the server with --logits_all true)",
        "type": "invalid_request_error",
        "param": "logprobs",
        "code": None,
    }


RouteErrorHandler.pattern_and_formatters[re.compile("logprobs is not supported for models created with")] = (
    _logprobs_unavailable
)
