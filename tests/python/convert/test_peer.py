"""llama.cpp loads what is written here and accepts as many drafts with it as the reference implementation does.

Its tokens come from its own graph, so this holds the file's meaning (layout, ids, sharing, d2t) and not only its bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from convert_fixtures import golden_of, target_of
from dspark_cpp.convert import convert_checkpoint

pytest.importorskip("xllamacpp", reason="the peer is a test extra")

SAME = [
    "deepspec-qwen3-vanilla",
    "specforge-dspark",
    "spk-dspark-bonus-dv96",
    "spk-dspark-gemma4",
    "flat-dspark-bonus-dv112",
    "spk-dflash",
]
# Files that it cannot run, each for a reason of its own.
REFUSED = {
    "spk-dspark-anchor-full": "its confidence head must take the Markov embedding too",
    "deepspec-qwen3-gated": "it has no gated Markov head",
    "deepspec-qwen3-rnn": "it has no recurrent Markov head",
}


def run(oracles: Path, tmp_path: Path, name: str, jobs: list[dict[str, Any]]) -> Any:
    golden = golden_of(oracles, name)
    target = target_of(oracles, name)
    out = convert_checkpoint(oracles / "drafts" / name, target, tmp_path / "o.gguf", outtype="f32").path
    script = Path(__file__).with_name("peer_run.py")
    argv = [sys.executable, script, target, out, str(golden["draft_only"]["max_draft"])]
    done = subprocess.run(argv, input=json.dumps(jobs), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def jobs_of(oracles: Path, name: str) -> tuple[list[dict[str, Any]], list[int], list[float]]:
    golden = golden_of(oracles, name)
    jobs = [{"prompt": e["prompt_ids"], "n": len(e["target_only_ids"])} for e in golden["e2e"]]
    accepted = [sum(s["n_accepted"] for s in e["steps"]) for e in golden["e2e"]]
    return jobs, accepted, [e["min_step_margin"] for e in golden["e2e"]]


@pytest.mark.parametrize("name", SAME)
def test_the_peer_accepts_what_the_reference_accepts(oracles: Path, tmp_path: Path, name: str) -> None:
    jobs, want, margins = jobs_of(oracles, name)
    counts = run(oracles, tmp_path, name, jobs)
    for (drafted, accepted, _), expected, margin in zip(counts, want, margins, strict=True):
        assert 0 < accepted <= drafted
        # Where two candidates are nearly equal another order of additions may choose the other one.
        assert accepted == expected or (margin < 0.01 and abs(accepted - expected) <= 2)


def test_the_peer_drafts_with_deepspecs_gemma4(oracles: Path, tmp_path: Path) -> None:
    jobs, _, _ = jobs_of(oracles, "specforge-dspark")  # a prompt for the same target
    ((drafted, _, _),) = run(oracles, tmp_path, "deepspec-gemma4", jobs[:1])
    assert drafted > 0


def test_the_peer_drafts_with_a_window_by_its_own_rule(oracles: Path, tmp_path: Path) -> None:
    """It counts the window from each query, not from the anchor; the pack says what that rule accepts."""
    jobs, _, _ = jobs_of(oracles, "spk-dspark-swa")
    golden = golden_of(oracles, "spk-dspark-swa")
    accepted = sum(n for _, n, _ in run(oracles, tmp_path, "spk-dspark-swa", jobs))
    assert accepted == pytest.approx(golden["e2e_summary_by_mask"]["llamacpp"]["accepted"], abs=4)


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_the_peer_refuses_only_what_it_has_no_graph_for(oracles: Path, tmp_path: Path, name: str) -> None:
    assert "refused" in run(oracles, tmp_path, name, []), REFUSED[name]
