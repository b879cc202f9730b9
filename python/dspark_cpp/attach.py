"""A draft for a Llama that exists already, and our Llama in place of llama_cpp's for programs that make their own."""

from __future__ import annotations

from typing import Any

import llama_cpp
import llama_cpp.llama

from . import errors
from ._native import BaseLlama, require_llama
from .draft_settings import DraftSettings, refuse_typos
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
    found = {name: vars(llm)[name] for name in ("draft_model", "_logits_all", "scores", "tokenizer_")}
    # a class that somebody derived from the base keeps what it has overridden
    llm.__class__ = Llama if original is BaseLlama else type(original.__name__, (Llama, original), {})
    llm._attached_to = original, found
    # the base sets it for a draft model of its own kind, and makes rows for what was asked
    if found["draft_model"] is not None and len(llm.scores) < llm._n_ctx:
        llm._logits_all = False
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
    llm.__class__, found = llm.__dict__.pop("_attached_to")
    for name in ("_turns", "_engine", "_settings", "_draft", "_n_wanted", "speculation"):
        llm.__dict__.pop(name, None)
    vars(llm).update(found)


def install() -> None:
    """llama_cpp.Llama is ours from now on, for programs that make it themselves.

    To be called before they are imported: ``from llama_cpp import Llama`` remembers the class that it found.
    Without a draft our class decodes as llama_cpp's does. Reversed by uninstall(); may be called more than once.
    """
    llama_cpp.Llama = llama_cpp.llama.Llama = Llama


def uninstall() -> None:
    """llama_cpp.Llama is llama_cpp's own again; objects made in between stay what they are."""
    llama_cpp.Llama = llama_cpp.llama.Llama = BaseLlama
