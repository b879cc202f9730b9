"""A copy of a draft file with temperatures for its confidence head."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from gguf import GGUFValueType

from .gguf_file import GGUFFile, GGUFValue
from .quantize import copied_metadata
from .writer import ARCH, Tensor, output_file, write_gguf

__all__ = ["write_confidence_temperature"]


def write_confidence_temperature(
    in_path: str | os.PathLike[str], out_path: str | os.PathLike[str], temperature: Sequence[float]
) -> Path:
    """Writes the file with ``dflash.confidence_temperature``, one a drafted token; all else stays as it is.

    Raises: FileError or FormatError; nothing is written then.
    """
    out = output_file(out_path)
    file = GGUFFile(Path(in_path))
    metadata = copied_metadata(file)
    metadata[f"{ARCH}.confidence_temperature"] = GGUFValue(
        GGUFValueType.ARRAY, GGUFValueType.FLOAT32, [float(t) for t in temperature]
    )
    write_gguf(out, ARCH, metadata, [Tensor(w.name, w, w.type) for w in file.tensors.values()])
    return out
