"""Responses of the target to prompts: what a draft is trained to predict, in the target's own words."""

from __future__ import annotations

import errno
import functools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..errors import ArgumentError, FileError, FormatError
from .batched import Request, generate, open_batched
from .workers import default_workers, ordered

__all__ = ["Prompt", "Response", "ResponseSettings", "generate_responses", "read_responses"]


class Prompt(NamedTuple):
    """A prompt in the target's chat template, up to where the response begins."""

    tokens: list[int]
    #: where it is from, for statistics
    source: str


class Response(NamedTuple):
    """A line of a file of responses."""

    prompt: list[int]
    response: list[int]
    source: str
    temperature: float
    #: "stop", "length" or "loop"
    finish: str


@dataclass(frozen=True)
class ResponseSettings:
    """How responses are made; a response depends on these, its prompt and its place in the list of prompts alone."""

    #: longest response
    max_tokens: int = 256
    #: temperatures and the share of the prompts that gets each; 0: greedy
    temperatures: tuple[tuple[float, float], ...] = ((0.0, 0.75), (0.8, 0.25))
    seed: int = 0
    #: sequences in a batch, of each process
    n_parallel: int = 32

    def __post_init__(self) -> None:
        shares = [share for _, share in self.temperatures]
        if not shares or min(shares) < 0 or abs(sum(shares) - 1) > 1e-6:
            raise ArgumentError(f"the shares of the temperatures are {shares}, expected a sum of 1")
        if self.max_tokens < 1 or self.n_parallel < 1:
            raise ArgumentError(f"max_tokens is {self.max_tokens} and n_parallel {self.n_parallel}, expected 1 or more")

    def request(self, index: int, prompt: Sequence[int]) -> Request:
        rng = np.random.default_rng([self.seed, index])
        values, shares = zip(*self.temperatures, strict=True)
        return Request(index, prompt, float(rng.choice(values, p=shares)), int(rng.integers(1 << 31)))


def _work(
    target: str, settings: ResponseSettings, n_ctx: int, n_threads: int, items: Iterator[tuple[int, Request]]
) -> Iterator[tuple[int, Any]]:
    llm = open_batched(target, settings.n_parallel, n_ctx, n_threads)
    try:
        # numbered by place in this run; a request's own index counts from the first prompt
        places = {}

        def requests() -> Iterator[Request]:
            for place, request in items:
                places[request.index] = place
                yield request

        for done in generate(llm, requests(), n_parallel=settings.n_parallel, max_tokens=settings.max_tokens):
            yield places.pop(done.index), done
    finally:
        llm.close()


def generate_responses(
    target: str | os.PathLike[str],
    prompts: Sequence[Prompt],
    path: str | os.PathLike[str],
    settings: ResponseSettings | None = None,
    *,
    n_workers: int | None = None,
    n_threads: int | None = None,
) -> Iterator[Response]:
    """Appends the target's response to each prompt to a file of JSON lines, and yields it.

    Lines are in the order of the prompts. What the file holds already is kept, and the next prompt is gone on with;
    so an interrupted run that is started again writes the very file that an uninterrupted one would have written.

    Args:
        n_workers: Processes, each with a copy of the target; None: one a core where memory allows it.
        n_threads: Threads of each; None: the cores, shared out.

    Raises:
        FileError: The file cannot be written, or the disk is full. FormatError: It holds other prompts' responses.
    """
    settings = settings or ResponseSettings()
    path = Path(path)
    done = _whole_lines(path)
    for i, response in enumerate(done):
        if i >= len(prompts) or response.prompt != list(prompts[i].tokens):
            raise FormatError(f"{path}:{i + 1} is not the response to prompt {i + 1}; use another file or remove this")
    if len(done) == len(prompts):
        return
    workers = n_workers or default_workers(target)
    threads = n_threads or max(1, (os.cpu_count() or 1) // workers)
    n_ctx = max(len(p.tokens) for p in prompts) + settings.max_tokens
    requests = [settings.request(i, prompts[i].tokens) for i in range(len(done), len(prompts))]
    work = functools.partial(_work, os.fspath(target), settings, n_ctx, threads)
    try:
        with open(path, "a", encoding="utf-8") as file:
            for request, made in zip(requests, ordered(work, requests, workers), strict=True):
                prompt = prompts[request.index]
                response = Response(list(prompt.tokens), made.tokens, prompt.source, request.temperature, made.finish)
                file.write(json.dumps(response._asdict(), separators=(",", ":")) + "\n")
                file.flush()
                yield response
    except OSError as e:
        if isinstance(e, FileError):
            raise
        why = "the disk is full" if e.errno == errno.ENOSPC else e.strerror
        raise FileError(f"{path}: cannot write responses: {why}; the lines written before are kept") from None


def read_responses(path: str | os.PathLike[str]) -> Iterator[Response]:
    """The responses of a file; a last line without an end is still being written and is left out.

    Raises: FileError: it cannot be read. FormatError: a line is no response.
    """
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith("\n"):
                    return
                try:
                    yield Response(**json.loads(line))
                except (ValueError, TypeError) as e:
                    raise FormatError(f"{os.fspath(path)}:{number} is no response: {e}") from None
    except (OSError, UnicodeDecodeError) as e:
        if isinstance(e, FileError):
            raise
        raise FileError(f"{os.fspath(path)}: cannot be read: {e}") from None


def _whole_lines(path: Path) -> list[Response]:
    """What the file holds; a line that a killed run has left unfinished is cut off."""
    if not path.exists():
        return []
    done = list(read_responses(path))
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        os.truncate(path, data.rfind(b"\n") + 1)
    return done
