"""The models of a server: dspark_cpp.Llama where llama_cpp.server makes a llama_cpp.Llama."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Generator, Sequence
from typing import Any

import llama_cpp
from fastapi import HTTPException
from llama_cpp.server import model as base

from .. import errors
from ..draft import Draft
from ..llama import Llama
from .metrics import Metrics
from .settings import ModelSettings, draft_arguments
from .timings import Timings, current

__all__ = ["DraftProxy", "ServerLlama", "stopping"]

#: set when the server is told to end: what is being generated then ends at the next token
stopping = threading.Event()


class ServerLlama(Llama):
    """A Llama that counts what it generates, for the metrics and for the request it works for."""

    #: its name in the metrics
    label = ""
    metrics: Metrics

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._streams: weakref.WeakSet[Any] = weakref.WeakSet()
        super().__init__(*args, **kwargs)

    def _create_completion(self, *args: Any, **kwargs: Any) -> Any:
        self._end_streams()
        completion = super()._create_completion(*args, **kwargs)
        self._streams.add(completion)
        return completion

    def _end_streams(self) -> None:
        """Ends streams whose clients have gone: the base forgets them half read, and they would keep their turn."""
        for stream in list(self._streams):  # the server works for one request at a time: all are old
            stream.close()

    def close(self) -> None:
        self._end_streams()
        super().close()

    def generate(self, tokens: Sequence[int], *args: Any, **kwargs: Any) -> Generator[int, Sequence[int] | None, None]:
        request = current.get()
        call = Timings(prompt_n=len(tokens))
        n_max, first = self.draft_n_max, True
        if request is not None and request.draft_n_max is not None:
            self.draft_n_max = request.draft_n_max
        steps = super().generate(tokens, *args, **kwargs)
        sent: Sequence[int] | None = None
        try:
            while not stopping.is_set():
                start = time.perf_counter()
                try:
                    token = steps.send(sent)
                except StopIteration:
                    return
                finally:
                    seconds = time.perf_counter() - start
                    if first:
                        call.prompt_s += seconds
                    else:
                        call.predicted_s += seconds
                first = False
                # the end is no part of the answer, whose usage does not count it either
                call.predicted_n += not llama_cpp.llama_vocab_is_eog(self._model.vocab, token)
                sent = yield token
            raise HTTPException(503, "the server is stopping")
        finally:
            steps.close()
            self.draft_n_max = n_max
            stats = self.speculation.last
            call.draft_n, call.draft_n_accepted = stats.draft_n, stats.draft_n_accepted
            self.metrics.count(self.label, call, stats)
            if request is not None:
                request.add(call)


class _LlamaCpp:
    """The module llama_cpp as llama_cpp.server.model sees it while it loads a model: its Llama is made by ``make``."""

    def __init__(self, make: _Make) -> None:
        self.Llama = make

    def __getattr__(self, name: str) -> Any:
        return getattr(llama_cpp, name)


class _Make:
    """Makes a ServerLlama from the base's arguments and the draft's."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments

    def __call__(self, **kwargs: Any) -> ServerLlama:
        return ServerLlama(**kwargs, **self._arguments)

    def from_pretrained(self, **kwargs: Any) -> Llama:
        return ServerLlama.from_pretrained(**kwargs, **self._arguments)


class DraftProxy(base.LlamaProxy):  # type: ignore[misc, unused-ignore]
    """The base's proxy, one model in memory at a time, each with its draft.

    Raises: FileError, FormatError: A draft of any of the models cannot be read, or is none.
    """

    def __init__(self, models: list[ModelSettings], *, metrics: Metrics) -> None:
        for settings in models:
            if isinstance(settings, ModelSettings) and settings.draft is not None and not settings.draft_hf_repo_id:
                try:
                    Draft(settings.draft, inspect=True)
                except errors.FormatError as exc:
                    raise errors.FormatError(f"the draft of model {settings.model}: {exc}") from None
                except errors.FileError as exc:
                    raise errors.FileError(f"the draft of model {settings.model}: {exc}") from None
        self._metrics = metrics
        super().__init__(models)

    def load_llama_from_model_settings(self, settings: Any) -> Any:
        # the base looks up llama_cpp.Llama in its own namespace, and there alone it is replaced
        base.llama_cpp = _LlamaCpp(_Make(draft_arguments(settings)))
        try:
            llm = super().load_llama_from_model_settings(settings)
        finally:
            base.llama_cpp = llama_cpp
        alias = settings.model_alias  # where none was given, the base has put the path
        llm.label, llm.metrics = os.path.basename(alias) if alias == settings.model else alias, self._metrics
        self._metrics.model_loaded(llm.label, llm.speculation.disabled_reason is None)
        return llm
