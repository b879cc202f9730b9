"""Files that are none: each reader of the converter names the file and what is wrong with it, in a sentence."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_cpp.convert.checkpoint import Checkpoint
from dspark_cpp.convert.config import read_json
from dspark_cpp.convert.gguf_file import GGUFFile
from dspark_cpp.convert.safetensors_file import SafetensorsFile
from dspark_cpp.errors import FileError, FormatError
from safetensors.numpy import save_file


def refused(read: Callable[[Path], Any], path: Path, said: str) -> None:
    with pytest.raises((FileError, FormatError)) as seen:
        read(path)
    assert said in str(seen.value) and path.name in str(seen.value) and "\n" not in str(seen.value)
    assert str(seen.value).count(str(path)) == 1


@pytest.mark.parametrize("read", [read_json, GGUFFile, SafetensorsFile], ids=lambda r: r.__name__)
def test_no_file_and_a_folder_are_named(read: Callable[[Path], Any], tmp_path: Path) -> None:
    refused(read, tmp_path / "none", "no such file")
    (tmp_path / "folder").mkdir()
    refused(read, tmp_path / "folder", "cannot be read: Is a directory")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"a": "\xff"}', "not UTF-8 text: invalid start byte at byte 7"),
        (b'{"a": }', "not valid JSON: Expecting value at line 1, column 7"),
        (b'{"a": ' + 5000 * b"9" + b"}", "not valid JSON: Exceeds the limit"),
        (100_000 * b"[", "not valid JSON: maximum recursion depth"),
        (b"[1, 2]", "a JSON object is expected, but the file holds a list"),
    ],
    ids=["bytes", "syntax", "a long number", "deep", "a list"],
)
def test_text_that_is_no_json_object(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(content)
    refused(read_json, tmp_path / "config.json", said)


def test_a_json_file_of_many_megabytes_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with open(path, "wb") as f:
        f.truncate(1 << 31)
    refused(read_json, path, "bytes, but a JSON file of at most")


def header(**tensors: Any) -> bytes:
    text = json.dumps(tensors).encode()
    return struct.pack("<Q", len(text)) + text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"abc", "3 bytes, but a safetensors file starts with an 8-byte header length"),
        (header(x={"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}) + b"1234", "not a whole safetensors file"),
        (
            header(x={"dtype": "C64", "shape": [1], "data_offsets": [0, 8]}) + b"12345678",
            "element type 'C64' is not one of",
        ),
    ],
    ids=["short", "cut off", "another type"],
)
def test_bytes_that_are_no_safetensors_file(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    refused(SafetensorsFile, tmp_path / "model.safetensors", said)


def gguf(*values: bytes, tensors: tuple[bytes, ...] = ()) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + b"".join(values) + b"".join(tensors)


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def u32(key: str, value: int) -> bytes:
    return string(key) + struct.pack("<II", 4, value)


TENSOR = string("x") + struct.pack("<IQIQ", 1, 2, 0, 0)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"GGUF", "4 bytes, but a GGUF file has a header of 24"),
        (gguf(u32("a", 1), u32("a", 2)), "key 'a' occurs twice"),
        (gguf(u32("general.alignment", 33)), "general.alignment is 33, but a power of two is needed"),
        (gguf(u32("general.alignment", 0)), "general.alignment is 0, but a power of two is needed"),
        (
            gguf(string("general.alignment") + struct.pack("<I", 8) + string("wide")),
            "is 'wide', but an integer is needed",
        ),
        (gguf(tensors=(TENSOR, TENSOR)) + bytes(64), "tensor 'x' occurs twice"),
        (gguf(string("a") + struct.pack("<IIQ", 9, 9, 1)) + bytes(64), "an array of arrays"),
    ],
    ids=["short", "a key twice", "alignment 33", "alignment 0", "alignment of text", "a tensor twice", "arrays"],
)
def test_bytes_that_are_no_gguf_file(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(content)
    refused(GGUFFile, tmp_path / "model.gguf", said)


def test_shards_that_do_not_fit_their_index(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    one = {"x": np.zeros(2, np.float32)}
    save_file(one, tmp_path / "a.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    for weight_map in ({}, [], None):
        index.write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(FileError, match="weight_map is missing or empty"):
            Checkpoint(tmp_path)
    index.write_text(json.dumps({"weight_map": {"x": "a.safetensors", "y": "a.safetensors"}}))
    with pytest.raises(FileError, match="a.safetensors: tensor 'y' is missing, although the index says it is here"):
        Checkpoint(tmp_path)


def test_a_tensor_that_is_there_twice(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    save_file({"x": np.zeros(2, np.float32)}, tmp_path / "a.safetensors")
    save_file({"x": np.ones(2, np.float32)}, tmp_path / "b.safetensors")
    with pytest.raises(FormatError, match="b.safetensors: tensor 'x' is also in a.safetensors"):
        Checkpoint(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    save_file(
        {"fc.weight": np.zeros(2, np.float32), "model.fc.weight": np.zeros(2, np.float32)}, tmp_path / "a.safetensors"
    )
    with pytest.raises(FormatError, match="'fc.weight' and 'model.fc.weight' are the same weight"):
        Checkpoint(tmp_path)
