"""The long run of bench/soak.py, short."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).resolve().parents[2] / "bench" / "soak.py"


def test_a_short_soak_finds_no_mismatch_and_leaves_no_server(paths: tuple[str, str], tmp_path: Path) -> None:
    pytest.importorskip("prometheus_client", reason="the server's packages are missing")
    if not Path("/proc/self/statm").exists():
        pytest.skip("reads /proc")
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, SOAK, "-n", "40", "--threads", "1", "--target", paths[0], "--draft", paths[1]]
    command += ["--server-seconds", "3", "--clients", "3", "--json", tmp_path / "report.json"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["object"]["requests"] == 40 and report["object"]["accepted"] > 0
    assert report["server"]["requests"] > 0 and report["server"]["exit_code"] in (0, -15)


def test_a_soak_in_which_nothing_was_answered_has_no_percentiles() -> None:
    spec = importlib.util.spec_from_file_location("soak", SOAK)
    assert spec and spec.loader
    soak = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(soak)
    assert soak.percentiles([]) == {}
    assert soak.percentiles([0.25]) == {"p50": 250.0, "p90": 250.0, "p99": 250.0}
