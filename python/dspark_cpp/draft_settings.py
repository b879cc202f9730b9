"""The keywords that a Llama with a draft understands beside llama_cpp's own."""

from __future__ import annotations

import difflib
import inspect
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from llama_cpp.llama_speculative import LlamaDraftModel

from . import errors
from ._native import BaseLlama
from .draft import Draft, device_of_target
from .drafters import Drafter
from .lookup import LookupDrafter
from .params import devices, ggml_type, integer, number
from .session import verify_rule

__all__ = ["DraftSettings", "draft_limit", "refuse_typos"]

#: words by which a keyword is meant for us; llama_cpp itself ignores every keyword that it does not know
_OURS = ("draft", "specul", "spec_", "confidence", "kernel")
#: what others call ours
_MEANT = {
    "draft_path": "draft",
    "draft_file": "draft",
    "draft_gguf": "draft",
    "draft_model_path": "draft",
    "model_draft": "draft",
    "n_draft": "draft_n_max",
    "num_draft": "draft_n_max",
    "n_max": "draft_n_max",
    "nmax": "draft_n_max",
}


def draft_limit(n_max: Any) -> int | None:
    """draft_n_max as given: None, or 0 and more."""
    if n_max is None:
        return None
    n = integer(n_max, "draft_n_max")
    if n < 0:
        raise errors.ArgumentError(f"draft_n_max is {n}, expected None (automatic), 0 (no drafting) or more")
    return n


@dataclass(frozen=True)
class DraftSettings:
    """What to draft with and how; checked when made.

    Raises:
        ArgumentError: A value is out of its range, or ``draft`` is nothing that can draft.
    """

    draft: Draft | str | os.PathLike[str] | Drafter | LlamaDraftModel | None = None
    draft_n_max: int | None = None
    draft_n_gpu_layers: int | None = None
    draft_n_threads: int | None = None
    draft_n_ctx: int | None = None
    draft_type_k: str = "f16"
    draft_type_v: str = "f16"
    draft_verify: str = "match"
    confidence_min: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.draft, (Draft, str, os.PathLike, LlamaDraftModel, Drafter, type(None))):
            raise errors.ArgumentError(
                f"draft is a {type(self.draft).__name__}, expected the path of a draft, a Draft, a LlamaDraftModel, "
                "an object with n_draft_max and propose(), or None"
            )
        draft_limit(self.draft_n_max)
        verify_rule(self.draft_verify, "draft_verify")
        number(self.confidence_min, "confidence_min", "0 to 1", lambda x: 0 <= x <= 1)
        ggml_type(self.draft_type_k), ggml_type(self.draft_type_v)
        for name in ("draft_n_gpu_layers", "draft_n_threads", "draft_n_ctx"):
            if getattr(self, name) is not None:
                integer(getattr(self, name), name)
        if self.draft_n_gpu_layers is not None and not self.is_path:
            raise errors.ArgumentError("draft_n_gpu_layers is for a draft given as a path; a Draft has its device")

    @property
    def is_path(self) -> bool:
        return isinstance(self.draft, (str, os.PathLike))

    def wants(self) -> tuple[tuple[int, ...], int]:
        """The target layers whose inputs will be read, and the longest proposal. Of a file only the header is read."""
        if self.draft is None:
            return (), 0
        if isinstance(self.draft, LlamaDraftModel):
            return (), LookupDrafter.n_draft_max
        draft = Draft(self.draft, inspect=True) if isinstance(self.draft, (str, os.PathLike)) else self.draft
        return tuple(getattr(draft, "target_layers", ())), draft.n_draft_max

    def load(self, llm: Any) -> Draft | Drafter | LlamaDraftModel | None:
        """The draft, checked against its target; a path is loaded, on the target's device unless told otherwise.

        A draft has one device: any number of layers on the GPU means all of them, 0 the CPU.
        """
        if isinstance(self.draft, (str, os.PathLike)):
            device = device_of_target(llm) if self.draft_n_gpu_layers is None else "CPU"
            if self.draft_n_gpu_layers:
                gpus = [name for name, kind in devices() if kind in ("gpu", "igpu")]
                main_gpu = int(llm.model_params.main_gpu)
                device = gpus[min(max(main_gpu, 0), len(gpus) - 1)] if gpus else "CPU"  # as llama.cpp without a GPU
            return Draft(self.draft, device=device, target=llm)
        if isinstance(self.draft, Draft):
            self.draft.check_target(llm)
        return self.draft

    def session_arguments(self) -> dict[str, Any]:
        return {
            "n_threads": self.draft_n_threads,
            "n_ctx_draft": self.draft_n_ctx,
            "type_k": self.draft_type_k,
            "type_v": self.draft_type_v,
            "verify": self.draft_verify,
            "confidence_min": self.confidence_min,
        }

    def as_keywords(self) -> dict[str, Any]:
        """What makes the same settings, in another process too: a Draft as its path."""
        keywords = dict(self.__dict__)
        if isinstance(self.draft, Draft):
            keywords["draft"] = self.draft.path
        return keywords


def refuse_typos(given: Iterable[str], known: Iterable[str]) -> None:
    """Raises ArgumentError for a keyword that is meant for us and is not one of ours."""
    known = list(known)
    base = inspect.signature(BaseLlama.__init__).parameters
    for name in given:
        if name in known or name in base:
            continue
        meant = [_MEANT[name]] if name in _MEANT else difflib.get_close_matches(name, known, cutoff=0.75)
        if meant or any(word in name.lower() for word in _OURS):
            close = meant or difflib.get_close_matches(name, known, cutoff=0.5)
            hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"
            raise errors.ArgumentError(f"{name} is not a keyword of Llama; {hint}")
