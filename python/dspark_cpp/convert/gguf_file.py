"""Reading one GGUF file: metadata and tensors, memory-mapped, every length checked against the file.

The reader of the gguf package trusts the file: a mutated length ends in a traceback or in a huge allocation.
Source: docs/gguf.md of ggml, version 2 and 3, little endian.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType
from gguf.quants import dequantize

from ..errors import FileError, FormatError
from .weights import BF16, AnyArray, Weight

__all__ = ["GGUFFile", "GGUFValue", "GGUFWeight"]

_SCALARS = {
    GGUFValueType.UINT8: "<B",
    GGUFValueType.INT8: "<b",
    GGUFValueType.UINT16: "<H",
    GGUFValueType.INT16: "<h",
    GGUFValueType.UINT32: "<I",
    GGUFValueType.INT32: "<i",
    GGUFValueType.FLOAT32: "<f",
    GGUFValueType.BOOL: "<?",
    GGUFValueType.UINT64: "<Q",
    GGUFValueType.INT64: "<q",
    GGUFValueType.FLOAT64: "<d",
}
_PLAIN = {
    GGMLQuantizationType.F32: np.dtype("<f4"),
    GGMLQuantizationType.F16: np.dtype("<f2"),
    GGMLQuantizationType.BF16: BF16,
    GGMLQuantizationType.F64: np.dtype("<f8"),
    GGMLQuantizationType.I8: np.dtype("i1"),
    GGMLQuantizationType.I16: np.dtype("<i2"),
    GGMLQuantizationType.I32: np.dtype("<i4"),
    GGMLQuantizationType.I64: np.dtype("<i8"),
}
_MAX_DIMS = 4


class GGUFValue:
    """One metadata value with the type that it is stored as; strings are bytes, as they need not be UTF-8."""

    __slots__ = ("type", "item_type", "value")

    def __init__(self, type: GGUFValueType, item_type: GGUFValueType | None, value: Any) -> None:
        self.type, self.item_type, self.value = type, item_type, value

    def __repr__(self) -> str:
        """The value as messages show it, strings as text."""

        def text(value: Any) -> Any:
            return value.decode("utf-8", "replace") if isinstance(value, bytes) else value

        return repr([text(v) for v in self.value] if isinstance(self.value, list) else text(self.value))


class GGUFWeight(Weight):
    """One tensor of a GGUF file; quantised types are read as float32.

    Shapes: NumPy order, that is ggml's dimensions reversed.
    """

    def __init__(self, file: GGUFFile, name: str, type: GGMLQuantizationType, shape: tuple[int, ...], at: int) -> None:
        self.file, self.name, self.type, self.shape, self.at = file, name, type, shape, at
        self.dtype = _PLAIN.get(type, np.dtype(np.float32))
        block, size = GGML_QUANT_SIZES[type]
        self.row_bytes = shape[-1] // block * size
        self.n_bytes = self.n_elements // block * size

    @property
    def is_quantised(self) -> bool:
        """Whether values were rounded to blocks."""
        return self.type not in _PLAIN

    def rows(self, start: int, stop: int) -> AnyArray:
        inner = self.n_elements // max(1, self.shape[0])
        if not self.is_quantised:
            size = self.dtype.itemsize
            data = np.frombuffer(
                self.file.map, self.dtype, count=(stop - start) * inner, offset=self.at + start * inner * size
            )
            return data.reshape((stop - start, *self.shape[1:]))
        if len(self.shape) < 2:
            raise FormatError(f"{self.file.path}: tensor {self.name!r}: a quantised vector cannot be read")
        rows_per = inner // self.shape[-1]
        raw = np.frombuffer(
            self.file.map,
            np.uint8,
            count=(stop - start) * rows_per * self.row_bytes,
            offset=self.at + start * rows_per * self.row_bytes,
        )
        try:
            values: AnyArray = dequantize(raw.reshape(-1, self.row_bytes), self.type)
        except NotImplementedError:
            raise FormatError(
                f"{self.file.path}: tensor {self.name!r}: type {self.type.name} cannot be read here"
            ) from None
        return values.reshape((stop - start, *self.shape[1:]))

    def raw(self) -> memoryview:
        """The bytes as stored."""
        return memoryview(self.file.map)[self.at : self.at + self.n_bytes]

    def release(self, start: int, stop: int) -> None:
        row = self.n_bytes // max(1, self.shape[0])
        self.file.release(self.at + start * row, (stop - start) * row)


class GGUFFile:
    """Metadata and tensors of one GGUF file.

    Raises: FileError where the file is missing, truncated or not GGUF.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as f:
                size = f.seek(0, 2)
                if size < 24:
                    raise FileError(f"{path}: {size} bytes, but a GGUF file has a header of 24")
                self.map = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
        except FileError:
            raise  # an OSError too
        except FileNotFoundError:
            raise FileError(f"{path}: no such file") from None
        except OSError as e:
            raise FileError(f"{path}: cannot be read: {e.strerror or e}") from None
        self._size, self._at = size, 0
        magic = self._take(4)
        if magic != b"GGUF":
            raise FileError(f"{path}: starts with {magic!r}, but a GGUF file starts with b'GGUF'")
        version = self._scalar("<I")
        if version not in (2, 3):
            raise FileError(f"{path}: GGUF version {version}, but 2 or 3 is needed")
        n_tensors, n_values = self._scalar("<Q"), self._scalar("<Q")
        self.metadata: dict[str, GGUFValue] = {}
        for _ in range(n_values):
            key = self._string().decode("utf-8", "replace")
            if key in self.metadata:
                raise FileError(f"{path}: key {key!r} occurs twice")
            self.metadata[key] = self._value()
        alignment = self.get_int("general.alignment", 32)
        if alignment <= 0 or alignment & (alignment - 1):
            raise FileError(f"{path}: general.alignment is {alignment}, but a power of two is needed")
        infos = [self._tensor_info() for _ in range(n_tensors)]
        data = -(-self._at // alignment) * alignment
        self.tensors: dict[str, GGUFWeight] = {}
        for name, type_id, ne, offset in infos:
            if name in self.tensors:
                raise FileError(f"{path}: tensor {name!r} occurs twice")
            self.tensors[name] = self._weight(name, type_id, ne, data + offset)

    def _take(self, n: int) -> bytes:
        if n > self._size - self._at:
            raise FileError(
                f"{self.path}: {n} bytes wanted at byte {self._at}, but the file ends at {self._size}; it is truncated"
            )
        self._at += n
        return self.map[self._at - n : self._at]

    def _scalar(self, code: str) -> Any:
        return struct.unpack(code, self._take(struct.calcsize(code)))[0]

    def _string(self) -> bytes:
        return self._take(self._scalar("<Q"))

    def _type(self) -> GGUFValueType:
        number = self._scalar("<I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise FileError(f"{self.path}: value type {number} at byte {self._at - 4} is unknown") from None

    def _value(self) -> GGUFValue:
        kind = self._type()
        if kind is GGUFValueType.STRING:
            return GGUFValue(kind, None, self._string())
        if kind is not GGUFValueType.ARRAY:
            return GGUFValue(kind, None, self._scalar(_SCALARS[kind]))
        item, n = self._type(), self._scalar("<Q")
        if item is GGUFValueType.STRING:
            if n > (self._size - self._at) // 8:
                raise FileError(f"{self.path}: an array of {n} strings at byte {self._at} does not fit in the file")
            return GGUFValue(kind, item, [self._string() for _ in range(n)])
        if item is GGUFValueType.ARRAY:
            raise FileError(f"{self.path}: an array of arrays at byte {self._at} is not supported")
        code = _SCALARS[item]
        raw = self._take(n * struct.calcsize(code))
        return GGUFValue(kind, item, [v[0] for v in struct.iter_unpack(code, raw)])

    def _tensor_info(self) -> tuple[str, int, list[int], int]:
        name = self._string().decode("utf-8", "replace")
        n_dims = self._scalar("<I")
        if not 1 <= n_dims <= _MAX_DIMS:
            raise FileError(f"{self.path}: tensor {name!r} has {n_dims} dimensions, but 1 to {_MAX_DIMS} are possible")
        ne = [self._scalar("<Q") for _ in range(n_dims)]
        return name, self._scalar("<I"), ne, self._scalar("<Q")

    def _weight(self, name: str, type_id: int, ne: list[int], at: int) -> GGUFWeight:
        try:
            kind = GGMLQuantizationType(type_id)
            block, block_bytes = GGML_QUANT_SIZES[kind]
        except (ValueError, KeyError):
            raise FileError(f"{self.path}: tensor {name!r} has the unknown type {type_id}") from None
        n = 1
        for size in ne:
            n *= size
        if min(ne) < 1 or ne[0] % block:
            raise FileError(f"{self.path}: tensor {name!r}: sizes {ne} do not suit blocks of {block} ({kind.name})")
        if at + n // block * block_bytes > self._size:
            raise FileError(
                f"{self.path}: tensor {name!r} ends at byte {at + n // block * block_bytes}, "
                f"but the file ends at {self._size}; it is truncated"
            )
        return GGUFWeight(self, name, kind, tuple(reversed(ne)), at)

    def get_int(self, key: str, default: int | None = None) -> int:
        """An integer metadata value.

        Raises: FileError where it is absent (and no default is given) or not an integer.
        """
        found = self.metadata.get(key)
        if found is None:
            if default is None:
                raise FileError(f"{self.path}: key {key} is missing")
            return default
        if isinstance(found.value, bool) or not isinstance(found.value, int):
            raise FileError(f"{self.path}: key {key} is {found!r}, but an integer is needed")
        return found.value

    def get_text(self, key: str) -> str | None:
        """A string metadata value, or None where it is absent or no string."""
        found = self.metadata.get(key)
        return found.value.decode("utf-8", "replace") if found and isinstance(found.value, bytes) else None

    def release(self, offset: int, n_bytes: int) -> None:
        """Tell the system that these pages are no longer needed."""
        if hasattr(self.map, "madvise") and n_bytes > 0:
            start = offset - offset % mmap.PAGESIZE
            self.map.madvise(mmap.MADV_DONTNEED, start, offset + n_bytes - start)
