"""llama-cpp-python's own tests, with our class in place of theirs: each ends as it does with theirs.

They are not copied: DSPARK_LLAMA_CPP_SDIST names the unpacked sdist (or its .tar.gz) of the installed release; without
it pip's cache is searched for one. The models that they download are replaced by local ones, so what depends on the
very model may fail: with the base, then, as with ours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from test_recurrent_targets import write_hybrid
from tiny_mamba import write_mamba

RELEASE = f"llama_cpp_python-{version('llama-cpp-python')}"
FILES = ["test_llama.py", "test_llama_speculative.py", "test_llama_chat_format.py", "test_llama_grammar.py"]


def cached_sdist() -> Path | None:
    """The sdist among the bodies of pip's HTTP cache, if it was downloaded by pip."""
    done = subprocess.run([sys.executable, "-m", "pip", "cache", "dir"], capture_output=True, text=True, check=False)
    for path in Path(done.stdout.strip() or ".", "http-v2").rglob("*.body"):
        with open(path, "rb") as f:
            if f.read(3) != b"\x1f\x8b\x08":
                continue
        try:
            with tarfile.open(path) as tar:
                first = tar.next()
        except (tarfile.TarError, OSError, EOFError):
            continue
        if first is not None and first.name.startswith(RELEASE):
            return path
    return None


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    named = os.environ.get("DSPARK_LLAMA_CPP_SDIST")
    found = Path(named) if named else cached_sdist()
    if found is None or not found.exists():
        pytest.skip(f"no sdist of {RELEASE}: set DSPARK_LLAMA_CPP_SDIST to it")
    if found.is_dir():
        return found
    folder = tmp_path_factory.mktemp("sdist")
    with tarfile.open(found) as tar:
        wanted = [m for m in tar if m.name.split("/")[1:2] == ["tests"] or "/vendor/llama.cpp/models/" in m.name]
        tar.extractall(folder, wanted, filter="data")
    return folder / RELEASE


@pytest.fixture(scope="module")
def outcomes(
    sdist: Path,
    smollm_path: Path,
    demo_draft_path: str,
    tiny_path: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], dict[str, str]]:
    """outcomes("base" | "plain" | "drafted"): how each test ended."""
    folder = tmp_path_factory.mktemp("upstream")
    # not run inside the sdist, whose llama_cpp folder would be imported
    (folder / "vendor").symlink_to(sdist / "vendor")
    models: dict[str, Any] = {
        "Qwen3.5-0.8B-Q8_0.gguf": smollm_path,
        "stories15M-q4_0.gguf": smollm_path,
        "mamba-130m-hf.Q2_K.gguf": write_mamba(tiny_path("target-qwen3"), folder / "mamba.gguf"),
        "Falcon-H1-Tiny-90M-Instruct-Q2_K.gguf": write_hybrid(tiny_path("target-qwen3"), folder / "hybrid.gguf"),
    }
    plan = {"models": {k: str(v) for k, v in models.items()}, "drafts": {str(smollm_path): demo_draft_path}}

    @cache
    def run(cls: str) -> dict[str, str]:
        path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
        env = {**os.environ, "PYTHONPATH": path, "DSPARK_UPSTREAM": json.dumps({**plan, "class": cls})}
        report = folder / f"{cls}.xml"
        # no settings of ours or theirs
        flags = ["-p", "upstream_plugin", "-p", "no:cacheprovider", "-c", os.devnull, "--rootdir", str(folder)]
        command = [sys.executable, "-m", "pytest", "-q", *flags, f"--junit-xml={report}"]
        command += [str(sdist / "tests" / name) for name in FILES]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode in (0, 1), done.stdout[-3000:] + done.stderr[-3000:]
        return read(report)

    return run


def read(report: Path) -> dict[str, str]:
    """Names of tests to how they ended: "passed", or the kind and the first line of the message."""
    from xml.etree import ElementTree

    ends = {}
    for case in ElementTree.parse(report).iter("testcase"):
        end = "passed"
        for kind in case:
            if kind.tag in ("failure", "error", "skipped"):
                end = f"{kind.tag}: {kind.get('message', '').splitlines()[0]}"
        ends[str(case.get("name"))] = end
    return ends


@pytest.mark.slow
@pytest.mark.parametrize("cls", ["plain", "drafted"])
def test_llama_cpp_pythons_own_tests_end_with_our_class_as_with_theirs(
    cls: str, outcomes: Callable[[str], dict[str, str]]
) -> None:
    base, ours = outcomes("base"), outcomes(cls)
    assert list(ours.values()).count("passed") >= 22
    assert ours == base
