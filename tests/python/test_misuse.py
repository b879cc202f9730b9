"""Nothing that is public ends the process, whatever it is given: wrong types, sizes, ranges, closed objects."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest
from dspark_cpp import ArgumentError, StateError, TextStream, encode

PROGRAM = Path(__file__).with_name("misuse_program.py")
#: part of the wrong values that is tried, and how they are drawn; all of them: DSPARK_MISUSE=1
SHARE = os.environ.get("DSPARK_MISUSE", "0.25")
SEED = os.environ.get("DSPARK_SEED", "1")
GROUPS = [
    "functions",
    "Llama()",
    "Draft",
    "Draft, inspected",
    "DraftContext",
    "Session",
    "Session, plain",
    "Session, odd drafter",
    "FeatureReader",
    "Sampler",
    "TextStream",
    "Speculation",
    "Llama",
    "Llama, plain",
    "Llama, inherited",
]


@pytest.mark.parametrize("group", GROUPS)
def test_no_argument_ends_the_process(group: str, paths: tuple[str, str], tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    env["DSPARK_KERNELS"] = "off"
    share = float(SHARE) / (3 if group == "Llama, inherited" else 1)  # mostly llama_cpp's own
    command = [sys.executable, str(PROGRAM), group, *paths, SEED, str(share)]
    done = subprocess.run(command, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0 and done.stdout.startswith("done: "), done.stderr[-3000:]
    print(group, done.stdout.strip())


def test_text_of_a_closed_target_or_of_no_token_is_an_error(open_tiny: Callable[..., llama_cpp.Llama]) -> None:
    """The first ended the process, the second read past the vocabulary."""
    llm = open_tiny()
    stream = TextStream(llm)
    for token in (-1, 320, 2**31 - 1, 2**40, "a", None, 1.5):
        with pytest.raises(ArgumentError, match="token is"):
            stream.push(token)  # type: ignore[arg-type]
    assert stream.push(65) == "A"
    llm.close()
    for call in (lambda: stream.push(65), lambda: encode(llm, "x")):
        with pytest.raises(StateError, match="closed"):
            call()
