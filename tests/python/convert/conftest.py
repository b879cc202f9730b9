"""The fixtures of the converter's tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from convert_fixtures import FIXTURES, ORACLES


@pytest.fixture(scope="session")
def oracles() -> Path:
    """The oracle pack beside the repository, or the part of it that the repository carries."""
    return ORACLES if (ORACLES / "drafts").is_dir() else FIXTURES


@pytest.fixture(scope="session")
def full_oracles() -> Path:
    """The oracle pack beside the repository."""
    if not (ORACLES / "drafts").is_dir():
        pytest.skip("the oracle pack is not beside the repository (../shared/oracles)")
    return ORACLES
