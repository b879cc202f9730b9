"""A checkpoint folder as its exporter wrote it: config.json plus one or more safetensors files."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from ..errors import FileError, FormatError
from .config import Config, read_json
from .safetensors_file import SafetensorsFile, StoredWeight

__all__ = ["Checkpoint", "open_tensors"]

# Wrappers that exporters put around the names. "logit_head." nests the heads in early SpecForge exports.
_PREFIXES = ("model.", "language_model.", "logit_head.", "encoder.")


def plain_name(name: str) -> str:
    """A tensor's name without the wrappers of its exporter."""
    stripped = True
    while stripped:
        stripped = False
        for prefix in _PREFIXES:
            if name.startswith(prefix):
                name, stripped = name[len(prefix) :], True
    return name


def open_tensors(folder: Path) -> dict[str, StoredWeight]:
    """All tensors of a folder of safetensors files, under the names that they are stored with.

    Raises: FileError for a missing, truncated or malformed file; FormatError where a tensor occurs twice.
    """
    index_path = folder / "model.safetensors.index.json"
    if index_path.is_file():
        return _open_sharded(folder, index_path)
    paths = [folder / "model.safetensors"] if (folder / "model.safetensors").is_file() else []
    paths = paths or sorted(folder.glob("*.safetensors"))
    if not paths:
        pickles = sorted(p.name for p in folder.glob("*.bin")) + sorted(p.name for p in folder.glob("*.pt"))
        hint = f"; {pickles[0]} is a pickle, which is not read" if pickles else ""
        raise FileError(f"{folder}: no model.safetensors and no model.safetensors.index.json{hint}")
    tensors: dict[str, StoredWeight] = {}
    for path in paths:
        for name, weight in SafetensorsFile(path).tensors.items():
            if name in tensors:
                raise FormatError(f"{path}: tensor {name!r} is also in {tensors[name].file.path.name}")
            tensors[name] = weight
    return tensors


def _open_sharded(folder: Path, index_path: Path) -> dict[str, StoredWeight]:
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise FileError(f"{index_path}: weight_map is missing or empty")
    shards: dict[str, SafetensorsFile] = {}
    tensors: dict[str, StoredWeight] = {}
    for name, shard in weight_map.items():
        if not isinstance(shard, str) or Path(shard).name != shard:
            raise FileError(f"{index_path}: shard {shard!r} of {name!r} is not the name of a file in the folder")
        if shard not in shards:
            if not (folder / shard).is_file():
                raise FileError(f"{index_path}: lists {shard}, which is not in the folder")
            shards[shard] = SafetensorsFile(folder / shard)
        if name not in shards[shard].tensors:
            raise FileError(f"{folder / shard}: tensor {name!r} is missing, although the index says it is here")
        tensors[name] = shards[shard].tensors[name]
    return tensors


class Checkpoint:
    """One draft checkpoint: its configuration and its tensors under plain names."""

    def __init__(self, folder: Path) -> None:
        if not folder.is_dir():
            raise FileError(f"{folder}: not a folder; a checkpoint is a folder with config.json and safetensors files")
        self.folder = folder
        self.config = Config(read_json(folder / "config.json"), where=str(folder / "config.json"))
        self.tensors: dict[str, StoredWeight] = {}
        for stored, weight in open_tensors(folder).items():
            name = plain_name(stored)
            if name in self.tensors:
                raise FormatError(f"{folder}: tensors {self.tensors[name].name!r} and {stored!r} are the same weight")
            self.tensors[name] = weight

    @property
    def architecture(self) -> str | None:
        """The class name that the exporter wrote."""
        names = self.config.strings("architectures")
        return names[0] if names else None

    def sha256(self, advance: Callable[[int], None] | None = None) -> str:
        """A hash of the tensors that does not depend on file layout or name prefixes.

        SHA-256 over the tensors in order of their plain names, each as name, NUL, type, NUL, shape, NUL, SHA-256 of
        its bytes.
        """
        total = hashlib.sha256()
        for name in sorted(self.tensors):
            weight = self.tensors[name]
            one = hashlib.sha256()
            for part in weight.byte_chunks():
                one.update(part)
                if advance:
                    advance(len(part))
            shape = "x".join(map(str, weight.shape))
            total.update(f"{name}\0{weight.dtype_name}\0{shape}\0".encode() + one.digest())
        return total.hexdigest()
