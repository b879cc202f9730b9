"""Fixtures of the parity tests: the probe, the goldens as arrays, the tiny targets' models."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import llama_cpp
import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))  # the package `reference`

from goldens import Golden  # noqa: E402


@pytest.fixture(scope="session")
def probe() -> ModuleType:
    """The white-box module, bound to the llama.cpp of llama_cpp."""
    try:
        import dspark_probe
    except ImportError as e:
        pytest.fail(f"the module dspark_probe is not built or not on the path ({e}); build with -DDSPARK_PROBE=ON")
    dspark_probe.bind([llama_cpp.llama_cpp._lib._handle])
    return dspark_probe


@pytest.fixture(scope="session")
def golden(oracles: Path, golden_json: Callable[[str], dict[str, Any]]) -> Callable[[str], Golden]:
    """golden(name): the goldens of a draft."""

    @cache
    def load(name: str) -> Golden:
        folder = oracles / "drafts" / name
        info = golden_json(name)
        with np.load(folder / "golden.npz") as arrays:
            return Golden(name, folder, info, dict(arrays))

    return load


@pytest.fixture(scope="session")
def target(tiny_path: Callable[[str], Path]) -> Iterator[Callable[[str], int]]:
    """target(name): address of the llama_model of a tiny target, opened once."""
    opened: dict[str, llama_cpp.Llama] = {}

    def address(name: str) -> int:
        if name not in opened:
            opened[name] = llama_cpp.Llama(str(tiny_path(name)), n_ctx=256, verbose=False)
        return ctypes.cast(opened[name].model, ctypes.c_void_p).value

    yield address
    for llm in opened.values():
        llm.close()
