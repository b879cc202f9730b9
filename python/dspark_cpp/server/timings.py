"""What a request's generation took and what drafting brought, put into its response as ``timings``."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from ..draft_settings import draft_limit
from ..errors import ArgumentError

__all__ = ["Timings", "TimingsMiddleware", "current"]

log = logging.getLogger("dspark_cpp")

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]


@dataclass
class Timings:
    """Counts of one generation, or of a request, which may generate more than once. Times are seconds without waiting.

    ``prompt_s`` is the time to the first token, ``predicted_s`` that of the tokens after it.
    """

    n_calls: int = 0
    prompt_n: int = 0
    prompt_s: float = 0.0
    predicted_n: int = 0
    predicted_s: float = 0.0
    draft_n: int = 0
    draft_n_accepted: int = 0
    #: what the request's body says of it
    draft_n_max: int | None = None

    def add(self, call: Timings) -> None:
        """One generation more."""
        self.n_calls += 1
        self.prompt_n += call.prompt_n
        self.prompt_s += call.prompt_s
        self.predicted_n += call.predicted_n
        self.predicted_s += call.predicted_s
        self.draft_n += call.draft_n
        self.draft_n_accepted += call.draft_n_accepted

    def as_dict(self) -> dict[str, float]:
        """Under the names of llama.cpp's server."""
        n_later = self.predicted_n - self.n_calls
        return {
            "prompt_ms": round(self.prompt_s * 1e3, 3),
            "predicted_n": self.predicted_n,
            "predicted_ms": round(self.predicted_s * 1e3, 3),
            "predicted_per_second": round(n_later / self.predicted_s, 3) if n_later > 0 else 0.0,
            "draft_n": self.draft_n,
            "draft_n_accepted": self.draft_n_accepted,
        }


#: of the request being served: threads that work for it see it too
current: ContextVar[Timings | None] = ContextVar("dspark_cpp_timings", default=None)


class TimingsMiddleware:
    """Gives each completion its Timings, and writes them into the answer: the JSON object, or a stream's last event.

    FastAPI cuts what its response models do not know, and chat handlers rebuild what a completion returns, so this is
    done from outside. OpenAI clients keep unknown fields of a response. A stream that fails ends with an event that
    says so, where llama_cpp's just breaks off. For the same reason a request's ``draft_n_max`` is read here.
    """

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or not scope["path"].endswith("/completions"):
            await self._app(scope, receive, send)
            return
        body = await _read(receive)
        if body is None:
            return  # the client has gone
        try:
            timings = Timings(draft_n_max=_draft_n_max(body))
        except ArgumentError as exc:
            await _refuse(send, str(exc))
            return
        receive = _Replay(body, receive)
        answer = _Answer(send, timings)
        token = current.set(timings)
        try:
            await self._app(scope, receive, answer.send)
            await answer.close()
        except Exception as exc:
            if not answer.streams:
                raise
            await answer.fail(exc)
        finally:
            current.reset(token)


async def _read(receive: Receive) -> bytes | None:
    """The body of a request; None if the client has broken off."""
    body = b""
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return None
        body += bytes(message.get("body", b""))
        if not message.get("more_body", False):
            return body


def _draft_n_max(body: bytes) -> int | None:
    """Raises: ArgumentError: There is one, and it is no draft length."""
    try:
        request = json.loads(body)
    except ValueError:  # the base says so
        return None
    return draft_limit(request.get("draft_n_max")) if isinstance(request, dict) else None


async def _refuse(send: Send, why: str) -> None:
    error = {"message": why, "type": "invalid_request_error", "param": "draft_n_max", "code": None}
    body = json.dumps({"error": error}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class _Replay:
    """Gives a body that was read already, and then what else comes."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _Answer:
    """The messages of one response on their way out."""

    def __init__(self, send: Send, timings: Timings) -> None:
        self._send = send
        self._timings = timings
        self._start: Message = {}
        self._body = b""
        self._closing = False
        self.streams = False

    async def close(self) -> None:
        if self._closing:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            kind = dict(message["headers"]).get(b"content-type", b"")
            self.streams = kind.startswith(b"text/event-stream")
            self._start = message
            if self.streams:
                await self._send(message)
        elif message["type"] != "http.response.body":
            await self._send(message)
        elif self.streams:
            self._closing = not message.get("more_body", False)  # held back: an error may follow
            await self._send({**message, "body": self._event(message.get("body", b"")), "more_body": True})
        else:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._whole()

    async def _whole(self) -> None:
        body = self._with_timings(self._body)
        headers = [(name, value) for name, value in self._start["headers"] if name.lower() != b"content-length"]
        headers.append((b"content-length", str(len(body)).encode()))
        await self._send({**self._start, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})

    def _event(self, body: bytes) -> bytes:
        if not body.startswith(b"data: {"):
            return body
        data = body.rstrip()
        return b"data: " + self._with_timings(data[6:]) + body[len(data) :]

    def _with_timings(self, body: bytes) -> bytes:
        """The JSON object with timings, if it ends a completion."""
        try:
            answer = json.loads(body)
            ended = answer["choices"][0]["finish_reason"] is not None
        except (ValueError, LookupError, TypeError):  # an error report
            return body
        return json.dumps({**answer, "timings": self._timings.as_dict()}).encode() if ended else body

    async def fail(self, exc: Exception) -> None:
        while hasattr(exc, "exceptions"):  # an ExceptionGroup, of a package before Python 3.11
            exc = exc.exceptions[0]
        log.error("a stream failed: %s", exc, exc_info=exc)
        detail = getattr(exc, "detail", None) or str(exc) or type(exc).__name__
        error = {"message": detail, "type": "internal_server_error", "param": None, "code": None}
        event = f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n"
        await self._send({"type": "http.response.body", "body": event.encode(), "more_body": False})
