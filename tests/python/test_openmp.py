"""The short spin that llama.cpp's threads are loaded with, and who decides about it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os
{first}
import dspark_cpp
before = os.environ.get("GOMP_SPINCOUNT")
dspark_cpp.Sampler  # loads llama_cpp
print(before, os.environ.get("GOMP_SPINCOUNT"), os.environ.get("OMP_WAIT_POLICY"))
"""


@pytest.mark.parametrize(
    ("given", "first", "seen"),
    [
        ({}, "", "1000 None None"),
        ({}, "import llama_cpp", "None None None"),  # too late: nothing is left behind
        ({"GOMP_SPINCOUNT": "77"}, "", "77 77 None"),
        ({"OMP_WAIT_POLICY": "active"}, "", "None None active"),
    ],
)
def test_threads_are_loaded_with_a_short_spin_unless_the_user_has_decided(
    given: dict[str, str], first: str, seen: str
) -> None:
    """Beside another busy process, decodes took a hundred times longer than alone."""
    env = {k: v for k, v in os.environ.items() if k not in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")}
    env["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    argv = [sys.executable, "-c", PROGRAM.format(first=first)]
    done = subprocess.run(argv, env={**env, **given}, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == seen, done.stderr
