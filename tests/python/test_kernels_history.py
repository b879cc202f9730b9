"""No result depends on what was done before: random histories of a Session and of a Llama beside plain ones.

DSPARK_STEPS=5000 makes long, random runs of them; else they are short and the same every time.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from llama_history import LlamaHistory
from session_history import SessionHistory

STEPS = int(os.environ.get("DSPARK_STEPS", "0"))
DRAFTS = ("deepspec-qwen3-vanilla", "spk-dspark-bonus-dv96", "spk-dspark-swa")


def run(machine: Any) -> None:
    per_history = 50
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, STEPS // per_history) if STEPS else 10,
            stateful_step_count=per_history,
            derandomize=not STEPS,
            deadline=None,
            database=None,
            suppress_health_check=list(HealthCheck),
            # a failure is told as it was found: looking for the shortest one makes hundreds of histories more
            phases=[Phase.generate],
            report_multiple_bugs=False,
        ),
    )
    counts = f"{machine.n_compared} proposals compared, {machine.n_drawn} tokens by rejection"
    print(f"{machine.__name__}: {machine.n_steps} steps, {counts}")
    # how many depends on what hypothesis draws, which differs between its releases
    assert machine.n_compared and machine.n_drawn


def use_kernels(mode: str) -> None:
    from dspark_cpp import kernels

    state = kernels.install(mode)
    if mode == "on" and not state.active:
        pytest.skip(f"no kernels here: {state.reason}")


@pytest.mark.parametrize("mode", ["off", "on"])
@pytest.mark.parametrize("history", [SessionHistory, LlamaHistory], ids=["Session", "Llama"])
def test_results_do_not_depend_on_the_history(
    history: Any, mode: str, tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    use_kernels(mode)
    members = {
        "target": str(tiny_path("target-qwen3")),
        "drafts": [str(converted(name)) for name in DRAFTS],
        "exact": mode == "on",
    }
    run(type(history.__name__, (history,), members))
