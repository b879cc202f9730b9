"""What a decode costs, where it can be counted; and the commands that the documents tell."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from dspark_cpp import Session
from scripted import PROMPT, scripted

ROOT = Path(__file__).resolve().parents[2]


def rows_decoded(llm: Any) -> int:
    """Rows that llama.cpp has decoded by its own count, which keeps single ones apart and is never below one."""
    llama_cpp.llama_synchronize(llm.ctx)  # what was decoded last is counted then
    counts = llama_cpp.llama_perf_context(llm.ctx)
    return int(counts.n_p_eval + counts.n_eval)


@pytest.mark.parametrize("pattern", [[3], [0, 6], [7, 0, 3, 2], [7], [0]], ids=str)
def test_d1_no_row_is_decoded_twice(
    pattern: list[int], open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    """A partly accepted block costs its rows once: none of the accepted ones goes through the target again."""
    text = continuation("target-qwen3", PROMPT, 120)
    llm = open_tiny(no_perf=False)
    with Session(llm, scripted([*PROMPT, *text], pattern, n_draft_max=7)) as session:
        session.append(PROMPT)
        session.next(n_draft_max=0), session.append(text[:1])  # one single row at least
        before = rows_decoded(llm)
        assert [session.next() for _ in range(100)] == text[1:101]
        rows = rows_decoded(llm) - before
        stats = session.stats
    assert rows == stats.n_rounds + stats.draft_n, "an anchor and its drafts a round, and nothing else"
    mean = sum(pattern) / len(pattern)
    assert stats.n_rounds <= 100 / (1 + mean) + 2
    assert rows / 100 <= (1 + 7) / (1 + mean) * 1.1


COMMANDS = [
    line
    for document in ("README.md", "docs/SERVER.md", "docs/CONVERTER.md", "docs/DROP_IN.md")
    for line in re.findall(r"^(?:\$ )?(dspark-cpp .*)", (ROOT / document).read_text(), re.M)
]


@pytest.mark.parametrize("line", COMMANDS)
def test_d4_every_command_of_the_documents_is_understood(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Files do not exist; what a command line means has to be known before anything is opened."""
    from dspark_cpp.cli import main

    arguments = shlex.split(re.sub(r"\[([^]]*)\]", r"\1", line.split("#")[0]).replace("...", ""))[1:]
    if arguments[0] in ("serve", "demo"):
        arguments.append("--help")
    try:
        code = main(arguments)
    except SystemExit as exit:
        code = exit.code or 0
    assert code != 2, capsys.readouterr().err
