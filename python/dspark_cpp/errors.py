"""The errors that dspark_cpp raises, each also of the builtin kind that a Python reader expects."""

from __future__ import annotations

__all__ = [
    "DSparkError",
    "ArgumentError",
    "FileError",
    "FormatError",
    "MismatchError",
    "OutOfMemoryError",
    "BackendError",
    "ContextFullError",
    "StateError",
    "BindingError",
]


class DSparkError(Exception):
    """Base of all errors of this package."""


class ArgumentError(DSparkError, ValueError):
    """An argument is outside its range; the message names the value seen and the value wanted."""


class FileError(DSparkError, OSError):
    """A file is missing, unreadable or truncated."""


class FormatError(DSparkError, ValueError):
    """A file is readable but is not a draft that this version can run."""


class MismatchError(DSparkError, ValueError):
    """Draft and target do not belong together."""


class OutOfMemoryError(DSparkError, MemoryError):
    """A buffer could not be allocated; the object is as it was before the call."""


class BackendError(DSparkError, RuntimeError):
    """ggml or llama.cpp reported a failure; the object is as documented at the call."""


class ContextFullError(DSparkError, RuntimeError):
    """The sequence has reached the context size."""


class StateError(DSparkError, RuntimeError):
    """The object is closed, busy, or not in a state that allows the call."""


class BindingError(DSparkError, ImportError):
    """The loaded llama.cpp is not one that this library can bind to."""
