"""One safetensors file, read a few rows at a time through the safetensors package, with errors that name the file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors import SafetensorError, safe_open

from ..errors import FileError, FormatError
from .weights import BF16, CHUNK_ELEMENTS, AnyArray, Weight

__all__ = ["SafetensorsFile", "StoredWeight"]

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
    # known, so that a quantised checkpoint is refused for what it is; never read
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(ml_dtypes.float8_e8m0fnu),
}

# The package maps the file; what was read stays in resident memory until the mapping goes.
_REOPEN_AFTER = 64 << 20


class StoredWeight(Weight):
    """One tensor of a file."""

    def __init__(self, file: SafetensorsFile, name: str, dtype_name: str, shape: tuple[int, ...]) -> None:
        self.file, self.name, self.dtype_name, self.shape = file, name, dtype_name, shape
        self.dtype = DTYPES[dtype_name]

    @property
    def n_bytes(self) -> int:
        """Size in the file."""
        return self.n_elements * self.dtype.itemsize

    def rows(self, start: int, stop: int) -> AnyArray:
        if start >= stop:
            return np.empty((0, *self.shape[1:]), self.dtype)
        data = self.file.read(self.name, slice(start, stop) if self.shape else None)
        values: AnyArray = np.ascontiguousarray(data)
        values = values.view(self.dtype) if values.dtype.itemsize == self.dtype.itemsize else values.astype(self.dtype)
        return values.reshape((stop - start, *self.shape[1:]))

    def byte_chunks(self) -> Iterator[bytes]:
        """The bytes as stored, a few rows at a time."""
        n_rows = self.shape[0] if self.shape else 1
        step = max(1, CHUNK_ELEMENTS // max(1, self.n_elements // max(1, n_rows)))
        for start in range(0, n_rows if self.n_elements else 0, step):
            yield self.rows(start, min(n_rows, start + step)).tobytes()


class SafetensorsFile:
    """The tensors of one safetensors file.

    Raises: FileError where the file is missing, truncated or malformed; FormatError for an unknown element type.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as f:
                start, size = f.read(8), f.seek(0, 2)
        except FileNotFoundError:
            raise FileError(f"{path}: no such file") from None
        except OSError as e:
            raise FileError(f"{path}: cannot be read: {e.strerror or e}") from None
        if size < 8:
            raise FileError(f"{path}: {size} bytes, but a safetensors file starts with an 8-byte header length")
        # what the package's own message leaves out
        self._sizes = f"{size} bytes, of which the header says it has {int.from_bytes(start, 'little')}"
        self._n_read = 0
        self._file = self._open()
        self.tensors: dict[str, StoredWeight] = {}
        for name in self._file.keys():  # noqa: SIM118 - not a dict
            entry = self._file.get_slice(name)
            dtype, shape = entry.get_dtype(), tuple(entry.get_shape())
            if dtype not in DTYPES:
                raise FormatError(
                    f"{self.path}: tensor {name!r}: element type {dtype!r} is not one of {', '.join(DTYPES)}"
                )
            self.tensors[name] = StoredWeight(self, name, dtype, shape)

    def _open(self) -> Any:
        try:
            return safe_open(self.path, framework="np")
        except (SafetensorError, OSError, ValueError) as e:
            raise FileError(f"{self.path} ({self._sizes}): not a whole safetensors file: {e}") from None

    def read(self, name: str, rows: slice | None) -> AnyArray:
        """Rows of a tensor, or all of one without dimensions."""
        if self._n_read > _REOPEN_AFTER:
            self._file, self._n_read = self._open(), 0
        try:
            data = self._file.get_tensor(name) if rows is None else self._file.get_slice(name)[rows]
        except (SafetensorError, OSError, AttributeError, TypeError) as e:
            raise FileError(f"{self.path}: tensor {name!r} cannot be read: {e}") from None
        values = np.asarray(data)
        self._n_read += values.nbytes
        return values
