"""The draft's own vocabulary: d2t, and t2d, which is checked against it and dropped."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...errors import FormatError
from ..weights import Weight
from .source import Source

__all__ = ["read_draft_vocabulary"]


def read_draft_vocabulary(src: Source, n_vocab: int) -> tuple[int, NDArray[np.int64] | None]:
    """The draft vocabulary's size and its table of absolute target ids, (Vd,) I64, or None for the full one.

    Checkpoints store offsets: target id = row + d2t[row].

    Raises: FormatError for a table that is missing, of another size, out of range or not one-to-one.
    """
    cfg = src.config
    table = src.tensors.get("d2t")
    declared = cfg.optional_integer("draft_vocab_size", "dflash_config.draft_vocab_size", least=1)
    if declared is not None and declared > n_vocab:
        raise FormatError(f"{cfg.where}: draft_vocab_size is {declared}, but vocab_size is only {n_vocab}")
    n_draft = declared
    if n_draft is None:
        n_draft = int(table.n_elements) if table is not None else n_vocab
        if table is not None:
            src.notes.append(f"draft_vocab_size is not given; {n_draft} is the length of d2t")
    if n_draft == n_vocab:
        if table is not None and not _is_zero(table):
            raise FormatError(
                f"{table.file.path}: d2t is present and not all zero, but the draft vocabulary is the full one"
            )
        return n_vocab, None
    if table is None:
        raise FormatError(f"{cfg.where}: draft_vocab_size is {n_draft} of {n_vocab}, but there is no d2t table")
    path = table.file.path
    if table.shape != (n_draft,):
        raise FormatError(f"{path}: d2t has shape {list(table.shape)}, but draft_vocab_size is {n_draft}")
    if table.dtype.kind not in "iu" or table.dtype.itemsize < 4:
        raise FormatError(f"{path}: d2t is {table.dtype_name}, but integers (I64) are needed")
    offsets = [int(v) for v in table.whole()]  # Python integers: offset + row cannot wrap
    absolute = [row + offset for row, offset in enumerate(offsets)]
    for row, token in enumerate(absolute):
        if not 0 <= token < n_vocab:
            hint = ""
            if (
                all(b > a for a, b in zip(offsets, offsets[1:], strict=False))
                and offsets[0] >= 0
                and offsets[-1] < n_vocab
            ):
                hint = "; the table looks like absolute ids where offsets are expected"
            raise FormatError(
                f"{path}: d2t[{row}] is {offsets[row]}, which makes target id {token}, outside 0 to {n_vocab - 1}{hint}"
            )
    first: dict[int, int] = {}
    for row, token in enumerate(absolute):
        if first.setdefault(token, row) != row:
            raise FormatError(f"{path}: d2t rows {first[token]} and {row} both map to target id {token}")
    if not any(offsets):
        src.warnings.append(f"d2t is all zero: the draft vocabulary is taken to be the first {n_draft} target ids")
    _check_t2d(src, absolute, n_vocab)
    return n_draft, np.array(absolute, np.int64)


def _is_zero(table: Weight) -> bool:
    return not any(np.any(chunk) for chunk in table.chunks())


def _check_t2d(src: Source, absolute: list[int], n_vocab: int) -> None:
    """Compare t2d with d2t. It is not needed to run, so a disagreement of contents is only told."""
    mask = src.tensors.get("t2d")
    if mask is None:
        return
    if mask.shape != (n_vocab,):
        raise FormatError(f"{mask.file.path}: t2d has shape {list(mask.shape)}, but vocab_size is {n_vocab}")
    chosen = np.flatnonzero(mask.whole())
    if not np.array_equal(chosen, np.sort(np.array(absolute))):
        differing = len(set(chosen.tolist()) ^ set(absolute))
        src.warnings.append(
            f"t2d marks {len(chosen)} tokens and differs from d2t ({len(absolute)} rows) in {differing}; d2t is used"
        )
