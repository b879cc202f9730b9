"""Re-typing a draft file: the same metadata and tensors, stored in another element type."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType

from ..errors import ArgumentError, FormatError
from .gguf_file import GGUFFile, GGUFValue, GGUFWeight
from .outtype import FILE_TYPES, storage_type
from .weights import as_f32
from .writer import ARCH, Tensor, output_file, write_gguf

__all__ = ["QuantizeReport", "TensorChange", "copied_metadata", "quantize_gguf"]


@dataclass(frozen=True)
class TensorChange:
    """One tensor's types before and after, and the relative error of its values: |new - old| / |old|."""

    name: str
    before: str
    after: str
    error: float


@dataclass
class QuantizeReport:
    """What re-typing did. Sizes in bytes of the whole files."""

    path: Path
    outtype: str
    n_bytes_before: int
    n_bytes: int
    changes: list[TensorChange] = field(default_factory=list)

    @property
    def largest(self) -> TensorChange | None:
        """The tensor whose values changed most."""
        return max(self.changes, key=lambda c: c.error, default=None)

    def lines(self) -> list[str]:
        """The report as lines for people."""
        out = []
        pairs = sorted({(c.before, c.after) for c in self.changes})
        for before, after in pairs:
            errors = [c.error for c in self.changes if (c.before, c.after) == (before, after)]
            middle = sorted(errors)[len(errors) // 2]
            out.append(
                f"{before} -> {after}: {len(errors)} tensors, relative error median {middle:.2g}, max {max(errors):.2g}"
            )
        if self.largest is not None and self.largest.error > 0:
            out.append(f"changed most: {self.largest.name}, {self.largest.error:.2g}")
        sizes = f"{self.n_bytes / 2**20:.1f} MiB, from {self.n_bytes_before / 2**20:.1f} MiB"
        out.append(f"wrote:        {self.path}: {self.outtype}, {sizes}")
        return out


def quantize_gguf(
    in_path: str | os.PathLike[str],
    out_path: str | os.PathLike[str],
    outtype: str,
    *,
    quantize_heads: bool = False,
) -> QuantizeReport:
    """Write a draft file with its matrices in another type.

    `outtype` is one of f32, f16, bf16, q8_0, q4_0. The Markov and confidence heads stay f16 unless `quantize_heads`.

    Raises: FileError, FormatError or ArgumentError; nothing is written then.
    """
    if outtype not in FILE_TYPES:
        raise ArgumentError(f"outtype is {outtype!r}, but one of {', '.join(FILE_TYPES)} is needed")
    source, out = Path(in_path), output_file(out_path)
    file = GGUFFile(source)
    metadata = copied_metadata(file)
    tensors = [Tensor(w.name, w, _kind(w, outtype, quantize_heads)) for w in file.tensors.values()]
    metadata["general.file_type"] = GGUFValue(GGUFValueType.UINT32, None, int(FILE_TYPES[outtype]))
    metadata["general.quantization_version"] = GGUFValue(GGUFValueType.UINT32, None, 2)
    n_before = source.stat().st_size
    write_gguf(out, ARCH, metadata, tensors)
    report = QuantizeReport(out, outtype, n_before, out.stat().st_size)
    written = GGUFFile(out)
    for tensor in tensors:
        before, after = file.tensors[tensor.name], written.tensors[tensor.name]
        if before.type is not after.type:
            report.changes.append(TensorChange(tensor.name, before.type.name, after.type.name, _error(before, after)))
    return report


def copied_metadata(file: GGUFFile) -> dict[str, GGUFValue]:
    """What a copy of a draft file says too: all but what its writer decides.

    Raises: FormatError: the file is no draft.
    """
    arch = file.get_text("general.architecture")
    if arch != ARCH:
        raise FormatError(f"{file.path}: general.architecture is {arch!r}, but a draft has {ARCH!r}")
    decided = ("general.architecture", "general.alignment", "split.count")
    return {key: value for key, value in file.metadata.items() if key not in decided}


def _kind(weight: GGUFWeight, outtype: str, quantize_heads: bool) -> GGMLQuantizationType:
    if weight.type in (GGMLQuantizationType.I32, GGMLQuantizationType.I64):
        return weight.type
    return storage_type(weight.name, weight.shape, outtype, quantize_heads)


def _error(before: GGUFWeight, after: GGUFWeight) -> float:
    difference = size = 0.0
    for a, b in zip(before.chunks(), after.chunks(), strict=True):
        old, new = as_f32(a), as_f32(b)
        difference += float(np.square(new - old, dtype=np.float64).sum())
        size += float(np.square(old, dtype=np.float64).sum())
    return math.sqrt(difference / size) if size > 0 else 0.0
