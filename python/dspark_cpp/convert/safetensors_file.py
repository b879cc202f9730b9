"""One safetensors file, memory-mapped, with every number of its header checked before it is used.

The header is read here rather than by the safetensors package, because its errors name neither the file nor the value,
and because its NumPy interface copies a whole tensor where a few rows are wanted.
Source: the format text in the safetensors repository (8 bytes length, JSON header, data).
"""

from __future__ import annotations

import json
import mmap
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import FileError, FormatError
from .weights import BF16, AnyArray, Weight

__all__ = ["SafetensorsFile", "StoredWeight"]

# The limit of the reference implementation.
_MAX_HEADER_BYTES = 100_000_000

DTYPES: dict[str, np.dtype] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": BF16,
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("u1"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}


class StoredWeight(Weight):
    """One tensor of a memory-mapped file."""

    def __init__(self, file: SafetensorsFile, name: str, dtype_name: str, shape: tuple[int, ...], offset: int) -> None:
        self.file, self.name, self.dtype_name, self.shape, self.offset = file, name, dtype_name, shape, offset
        self.dtype = DTYPES[dtype_name]

    @property
    def n_bytes(self) -> int:
        """Size in the file."""
        return self.n_elements * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> AnyArray:
        n_rows = self.shape[0] if self.shape else 1
        row = self.n_elements // max(1, n_rows)
        data = np.frombuffer(
            self.file.map,
            self.dtype,
            count=(stop - start) * row,
            offset=self.offset + start * row * self.dtype.itemsize,
        )
        return data.reshape((stop - start, *self.shape[1:]))

    def raw(self) -> memoryview:
        """The bytes as stored."""
        return memoryview(self.file.map)[self.offset : self.offset + self.n_bytes]

    def release(self, start: int, stop: int) -> None:
        row = self.n_bytes // max(1, self.shape[0] if self.shape else 1)
        self.file.release(self.offset + start * row, (stop - start) * row)


class SafetensorsFile:
    """The tensors of one safetensors file.

    Raises: FileError where the file is missing, truncated or malformed; FormatError for an unknown element type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as f:
                size = f.seek(0, 2)
                if size < 8:
                    raise FileError(f"{path}: {size} bytes, but a safetensors file starts with an 8-byte header length")
                self.map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except FileNotFoundError:
            raise FileError(f"{path}: no such file") from None
        except OSError as e:
            raise FileError(f"{path}: cannot be read: {e.strerror or e}") from None
        (n_header,) = struct.unpack("<Q", self.map[:8])
        if n_header > min(size - 8, _MAX_HEADER_BYTES):
            raise FileError(
                f"{path}: header length {n_header}, but only {size - 8} bytes follow "
                f"(at most {_MAX_HEADER_BYTES} are allowed); the file is truncated or not safetensors"
            )
        self._n_data = size - 8 - n_header
        self._data = 8 + n_header
        self.tensors: dict[str, StoredWeight] = {}
        spans: list[tuple[int, int, str]] = []
        for name, entry in self._header(self.map[8 : 8 + n_header]).items():
            if name != "__metadata__":
                self.tensors[name], span = self._tensor(name, entry)
                spans.append((*span, name))
        self._check_coverage(spans)

    def _header(self, raw: bytes) -> dict[str, Any]:
        def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
            if len({k for k, _ in pairs}) != len(pairs):
                raise ValueError("a key occurs twice")
            return dict(pairs)

        try:
            header = json.loads(raw.decode("utf-8"), object_pairs_hook=unique)
        except (ValueError, RecursionError) as e:
            raise FileError(f"{self.path}: the safetensors header is not valid JSON: {e}") from None
        if not isinstance(header, dict):
            raise FileError(
                f"{self.path}: the safetensors header is a {type(header).__name__}, but an object is needed"
            )
        return header

    def _tensor(self, name: str, entry: Any) -> tuple[StoredWeight, tuple[int, int]]:
        def wrong(what: str) -> FileError:
            return FileError(f"{self.path}: tensor {name!r}: {what}")

        def counts(value: Any) -> bool:
            return isinstance(value, list) and all(type(v) is int and 0 <= v < 2**63 for v in value)

        if not isinstance(entry, dict) or not {"dtype", "shape", "data_offsets"} <= entry.keys():
            raise wrong("its header entry lacks dtype, shape or data_offsets")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise FormatError(f"{self.path}: tensor {name!r}: element type {dtype!r} is not one of {', '.join(DTYPES)}")
        if not counts(shape) or len(shape) > 8:
            raise wrong(f"shape {shape!r} is not a list of at most 8 sizes")
        if not counts(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
            raise wrong(f"data_offsets {offsets!r} is not [begin, end]")
        begin, end = offsets
        if end > self._n_data:
            raise wrong(f"its data ends at byte {end}, but the file holds {self._n_data} bytes of data")
        wanted = DTYPES[dtype].itemsize
        for n in shape:
            wanted *= n
        if end - begin != wanted:
            raise wrong(f"{end - begin} bytes of data, but {dtype} of shape {shape} takes {wanted}")
        return StoredWeight(self, name, dtype, tuple(shape), self._data + begin), (begin, end)

    def _check_coverage(self, spans: list[tuple[int, int, str]]) -> None:
        at = 0
        for begin, end, name in sorted(spans):
            if begin != at:
                raise FileError(
                    f"{self.path}: tensor {name!r} begins at byte {begin}, but the tensor before it ends at {at}"
                )
            at = end
        if at != self._n_data:
            raise FileError(f"{self.path}: {self._n_data} bytes of data, but its tensors take {at}")

    def release(self, offset: int, n_bytes: int) -> None:
        """Tell the system that these pages are no longer needed: resident memory then stays small."""
        if hasattr(self.map, "madvise") and n_bytes > 0:
            start = offset - offset % mmap.PAGESIZE
            self.map.madvise(mmap.MADV_DONTNEED, start, offset + n_bytes - start)
