"""Weights that are read a few rows at a time, so that no tensor need fit in memory.

Shapes are NumPy's (row-major): a matrix is (rows, columns) and its columns are GGUF's dimension 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = ["BF16", "AnyArray", "Weight", "ArrayWeight", "PermutedWeight", "PatchedWeight", "as_f32", "is_finite"]

AnyArray: TypeAlias = NDArray[Any]

BF16 = np.dtype(ml_dtypes.bfloat16)

# 4 Mi elements: 16 MiB of f32, small against any model and large enough to keep disk and NumPy busy.
CHUNK_ELEMENTS = 4 << 20

# Highest finite bit pattern + 1 of the magnitude, per type.
_INF_BITS = {np.dtype(np.float16): 0x7C00, BF16: 0x7F80, np.dtype(np.float32): 0x7F800000}


def as_f32(values: AnyArray) -> NDArray[np.float32]:
    """The same values as float32; exact for f16 and bf16."""
    if values.dtype == BF16:  # a shift is several times faster than ml_dtypes' element-wise cast
        wide = np.left_shift(values.view(np.uint16), 16, dtype=np.uint32, casting="unsafe")
        return wide.view(np.float32)
    return values.astype(np.float32, copy=False)


def is_finite(values: AnyArray) -> bool:
    """Whether no element is NaN or infinite."""
    if values.size == 0:
        return True
    limit = _INF_BITS.get(values.dtype)
    if limit is None:
        return bool(np.isfinite(values).all())
    if values.itemsize == 2:
        return int((values.view(np.uint16) & np.uint16(0x7FFF)).max()) < limit
    return int((values.view(np.uint32) & np.uint32(0x7FFFFFFF)).max()) < limit


class Weight(ABC):
    """One tensor, readable by ranges of its first dimension."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype

    @abstractmethod
    def rows(self, start: int, stop: int) -> AnyArray:
        """Rows start..stop-1 (elements, for a vector), in `dtype`."""

    def release(self, start: int, stop: int) -> None:  # noqa: B027 - most weights hold nothing to let go of
        """Let go of the pages that reading rows start..stop-1 has brought into memory."""

    @property
    def n_elements(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    def chunks(self) -> Iterator[AnyArray]:
        """The whole tensor as consecutive ranges of rows, each of about CHUNK_ELEMENTS elements."""
        n_rows = self.shape[0] if self.shape else 1
        row = max(1, self.n_elements // max(1, n_rows))
        step = max(1, CHUNK_ELEMENTS // row)
        for start in range(0, n_rows, step):
            stop = min(start + step, n_rows)
            yield self.rows(start, stop)
            self.release(start, stop)

    def whole(self) -> AnyArray:
        """The whole tensor."""
        return self.rows(0, self.shape[0])


class ArrayWeight(Weight):
    """A small weight made here, such as rotary divisors."""

    def __init__(self, name: str, values: AnyArray) -> None:
        self.name, self.values = name, values
        self.shape, self.dtype = values.shape, values.dtype

    def rows(self, start: int, stop: int) -> AnyArray:
        return self.values[start:stop]


class PermutedWeight(Weight):
    """Heads whose rotary pairs are interleaved, reordered to halves: even rows of each head first, then odd.

    Shapes: (n_heads * head_dim, columns) or (head_dim,).
    """

    def __init__(self, inner: Weight, head_dim: int) -> None:
        self.inner, self.head_dim = inner, head_dim
        self.name, self.shape, self.dtype = inner.name, inner.shape, inner.dtype

    def rows(self, start: int, stop: int) -> AnyArray:
        d = self.head_dim
        first, last = start // d, -(-stop // d)
        block = self.inner.rows(first * d, last * d)
        heads = block.reshape(last - first, d // 2, 2, *block.shape[1:]).swapaxes(1, 2).reshape(block.shape)
        return heads[start - first * d : stop - first * d]

    def release(self, start: int, stop: int) -> None:
        self.inner.release(start, stop)


class PatchedWeight(Weight):
    """A table with one row replaced.

    Shapes: inner (rows, columns); row (columns,).
    """

    def __init__(self, inner: Weight, index: int, row: AnyArray) -> None:
        self.inner, self.index = inner, index
        self.name, self.shape, self.dtype = inner.name, inner.shape, inner.dtype
        self.row = as_f32(row).astype(inner.dtype)

    def rows(self, start: int, stop: int) -> AnyArray:
        block = self.inner.rows(start, stop)
        if start <= self.index < stop:
            block = block.copy()
            block[self.index - start] = self.row
        return block

    def release(self, start: int, stop: int) -> None:
        self.inner.release(start, stop)
