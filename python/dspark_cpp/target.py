"""Opening a target so that its features can be read whatever its architecture."""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as api

from ._native import check, ffi, lib

__all__ = ["open_target"]

_lock = threading.Lock()


def open_target(model_path: str | os.PathLike[str], **settings: Any) -> llama_cpp.Llama:
    """A llama_cpp.Llama whose context carries a feature tap.

    The same as ``llama_cpp.Llama(model_path, **settings)`` but for one thing: llama.cpp's evaluation callback, which
    can only be given when a context is made, is set to ours. Sessions read features through it where the architecture
    has no layer-input taps.
    """
    out = ffi.new("dspark_feature_tap **")
    check(lib.dspark_feature_tap_create(out))
    tap = out[0]
    address = int(ffi.cast("uintptr_t", ffi.addressof(lib, "dspark_feature_tap_callback")))
    original = api.llama_context_default_params
    opener = threading.get_ident()

    def with_tap() -> Any:
        params = original()
        if threading.get_ident() == opener:  # another thread may be opening a Llama of its own
            params.cb_eval = type(params.cb_eval)(address)
            params.cb_eval_user_data = ctypes.c_void_p(int(ffi.cast("uintptr_t", tap)))
        return params

    # Llama takes every context parameter that it does not know from this function, looked up in the module when called
    with _lock:
        api.llama_context_default_params = with_tap
        llama_cpp.llama_context_default_params = with_tap
        try:
            llm = llama_cpp.Llama(os.fspath(model_path), **settings)
        except BaseException:
            lib.dspark_feature_tap_free(tap)
            raise
        finally:
            api.llama_context_default_params = original
            llama_cpp.llama_context_default_params = original
    # freed with the context, after the sessions that read it, which come later on this stack
    llm._stack.callback(lib.dspark_feature_tap_free, tap)
    llm._dspark_feature_tap = tap
    return llm


def feature_tap(llm: Any) -> Any:
    """The dspark_feature_tap * of a Llama made by open_target(), NULL for any other."""
    return getattr(llm, "_dspark_feature_tap", ffi.NULL)
