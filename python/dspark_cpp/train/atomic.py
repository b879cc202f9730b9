"""A file of a run is whole or as it was: written beside the old one and renamed. Needs no torch."""

from __future__ import annotations

import contextlib
import errno
import os
from pathlib import Path

from ..errors import FileError

__all__ = ["write_atomically"]


def write_atomically(path: Path, data: bytes, what: str) -> None:
    """Raises: FileError: The disk is full or the folder cannot be written; what was at `path` stays."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as f:
            f.write(data)
            f.flush()
            os.fsync(f.fileno())
        os.replace(part, path)
    except OSError as e:
        with contextlib.suppress(OSError):
            part.unlink()
        why = "the disk is full" if e.errno == errno.ENOSPC else e.strerror or e
        raise FileError(f"{path}: cannot write {what}: {why}; what was written before stays") from None
