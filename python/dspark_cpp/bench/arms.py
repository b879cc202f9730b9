"""The ways of decoding that are compared."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

from .. import kernels
from ..errors import ArgumentError, DSparkError
from ..llama import Llama
from ..stats import Stats

__all__ = ["Arm", "LlamaArm", "PeerArm", "Run", "make_arms", "require_peer"]


@dataclass(frozen=True)
class Run:
    """One prompt decoded by one arm."""

    ids: list[int]
    #: until the first token
    prefill_seconds: float
    #: from the first token to the last
    seconds: float
    draft_n: int = 0
    draft_n_accepted: int = 0
    stats: Stats | None = None

    @property
    def rate(self) -> float:
        """Tokens per second, the first token and its prefill left out."""
        return (len(self.ids) - 1) / self.seconds if len(self.ids) > 1 else float("nan")


class Arm:
    """A way of decoding; `group` is "plain" (llama-cpp-python), "own" or "peer"."""

    name: str
    group: Literal["plain", "own", "peer"]

    def run(self, prompt: list[int], n_predict: int) -> Run:
        """Decodes greedily up to n_predict tokens or the end of the text."""
        raise NotImplementedError

    def close(self) -> None:
        """Frees what it holds."""


class LlamaArm(Arm):
    """A Llama of llama-cpp-python or of ours; `n_max` is the draft length for a draft of ours."""

    def __init__(self, name: str, group: Literal["plain", "own"], llm: Any, n_max: int | None = None) -> None:
        self.name, self.group, self.llm, self.n_max = name, group, llm, n_max

    def run(self, prompt: list[int], n_predict: int) -> Run:
        llm = self.llm
        kernels.install("off" if self.group == "plain" else "auto")
        if isinstance(llm, Llama):
            llm.draft_n_max = self.n_max
        llm.reset()
        ids: list[int] = []
        start = first = last = time.perf_counter()
        steps = llm.generate(prompt, temp=0.0, repeat_penalty=1.0)
        for token in steps:
            last = time.perf_counter()
            first = first if ids else last
            ids.append(int(token))
            if len(ids) >= n_predict or llama_cpp.llama_vocab_is_eog(llm._model.vocab, token):
                break
        steps.close()
        stats = llm.speculation.last if isinstance(llm, Llama) else None
        drafted = (stats.draft_n, stats.draft_n_accepted) if stats else (0, 0)
        return Run(ids, first - start, last - first, *drafted, stats)

    def close(self) -> None:
        self.llm.close()


class PeerArm(Arm):
    """llama.cpp's own speculative decoding, through xllamacpp in a process of its own."""

    group = "peer"

    def __init__(self, name: str, target: str, draft: str | None, n_max: int, p_min: float, n_threads: int) -> None:
        self.name = name
        settings = {"target": target, "draft": draft, "n_max": n_max, "p_min": p_min, "n_threads": n_threads}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "dspark_cpp.bench.peer", json.dumps(settings)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, prompt: list[int], n_predict: int) -> Run:
        assert self._process.stdin and self._process.stdout
        try:
            print(json.dumps({"prompt": prompt, "n_predict": n_predict}), file=self._process.stdin, flush=True)
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.startswith("{"):
            raise DSparkError(f"the peer ({self.name}) has ended: {self._reason()}")
        found = json.loads(line)
        ids = list(range(found["n"]))  # their number is all that is known of them
        return Run(ids, found["prompt_ms"] / 1e3, found["ms"] / 1e3, found["draft_n"], found["draft_n_accepted"])

    def _reason(self) -> str:
        self._process.kill()
        text = self._process.communicate()[1].strip().splitlines()
        return text[-1] if text else "it said nothing"

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def require_peer() -> None:
    """Raises: ArgumentError: xllamacpp is not installed."""
    if find_spec("xllamacpp") is None:
        raise ArgumentError("--peer needs xllamacpp: pip install xllamacpp")


def make_arms(
    target: str, draft: str, lengths: list[int], *, n_ctx: int, n_threads: int, peer: bool, lookup: bool
) -> list[Arm]:
    """Plain llama-cpp-python first, then ours without a draft, with fixed lengths and automatic; then the peer's.

    lookup: with the prompt lookup of llama-cpp-python too, which keeps logits of n_ctx positions.
    """
    settings: dict[str, Any] = {"n_ctx": n_ctx, "n_threads": n_threads, "n_threads_batch": n_threads, "verbose": False}
    kernels.install("off")
    arms: list[Arm] = [LlamaArm("llama-cpp-python", "plain", llama_cpp.Llama(target, **settings))]
    if lookup:
        searching = llama_cpp.Llama(target, **settings, logits_all=True, draft_model=LlamaPromptLookupDecoding())
        arms.append(LlamaArm("its prompt lookup", "plain", searching))
    arms.append(LlamaArm("no draft", "own", Llama(target, **settings)))
    drafting = Llama(target, **settings, draft=draft)
    arms += [LlamaArm(f"draft {k}", "own", drafting, k) for k in lengths]
    arms.append(LlamaArm("auto", "own", drafting, None))
    if peer:
        arms.append(PeerArm("peer, no draft", target, None, 0, 0.0, n_threads))
        # each once: where the longest is 2
        for n_max, p_min in dict.fromkeys(((2, 0.0), (3, 0.6), (max(lengths), 0.0))):
            arms.append(PeerArm(f"peer, {n_max}, p_min {p_min:g}", target, draft, n_max, p_min, n_threads))
    return arms
