"""Tests that the documents name are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FILES = {p.name: p.read_text() for p in (ROOT / "tests").rglob("*") if p.suffix in (".py", ".cpp", ".c", ".h")}


@pytest.mark.parametrize("document", ["docs/CASES.md", "docs/RELIABILITY.md", "SECURITY.md"])
def test_every_test_that_a_document_names_exists(document: str) -> None:
    text = (ROOT / document).read_text()
    missing, n, file = [], 0, ""
    for quoted in re.findall(r"`([^`\n]+)`", text):
        found = re.fullmatch(r"(?:[\w./]*?)(test_\w+\.(?:py|cpp|c))?(?:::(test_\w+)(\*?))?(?:\[.*\])?", quoted)
        if not found or not (found[1] or found[2]):
            continue
        n += 1
        file = found[1] or file
        if file not in FILES:
            missing.append(file)
        elif found[2] and not re.search(rf"def {found[2]}{'' if found[3] else chr(92) + 'b'}", FILES[file]):
            missing.append(quoted)
    assert not missing, f"{missing} of {n}"
    assert n > 3
