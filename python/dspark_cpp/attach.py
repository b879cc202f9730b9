"""A draft for a Llama that exists already, and our Llama in place of llama_cpp's for programs that make their own."""

from __future__ import annotations

from typing import Any

import llama_cpp
import llama_cpp.llama
import numpy as np
from llama_cpp.llama_tokenizer import LlamaTokenizer

from . import errors
from ._native import BaseLlama, require_llama
from .draft_settings import DraftSettings, refuse_typos
from .incremental_tokenizer import IncrementalTokenizer
from .llama import Llama

__all__ = ["attach", "detach", "install", "uninstall"]


def attach(llm: Any, draft: Any, **settings: Any) -> Llama:
    """Makes an open llama_cpp.Llama decode with a draft, and returns it: the same object, of class dspark_cpp.Llama.

    The sequence it holds is kept. The keywords are those of Llama (``draft_n_max``, ...). An architecture without
    layer-input taps needs a Llama that was made with its draft, or by open_target().

    Raises: as Llama(). The object is as before then.
    """
    require_llama(llm)
    known = DraftSettings().as_keywords()
    refuse_typos(settings, known)
    for name in settings:
        if name not in known:
            raise errors.ArgumentError(f"{name} is not a keyword of attach(); expected one of {', '.join(known)}")
    wanted = DraftSettings(draft=draft, **settings)
    if isinstance(llm, Llama):
        before = llm._settings
        with llm._turns.call():
            try:
                llm._use(wanted)
            except BaseException:
                llm._use(before)
                raise
        return llm
    original = type(llm)
    # a class that somebody derived from the base keeps what it has overridden
    llm.__class__ = Llama if original is BaseLlama else type(original.__name__, (Llama, original), {})
    llm._attached_to = original
    try:
        llm._begin(wanted)
    except BaseException:
        _restore(llm)
        raise
    return llm  # type: ignore[no-any-return]


def detach(llm: Llama) -> Any:
    """Takes the draft away again; an object that attach() has changed is what it was. The sequence is kept."""
    if not isinstance(llm, Llama):
        raise errors.ArgumentError(f"the Llama is a {type(llm).__name__}, which has no draft; expected one of attach()")
    require_llama(llm)
    with llm._turns.call():
        llm._use(DraftSettings())
    if "_attached_to" in llm.__dict__:
        _restore(llm)
    return llm


def _restore(llm: Any) -> None:
    """Undoes what attach() did to an object of the base."""
    llm.__class__ = llm.__dict__.pop("_attached_to")
    for name in ("_turns", "_engine", "_settings", "_draft", "speculation"):
        llm.__dict__.pop(name, None)
    llm.draft_model = None
    if type(llm.tokenizer_) is IncrementalTokenizer:
        llm.tokenizer_ = LlamaTokenizer(llm)
    if not llm._logits_all:
        llm.scores = np.ndarray((llm.n_batch, llm._n_vocab), np.single)


def install() -> None:
    """llama_cpp.Llama is ours from now on, for programs that make it themselves.

    To be called before they are imported: ``from llama_cpp import Llama`` remembers the class that it found.
    Without a draft our class decodes as llama_cpp's does. Reversed by uninstall(); may be called more than once.
    """
    llama_cpp.Llama = llama_cpp.llama.Llama = Llama


def uninstall() -> None:
    """llama_cpp.Llama is llama_cpp's own again; objects made in between stay what they are."""
    llama_cpp.Llama = llama_cpp.llama.Llama = BaseLlama
