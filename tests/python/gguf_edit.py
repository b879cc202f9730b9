"""Copies of GGUF files with a few keys and tensors changed, written with gguf-py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter

#: marks a key to leave out
DROP = object()


def edit(
    source: Path,
    out: Path,
    *,
    keys: Mapping[str, Any] | None = None,
    tensors: Mapping[str, np.ndarray] | None = None,
    drop: Iterable[str] = (),
    rename: Mapping[str, str] | None = None,
    recount: bool = True,
) -> Path:
    """Copy a file. keys: values of the old one's type, (value, GGUFValueType), or DROP; tensors: replaced or added, in
    NumPy order; drop: tensors left out; recount: dflash.tensor_count follows."""
    reader = GGUFReader(source)
    keys = dict(keys or {})
    if recount and "dflash.tensor_count" in reader.fields:
        kept = {t.name for t in reader.tensors} - set(drop)
        keys.setdefault("dflash.tensor_count", len(kept | set(tensors or {})))
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    arch = keys.get("general.architecture", fields["general.architecture"].contents())
    writer = GGUFWriter(out, arch)
    for name, field in fields.items():
        if name == "general.architecture":
            continue
        value = keys.pop(name, None)
        if value is DROP:
            continue
        if isinstance(value, tuple):
            writer.add_key_value(name, *value)
            continue
        kind = field.types[0]
        item = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents() if value is None else value, kind, sub_type=item)
    for name, value in keys.items():
        if value is not DROP and name != "general.architecture":
            assert isinstance(value, tuple), f"{name} is new: give its type too"
            writer.add_key_value(name, *value)

    tensors = dict(tensors or {})
    dropped = set(drop)
    for t in reader.tensors:
        if t.name in dropped:
            continue
        name = (rename or {}).get(t.name, t.name)
        if t.name in tensors:
            writer.add_tensor(name, np.ascontiguousarray(tensors.pop(t.name)))
        else:
            plain = t.tensor_type in (GGMLQuantizationType.F32, GGMLQuantizationType.F16, GGMLQuantizationType.I64)
            writer.add_tensor(name, np.ascontiguousarray(t.data), raw_dtype=None if plain else t.tensor_type)
    for name, data in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def tensor_names(path: Path) -> list[str]:
    return [t.name for t in GGUFReader(path).tensors]


def tensor(path: Path, name: str) -> np.ndarray:
    """A tensor in NumPy order."""
    found = next(t for t in GGUFReader(path).tensors if t.name == name)
    return np.array(found.data)


def copy_tokenizer(source: Path, writer: GGUFWriter) -> None:
    """Gives a file that is being written the tokenizer of another."""
    for name, field in GGUFReader(source).fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            item = field.types[-1] if kind == GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=item)
