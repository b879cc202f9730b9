"""The only importer of the cffi binding: binds it to llama_cpp's libllama, checks statuses, passes pointers."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
from llama_cpp.llama import Llama as BaseLlama  # the class itself: install() gives its name to another

from . import errors
from ._openmp import forget_short_spins, let_threads_go_before_forks

forget_short_spins()  # llama_cpp has been loaded with them
let_threads_go_before_forks(llama_cpp.llama_cpp._lib)

try:
    from ._ffi import ffi, lib
except ImportError as exc:
    raise errors.BindingError(
        f"the native library of dspark_cpp cannot be loaded ({exc}); reinstall it with: "
        "pip install --force-reinstall --no-deps dspark-cpp-python"
    ) from exc

__all__ = [
    "BaseLlama",
    "TESTED_LLAMA_CPP",
    "check",
    "ffi",
    "lib",
    "model_pointer",
    "context_pointer",
    "path_bytes",
    "text",
    "tokens",
]

#: llama-cpp-python versions that the tests have run with: from the first, below the second
TESTED_LLAMA_CPP = ("0.3.36", "0.3.37")

_ERRORS: dict[int, type[errors.DSparkError]] = {
    lib.DSPARK_ERROR_ARGUMENT: errors.ArgumentError,
    lib.DSPARK_ERROR_FILE: errors.FileError,
    lib.DSPARK_ERROR_FORMAT: errors.FormatError,
    lib.DSPARK_ERROR_MISMATCH: errors.MismatchError,
    lib.DSPARK_ERROR_MEMORY: errors.OutOfMemoryError,
    lib.DSPARK_ERROR_BACKEND: errors.BackendError,
    lib.DSPARK_ERROR_CONTEXT_FULL: errors.ContextFullError,
    lib.DSPARK_ERROR_STATE: errors.StateError,
    lib.DSPARK_ERROR_BINDING: errors.BindingError,
    lib.DSPARK_ERROR_CALLBACK: errors.BackendError,
    lib.DSPARK_ERROR_INTERNAL: errors.DSparkError,
}


def text(pointer: Any) -> str:
    """A C string as str; "" for NULL."""
    return "" if pointer == ffi.NULL else ffi.string(pointer).decode("utf-8", "replace")


def check(status: int) -> None:
    """Raises the error that a dspark_status stands for, with the library's sentence; nothing for DSPARK_OK."""
    if status != lib.DSPARK_OK:
        raise _ERRORS.get(status, errors.DSparkError)(text(lib.dspark_last_error()))


def _library_handles() -> list[int]:
    """Handles in which every symbol of llama.cpp and ggml is found.

    On Linux and macOS a look-up through libllama also searches the libraries it depends on; Windows needs each one.
    """
    loaded = llama_cpp.llama_cpp._lib
    handles = [loaded._handle]
    if sys.platform == "win32":
        folder = os.path.dirname(loaded._name)
        handles += [
            ctypes.CDLL(os.path.join(folder, name))._handle
            for name in ("ggml.dll", "ggml-base.dll", "ggml-cpu.dll")
            if os.path.exists(os.path.join(folder, name))
        ]
    return handles


def _quiet_log() -> None:
    """llama_cpp prints ggml's whole log, debug lines included, until a Llama sets its `verbose`: a draft loaded before
    the first Llama would be the one to fill stderr."""
    logger = logging.getLogger("llama-cpp-python")
    if logger.level == logging.NOTSET:
        logger.setLevel(logging.ERROR)


def _bind() -> None:
    handles = _library_handles()
    array = ffi.new("void *[]", [ffi.cast("void *", handle) for handle in handles])
    check(lib.dspark_bind(array, len(handles)))


def path_bytes(path: str | os.PathLike[str]) -> bytes:
    """A path as the C library wants it."""
    encoded = os.fsencode(path)
    if b"\0" in encoded:
        raise errors.ArgumentError(f"the path {path!r} contains a NUL character")
    return encoded


def tokens(values: Any, what: str = "tokens") -> npt.NDArray[np.int32]:
    """Token ids as a contiguous int32 array (n,); refuses what is not a sequence of integers in range."""
    array = np.asarray(values)
    if array.ndim != 1:
        raise errors.ArgumentError(f"{what} has {array.ndim} dimensions, expected a flat sequence of token ids")
    if array.size and array.dtype.kind not in "iu":
        raise errors.ArgumentError(f"{what} has elements of type {array.dtype}, expected integers")
    if array.size and (array.min() < 0 or array.max() > 2**31 - 1):
        bad = array[(array < 0) | (array > 2**31 - 1)][0]
        raise errors.ArgumentError(f"{what} contains {bad}, expected token ids of 0 or more")
    return np.ascontiguousarray(array, dtype=np.int32)


def require_llama(llm: Any) -> None:
    """Refuses what is not an open llama_cpp.Llama."""
    if not isinstance(llm, BaseLlama):
        raise errors.ArgumentError(f"the target is a {type(llm).__name__}, expected a llama_cpp.Llama")
    # after Llama.close() its model is gone, and llama.cpp would crash on it
    if getattr(llm._model, "model", None) is None or getattr(llm._ctx, "ctx", None) is None:
        raise errors.StateError("the Llama is closed")


def model_pointer(llm: Any) -> Any:
    """struct llama_model * of an open llama_cpp.Llama."""
    require_llama(llm)
    return ffi.cast("struct llama_model *", ctypes.cast(llm._model.model, ctypes.c_void_p).value)


def context_pointer(llm: Any) -> Any:
    """struct llama_context * of an open llama_cpp.Llama."""
    require_llama(llm)
    return ffi.cast("struct llama_context *", ctypes.cast(llm._ctx.ctx, ctypes.c_void_p).value)


_quiet_log()
_bind()
