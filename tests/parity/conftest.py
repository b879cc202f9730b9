"""Fixtures of the parity tests: the oracle pack, the probe, the tiny targets, converted drafts."""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import llama_cpp
import numpy as np
import pytest

TESTS = Path(__file__).resolve().parents[1]
if str(TESTS) not in sys.path:
    sys.path.insert(0, str(TESTS))  # the package `reference`

from goldens import Golden  # noqa: E402

SHARED = TESTS.parent.parent / "shared"


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
def oracles() -> Path:
    pack = SHARED / "oracles"
    if not (pack / "drafts").is_dir():
        pytest.skip(f"the oracle pack is not at {pack}")
    return pack


@pytest.fixture(scope="session")
def golden(oracles: Path) -> Callable[[str], Golden]:
    """golden(name): the goldens of a draft."""

    @cache
    def load(name: str) -> Golden:
        folder = oracles / "drafts" / name
        with open(folder / "golden.json", encoding="utf-8") as f:
            info = json.load(f)
        with np.load(folder / "golden.npz") as arrays:
            return Golden(name, folder, info, dict(arrays))

    return load


@pytest.fixture(scope="session")
def target_file(oracles: Path) -> Callable[[str], Path]:
    return lambda name: oracles / name / f"{name}-f32.gguf"


@pytest.fixture(scope="session")
def target(target_file: Callable[[str], Path]) -> Callable[[str], int]:
    """target(name): address of the llama_model of a tiny target, opened once."""
    opened: dict[str, llama_cpp.Llama] = {}

    def address(name: str) -> int:
        if name not in opened:
            opened[name] = llama_cpp.Llama(str(target_file(name)), n_ctx=256, verbose=False)
        return ctypes.cast(opened[name].model, ctypes.c_void_p).value

    yield address
    for llm in opened.values():
        llm.close()


@pytest.fixture(scope="session")
def converted(
    golden: Callable[[str], Golden], target_file: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., Path]:
    """converted(name, self_contained): the draft as an f32 GGUF file, made by our converter."""
    from dspark_cpp.convert import convert_checkpoint

    folder = tmp_path_factory.mktemp("converted")

    @cache
    def convert(name: str, self_contained: bool) -> Path:
        out = folder / f"{name}{'-self' if self_contained else ''}.gguf"
        g = golden(name)
        convert_checkpoint(g.folder, target_file(g.target), out, outtype="f32", self_contained=self_contained)
        return out

    return convert


@pytest.fixture(scope="session")
def demo_checkpoint() -> Path:
    folders = sorted((SHARED / "demo-draft").glob("*/config.json"))
    if not folders:
        pytest.skip(f"the demo draft is not at {SHARED / 'demo-draft'}")
    return folders[0].parent
