"""A draft takes the memory of its file and of its keys and values, and little else."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

PROGRAM = """
import resource, sys
import numpy as np
from dspark_cpp import Draft, DraftContext, kernels, open_target
kernels.install(sys.argv[3], sys.argv[1])
llm = open_target(sys.argv[1], n_ctx=2048, n_threads=1, n_threads_batch=1, flash_attn=True, verbose=False)
llm.eval([1, 2, 3])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
rows = np.ones((1024, 3 * 576), np.float32)
before = peak()
draft = Draft(sys.argv[2], target=llm)
context = DraftContext(draft, llm, n_threads=1)
for start in range(0, len(rows), 256):
    context.append(rows[start : start + 256])
    context.propose(65)
print(peak() - before, context.kv_size, draft.n_features)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in KiB on Linux only")
@pytest.mark.parametrize("mode", ["auto", "off"])
def test_at_its_peak_a_draft_takes_32_mib_beside_its_file_and_cache(
    mode: str, run_python: Callable[..., Any], smollm_path: Path, demo_draft_path: Path
) -> None:
    done = run_python(PROGRAM, smollm_path, demo_draft_path, mode)
    assert done.returncode == 0, done.stderr[-1500:]
    grown, kv_size, n_features = (int(word) for word in done.stdout.split())
    assert n_features == 3 * 576
    assert grown <= Path(demo_draft_path).stat().st_size + kv_size + (32 << 20)
