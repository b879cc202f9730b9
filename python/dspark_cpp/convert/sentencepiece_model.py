"""The pieces of a SentencePiece tokenizer.model, read without the sentencepiece package.

Source: sentencepiece_model.proto: ModelProto.pieces = 1 {piece = 1, score = 2, type = 3}. GGUF's token types have the
same numbers as the piece types.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from ..errors import FileError

__all__ = ["read_pieces"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MAX_FILE_BYTES = 256 << 20
_KINDS = range(1, 7)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError("a number of more than 10 bytes")


def _fields(data: bytes) -> Iterator[tuple[int, int, int | bytes]]:
    """The fields of one message as (number, wire type, value)."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, wire = key >> 3, key & 7
        if wire == _VARINT:
            value, at = _varint(data, at)
            yield number, wire, value
            continue
        if wire == _BYTES:
            size, at = _varint(data, at)
        elif wire in (_FIXED32, _FIXED64):
            size = 4 if wire == _FIXED32 else 8
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if size > len(data) - at:
            raise ValueError(f"{size} bytes wanted at byte {at} of {len(data)}")
        yield number, wire, data[at : at + size]
        at += size


def _piece(data: bytes) -> tuple[bytes, float, int]:
    text, score, kind = b"", 0.0, 1
    for number, wire, value in _fields(data):
        if (number, wire) == (1, _BYTES) and isinstance(value, bytes):
            text = value
        elif (number, wire) == (2, _FIXED32) and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif (number, wire) == (3, _VARINT) and isinstance(value, int):
            kind = value
    if kind not in _KINDS:
        raise ValueError(f"piece type {kind}")
    return text, score, kind


def read_pieces(path: Path) -> list[tuple[bytes, float, int]]:
    """The pieces in order of their ids, as (text, score, type).

    Raises: FileError where the file is not a SentencePiece model.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_FILE_BYTES:
            raise FileError(f"{path}: {size} bytes, but at most {_MAX_FILE_BYTES} are expected")
        data = path.read_bytes()
    except FileError:
        raise
    except OSError as e:
        raise FileError(f"{path}: cannot be read: {e.strerror}") from None
    try:
        found = [_piece(v) for number, _, v in _fields(data) if number == 1 and isinstance(v, bytes)]
    except (ValueError, IndexError, struct.error) as e:
        raise FileError(f"{path}: not a SentencePiece model: {e}") from None
    if not found:
        raise FileError(f"{path}: not a SentencePiece model: it has no pieces")
    return found
