"""Switching the kernels on and off, and what they say of themselves."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from dspark_cpp import Draft, kernels
from dspark_cpp.convert import quantize_gguf
from dspark_cpp.errors import ArgumentError

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(autouse=True)
def off_afterwards() -> Iterator[None]:
    yield
    kernels.install("off")


def seen(run: subprocess.CompletedProcess[str]) -> Any:
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


REPORT = "import dataclasses, json; print(json.dumps(dataclasses.asdict(kernels.state())))"
WITH_ISA = (
    "import os; os.environ['DSPARK_KERNELS_ISA'] = '{}'\nfrom dspark_cpp import kernels\nkernels.install('{}'); "
    + REPORT
)


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ArgumentError, match='mode of the kernels is \'fast\', expected "auto", "on" or "off"'):
        kernels.install("fast")  # type: ignore[arg-type]


def test_nothing_is_installed_unless_asked_for(run_python: Run) -> None:
    state = seen(run_python(f"from dspark_cpp import kernels; {REPORT}"))
    assert not state["active"] and state["reason"] == "the kernels were not installed" and state["isa"] == ""


def test_an_installed_state_says_what_runs() -> None:
    state = kernels.install("auto")
    if not state.active:
        pytest.skip(state.reason)
    assert state.isa in ("avx512_bf16", "avx512", "avx_vnni", "avx2", "neon_i8mm", "neon")
    assert state.packs_weights and state.reason == ""
    assert kernels.install("off").reason == "the kernels were switched off"
    assert kernels.install("on").active


def test_a_model_larger_than_the_memory_is_left_to_llama_cpp(tmp_path: Path) -> None:
    if not kernels.install("auto").active:
        pytest.skip(kernels.state().reason)
    huge = tmp_path / "huge.gguf"
    with huge.open("wb") as file:
        file.truncate(1 << 42)
    state = kernels.install("auto", huge)
    assert not state.active and "the model's 4398.0 GB of weights would be packed in memory" in state.reason
    assert kernels.install("on", huge).active
    assert kernels.install("auto", tmp_path / "missing.gguf").active


def test_a_processor_without_kernels_keeps_llama_cpps(run_python: Run) -> None:
    """The environment variable stands for a processor that has none of the sets."""
    state = seen(run_python(WITH_ISA.format("none", "auto")))
    assert not state["active"] and "no kernel is made for this processor" in state["reason"]
    failed = run_python(WITH_ISA.format("none", "on"))
    assert failed.returncode != 0 and "the kernels cannot be installed: no kernel is made" in failed.stderr


@pytest.mark.parametrize("isa", ["avx2", "avx_vnni", "avx512"])
def test_lesser_instruction_sets_pass_the_self_test_too(isa: str, run_python: Run) -> None:
    if not kernels.install("auto").isa.startswith("avx"):
        pytest.skip("not an x86-64 processor with AVX2")
    state = seen(run_python(WITH_ISA.format(isa, "auto")))
    assert state["active"] and state["isa"] == isa or "processor" in state["reason"]


@pytest.mark.parametrize("imported", ["before", "after"])
def test_models_opened_after_the_import_may_precede_the_kernels(
    imported: str, run_python: Run, tiny_path: Callable[[str], Path]
) -> None:
    """An application that opened its own llama_cpp model first lost the kernels for every later one."""
    load = "model = llama_cpp.Llama(sys.argv[1], verbose=False)"
    code = f"""
import sys, llama_cpp
{load if imported == "after" else ""}
from dspark_cpp import kernels
{load if imported == "before" else ""}
kernels.install("auto"); {REPORT}"""
    state = seen(run_python(code, tiny_path("target-qwen3")))
    if state["active"]:
        assert state["packs_weights"] == (imported == "before")
        assert ("loaded before dspark_cpp was imported" in state["reason"]) == (imported == "after")


def test_a_drafts_quantised_weights_are_packed(demo_draft_path: str, tmp_path: Path) -> None:
    if not kernels.install("auto").packs_weights:
        pytest.skip(kernels.state().reason)
    quantize_gguf(demo_draft_path, tmp_path / "q8.gguf", "q8_0")
    before = kernels.state().n_bytes
    with Draft(tmp_path / "q8.gguf"):
        assert kernels.state().n_bytes - before > 5_000_000
    assert kernels.state().n_bytes == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("fast",), "the mode of the kernels is 'fast', expected"),
        (([],), r"the mode of the kernels is \[\], expected"),
        (("auto", 3.5), "model_path is 3.5, expected a path"),
        (("auto", 1), "model_path is 1, expected a path"),
    ],
)
def test_arguments_of_other_types_are_refused_in_a_sentence(arguments: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        kernels.install(*arguments)


def test_the_environment_decides_in_place_of_auto_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSPARK_KERNELS", "garbage")
    with pytest.raises(ArgumentError, match="the environment variable DSPARK_KERNELS is 'garbage'"):
        kernels.install("auto")
    monkeypatch.setenv("DSPARK_KERNELS", "")  # exported and empty: as if it were not there
    kernels.install("auto")
    monkeypatch.setenv("DSPARK_KERNELS", "off")
    assert not kernels.install("auto").active


def test_llama_cpps_kernels_that_crash_on_this_machine_are_not_used(run_python: Run, smollm_path: Path) -> None:
    """GCC 12.2 compiles llama.cpp's products for AMX so that the first one ends the process."""
    if b"AMX" not in llama_cpp.llama_print_system_info():
        pytest.skip("llama.cpp has no kernels for AMX on this machine")
    program = (
        "from dspark_cpp import Llama, kernels\n"
        f"llm = Llama({str(smollm_path)!r}, n_ctx=64, n_batch=64, kernels='off', verbose=False)\n"
        "llm.eval(llm.tokenize(b'Once upon a time'))\n" + REPORT
    )
    assert seen(run_python(program))["removed"] in ("", "AMX")
