"""Opening a target so that its features can be read whatever its architecture."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from typing import Any

import llama_cpp
from llama_cpp import llama_cpp as api

from . import errors
from ._native import BaseLlama, check, ffi, lib
from .draft import is_draft
from .interrupts import watch

__all__ = ["open_target"]

_lock = threading.Lock()


def architecture(model: Any) -> str:
    """ "llama", "qwen3", ...: what the file of a model says, which llama_cpp's internals hold."""
    buffer = ctypes.create_string_buffer(64)
    llama_cpp.llama_model_meta_val_str(model.model, b"general.architecture", buffer, len(buffer))
    return buffer.value.decode("utf-8", "replace")


def refuse_draft(path: str | os.PathLike[str], model: Any = None) -> None:
    """Raises FormatError if a draft's file was given as the target.

    llama.cpp takes some of them for models of their own (``model``), and says of the others only that it has failed.
    """
    if is_draft(path) if model is None else architecture(model) == "dflash":
        raise errors.FormatError(
            f'"{os.fspath(path)}" is a draft, not a target: give the path of its target here, and this one as the draft'
        ) from None


class FeatureTap:
    """llama.cpp's evaluation callback, through which features are read where there are no layer-input taps.

    It can only be given when a context is made, and must outlive it.
    """

    def __init__(self, layers: Sequence[int] = ()) -> None:
        self._layers = layers
        out = ffi.new("dspark_feature_tap **")
        check(lib.dspark_feature_tap_create(out))
        self._tap = out[0]

    def is_needed(self, model: Any) -> bool:
        """False if layer-input taps deliver the layers: the callback then costs a call for every node of a graph."""
        taps = lib.dspark_has_layer_taps() and lib.dspark_arch_has_layer_taps(architecture(model).encode())
        # the input of the layer after the last is offered by some of them only
        return not taps or max(self._layers, default=0) >= llama_cpp.llama_model_n_layer(model.model)

    def fill(self, params: Any) -> None:
        """Sets the callback in a llama_context_params."""
        address = int(ffi.cast("uintptr_t", ffi.addressof(lib, "dspark_feature_tap_callback")))
        params.cb_eval = type(params.cb_eval)(address)
        params.cb_eval_user_data = ctypes.c_void_p(int(ffi.cast("uintptr_t", self._tap)))

    def give_to(self, llm: Any) -> None:
        """The Llama, whose context was made with it, is the owner from now on."""
        # freed with the context, after the sessions that read it, which come later on this stack
        llm._stack.callback(lib.dspark_feature_tap_free, self._tap)
        llm._dspark_feature_tap = self._tap

    def free(self) -> None:
        lib.dspark_feature_tap_free(self._tap)


def open_target(model_path: str | os.PathLike[str], **settings: Any) -> BaseLlama:
    """A llama_cpp.Llama whose context carries a feature tap, and gives up a batch for a signal.

    The same as ``llama_cpp.Llama(model_path, **settings)`` but for two things. llama.cpp's evaluation callback, which
    can only be given when a context is made, is set to ours: sessions read features through it where the architecture
    has no layer-input taps. And so is its abort callback, through which SIGINT and SIGTERM end the batch in progress;
    ``llama_cpp.llama_set_abort_callback`` replaces it.

    Raises: ValueError: The model cannot be loaded. FormatError: It is a draft.
    """
    tap = FeatureTap()
    original = api.llama_context_default_params
    opener = threading.get_ident()

    def with_tap() -> Any:
        params = original()
        if threading.get_ident() == opener:  # another thread may be opening a Llama of its own
            tap.fill(params)
        return params

    # Llama takes every context parameter that it does not know from this function, looked up in the module when called
    with _lock:
        api.llama_context_default_params = with_tap
        llama_cpp.llama_context_default_params = with_tap
        try:
            llm = BaseLlama(os.fspath(model_path), **settings)
        except BaseException as exception:
            tap.free()
            if isinstance(exception, ValueError):
                refuse_draft(model_path)
            raise
        finally:
            api.llama_context_default_params = original
            llama_cpp.llama_context_default_params = original
    tap.give_to(llm)
    watch(llm)
    try:
        refuse_draft(model_path, llm._model)
    except errors.FormatError:
        llm.close()
        raise
    return llm


def feature_tap(llm: Any) -> Any:
    """The dspark_feature_tap * of a Llama made by open_target(), NULL for any other."""
    return getattr(llm, "_dspark_feature_tap", ffi.NULL)
