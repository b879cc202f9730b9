"""Memory stays far below the checkpoint's size, whatever the outtype."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from convert_fixtures import N_VOCAB, ROOT, deepspec_config, draft_tensors, make_checkpoint, make_target

RANK = 1 << 20  # 40 x 2^20 elements: two tables of 160 MiB
SCRIPT = """
import resource, sys
from dspark_cpp.convert import convert_checkpoint
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
convert_checkpoint(*sys.argv[1:4], outtype=sys.argv[4])
print(peak() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
def test_peak_memory_is_a_fraction_of_the_checkpoint(tmp_path: Path, outtype: str) -> None:
    tensors = draft_tensors(confidence=False)
    for name in ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"):
        tensors[name] = np.zeros((N_VOCAB, RANK), np.float32)
    config = deepspec_config(markov_rank=RANK, enable_confidence_head=False, confidence_head_with_markov=None)
    draft, target = make_checkpoint(tmp_path / "draft", config, tensors), make_target(tmp_path / "target")
    size = (draft / "model.safetensors").stat().st_size
    argv = [sys.executable, "-c", SCRIPT, draft, target, tmp_path / "o.gguf", outtype]
    env = {"PYTHONPATH": str(ROOT / "python")}
    grown = int(subprocess.run(argv, env=env, check=True, capture_output=True, text=True).stdout) * 1024
    assert size > 320 << 20
    assert grown < size / 3
