"""DSpark speculative decoding for GGUF models, in process.

The names below are loaded on first use, so that `dspark-cpp doctor` can still report when the native library cannot
be bound to the installed llama.cpp.
"""

from __future__ import annotations

import importlib
import logging
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ._openmp import want_short_spins

if TYPE_CHECKING:
    from .attach import attach, detach, install, uninstall
    from .draft import Draft, DraftContext, Proposal
    from .drafters import Drafter
    from .errors import (
        ArgumentError,
        BackendError,
        BindingError,
        ContextFullError,
        DSparkError,
        FileError,
        FormatError,
        MismatchError,
        OutOfMemoryError,
        StateError,
    )
    from .features import FeatureReader
    from .llama import Llama
    from .sampling import Sampler
    from .session import Session
    from .speculation import Speculation
    from .stats import Round, Stats
    from .target import open_target
    from .tokens import TextStream, encode, encode_chat

want_short_spins()
logging.getLogger("dspark_cpp").addHandler(logging.NullHandler())  # Python prints the warnings of a library without one

try:
    __version__ = version("dspark-cpp-python")
except PackageNotFoundError:  # run from a source tree that was never installed: the C header has it
    _header = Path(__file__).resolve().parents[2] / "cpp" / "include" / "dspark.h"
    _found = re.search(r'DSPARK_VERSION "(.+)"', _header.read_text("utf-8")) if _header.exists() else None
    __version__ = _found[1] if _found else "0+unknown"

_HOME = {
    "Draft": "draft",
    "DraftContext": "draft",
    "Proposal": "draft",
    "Drafter": "drafters",
    "FeatureReader": "features",
    "Sampler": "sampling",
    "Session": "session",
    "Round": "stats",
    "Stats": "stats",
    "Llama": "llama",
    "Speculation": "speculation",
    "attach": "attach",
    "detach": "attach",
    "install": "attach",
    "uninstall": "attach",
    "open_target": "target",
    "TextStream": "tokens",
    "encode": "tokens",
    "encode_chat": "tokens",
    "ArgumentError": "errors",
    "BackendError": "errors",
    "BindingError": "errors",
    "ContextFullError": "errors",
    "DSparkError": "errors",
    "FileError": "errors",
    "FormatError": "errors",
    "MismatchError": "errors",
    "OutOfMemoryError": "errors",
    "StateError": "errors",
}

__all__ = [
    "__version__",
    "ArgumentError",
    "BackendError",
    "BindingError",
    "ContextFullError",
    "DSparkError",
    "Draft",
    "DraftContext",
    "Drafter",
    "FeatureReader",
    "FileError",
    "FormatError",
    "Llama",
    "MismatchError",
    "OutOfMemoryError",
    "Proposal",
    "Round",
    "Sampler",
    "Session",
    "Speculation",
    "StateError",
    "Stats",
    "TextStream",
    "attach",
    "detach",
    "encode",
    "encode_chat",
    "install",
    "open_target",
    "uninstall",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f".{_HOME[name]}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
