"""A disk that fills while a file is written: one sentence, and nothing is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from convert_fixtures import deepspec_config, make_checkpoint, make_target
from dspark_cpp.convert import convert_checkpoint

pytest.importorskip("resource")

# a file may not grow beyond the limit: write() fails as it does on a full disk, with another errno
LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]), resource.RLIM_INFINITY))
from dspark_cpp.cli import main
sys.exit(main(sys.argv[2:]))
"""


def run_limited(n_bytes: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", LIMITED, str(n_bytes), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("n_bytes", [0, 1000, 20000])
def test_a_conversion_onto_a_full_disk_ends_in_a_sentence_and_leaves_no_file(tmp_path: Path, n_bytes: int) -> None:
    target, draft = make_target(tmp_path / "target"), make_checkpoint(tmp_path / "draft", deepspec_config())
    (tmp_path / "out").mkdir()
    out = str(tmp_path / "out" / "draft.gguf")
    done = run_limited(n_bytes, "convert", str(draft), "--target", str(target), "-o", out, "--outtype", "f32")
    assert done.returncode == 1, done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1 and "draft.gguf" in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_a_full_disk_does_not_cost_the_file_that_was_there(tmp_path: Path) -> None:
    target, draft = make_target(tmp_path / "target"), make_checkpoint(tmp_path / "draft", deepspec_config())
    path = tmp_path / "draft.gguf"
    convert_checkpoint(draft, target, path, outtype="f32")
    before = path.read_bytes()
    done = run_limited(1000, "convert", str(draft), "--target", str(target), "-o", str(path), "--outtype", "f16")
    assert done.returncode == 1 and path.read_bytes() == before
