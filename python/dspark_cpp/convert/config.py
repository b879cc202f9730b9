"""Typed reading of a config.json: every miss is one sentence with the value seen and the value wanted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import FileError, FormatError

__all__ = ["Config", "read_json"]

_MAX_JSON_BYTES = 256 << 20


def read_json(path: Path) -> dict[str, Any]:
    """Read one JSON object from a file.

    Raises: FileError where the file is missing, not JSON, or not an object.
    """
    try:
        size = path.stat().st_size
        if size > _MAX_JSON_BYTES:
            raise FileError(f"{path}: {size} bytes, but a JSON file of at most {_MAX_JSON_BYTES} bytes is expected")
        text = path.read_text(encoding="utf-8")
    except FileError:
        raise  # an OSError too
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except UnicodeDecodeError as e:
        raise FileError(f"{path}: not UTF-8 text: {e.reason} at byte {e.start}") from None
    except OSError as e:
        raise FileError(f"{path}: cannot be read: {e.strerror}") from None
    try:
        value = json.loads(text)
    except json.JSONDecodeError as e:
        raise FileError(f"{path}: not valid JSON: {e.msg} at line {e.lineno}, column {e.colno}") from None
    except (ValueError, RecursionError) as e:  # over-long numbers, over-deep nesting
        raise FileError(f"{path}: not valid JSON: {e}") from None
    if not isinstance(value, dict):
        raise FileError(f"{path}: a JSON object is expected, but the file holds a {type(value).__name__}")
    return value


def _shown(value: object) -> str:
    text = json.dumps(value, default=str)
    return text if len(text) <= 120 else text[:117] + "..."


class Config:
    """A config.json behind typed, alias-aware getters.

    A path such as ``dflash_config.block_size`` descends into nested objects. ``null`` counts as absent: exporters
    write it for "unset". Of several aliases the first present one is used, and the others must agree with it.
    """

    def __init__(self, values: Mapping[str, Any], where: str = "config.json") -> None:
        self.values = values
        self.where = where

    def get(self, path: str) -> Any:
        """The raw value at a path, or None where it is absent or null."""
        node: Any = self.values
        for key in path.split("."):
            if not isinstance(node, Mapping):
                return None
            node = node.get(key)
        return node

    def has(self, path: str) -> bool:
        """Whether a path holds anything but null."""
        return self.get(path) is not None

    def find(self, *paths: str) -> tuple[str, Any] | None:
        """The first alias that is present, as (path, value).

        Raises: FormatError where two aliases are present and differ.
        """
        found: tuple[str, Any] | None = None
        for path in paths:
            value = self.get(path)
            if value is None:
                continue
            if found is None:
                found = (path, value)
            elif value != found[1]:
                raise FormatError(
                    f"{self.where}: {found[0]} is {_shown(found[1])} but {path} is {_shown(value)}; they must agree"
                )
        return found

    def missing(self, *paths: str) -> FormatError:
        """The error for a key that is needed and not there."""
        others = f" (also looked for: {', '.join(paths[1:])})" if len(paths) > 1 else ""
        return FormatError(f"{self.where}: {paths[0]} is missing{others}")

    def wrong(self, path: str, value: object, wanted: str) -> FormatError:
        """The error for a value that cannot be used."""
        return FormatError(f"{self.where}: {path} is {_shown(value)}, but {wanted} is needed")

    def integer(self, *paths: str, least: int, default: int | None = None) -> int:
        """An integer of at least `least`; without a default its absence is an error."""
        found = self.find(*paths)
        if found is None:
            if default is None:
                raise self.missing(*paths)
            return default
        path, value = found
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 2**31:
            raise self.wrong(path, value, f"an integer of at least {least}")
        return value

    def optional_integer(self, *paths: str, least: int) -> int | None:
        """An integer of at least `least`, or None where it is absent."""
        return self.integer(*paths, least=least) if self.find(*paths) else None

    def optional_number(self, *paths: str, positive: bool = True) -> float | None:
        """A finite number, or None where it is absent."""
        found = self.find(*paths)
        if found is None:
            return None
        path, value = found
        ok = not isinstance(value, bool) and isinstance(value, (int, float)) and abs(value) < 1e38
        if not ok or (positive and value <= 0):
            raise self.wrong(path, value, "a positive number" if positive else "a finite number")
        return float(value)

    def number(self, *paths: str) -> float:
        """A positive finite number."""
        value = self.optional_number(*paths)
        if value is None:
            raise self.missing(*paths)
        return value

    def flag(self, *paths: str) -> bool | None:
        """A JSON boolean, or None where it is absent."""
        found = self.find(*paths)
        if found is None:
            return None
        if not isinstance(found[1], bool):
            raise self.wrong(found[0], found[1], "true or false")
        return found[1]

    def text(self, *paths: str) -> str | None:
        """A string, or None where it is absent."""
        found = self.find(*paths)
        if found is None:
            return None
        if not isinstance(found[1], str):
            raise self.wrong(found[0], found[1], "a string")
        return found[1]

    def table(self, path: str) -> dict[str, Any] | None:
        """A JSON object, or None where it is absent."""
        value = self.get(path)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(path, value, "a JSON object")
        return value

    def integers(self, *paths: str) -> tuple[str, list[int]] | None:
        """A list of integers with the path that it came from, or None where it is absent."""
        found = self.find(*paths)
        if found is None:
            return None
        path, value = found
        if not isinstance(value, list) or any(
            isinstance(v, bool) or not isinstance(v, int) or abs(v) >= 2**31 for v in value
        ):
            raise self.wrong(path, value, "a list of integers")
        return path, value

    def strings(self, path: str) -> list[str] | None:
        """A list of strings, or None where it is absent."""
        value = self.get(path)
        if value is None:
            return None
        if not isinstance(value, list) or any(not isinstance(v, str) for v in value):
            raise self.wrong(path, value, "a list of strings")
        return value
