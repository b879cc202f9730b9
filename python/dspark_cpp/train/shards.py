"""Training data on disk: a folder of memory-mapped shards that grows, and a manifest that says of which target.

    manifest.json            what all shards have in common, and the list of those that are whole
    shard-00000/
        tokens.npy           int32   (N,)                 prompt and response of one sequence after another
        features.npy         float16 (N, n_taps * n_embd) inputs of the tapped layers at each token
        top_ids.npy          int32   (N, top_k)           likeliest tokens to come next, likeliest first
        top_probs.npy        float16 (N, top_k)           their probabilities at temperature 1 over the whole vocabulary
        sequence_start.npy   int64   (S + 1,)             sequence s has the rows sequence_start[s] to [s + 1]
        prompt_length.npy    int32   (S,)                 tokens of its prompt

Rows before the prompt's last have no distribution: ids and probabilities are 0 there, since no loss is taken of them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, FileError, FormatError, MismatchError

__all__ = ["Sample", "ShardReader", "ShardWriter", "file_sha256"]

FORMAT = "dspark-features"
VERSION = 1
_MANIFEST = "manifest.json"
#: what makes shards of two runs one set; settings are only told
_KIND = ("target_sha256", "tokenizer_sha256", "taps", "n_embd", "n_vocab", "top_k")
_IDENTITY = (*_KIND, "seed")

Array = npt.NDArray[Any]


class Sample(NamedTuple):
    """One sequence; of a reader the arrays are read-only views of files."""

    tokens: Array  # int32 (n,)
    prompt_length: int
    features: Array  # float16 (n, n_taps * n_embd)
    top_ids: Array  # int32 (n, top_k)
    top_probs: Array  # float16 (n, top_k)


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Hexadecimal SHA-256 of a file's content."""
    digest = hashlib.sha256()
    try:
        with open(path, "rb") as file:
            while block := file.read(1 << 22):
                digest.update(block)
    except OSError as e:
        raise FileError(f"{os.fspath(path)}: cannot be read: {e.strerror}") from None
    return digest.hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / _MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise FileError(f"{path}: cannot be read: {e.strerror}") from None
    except ValueError as e:
        raise FormatError(f"{path} is damaged: {e}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise FormatError(f"{path} is no manifest of training data: its format is not {FORMAT!r}")
    if manifest.get("version") != VERSION:
        raise FormatError(f"{path} has version {manifest.get('version')}, expected {VERSION}")
    missing = [key for key in (*_IDENTITY, "shards") if key not in manifest]
    if missing:
        raise FormatError(f"{path} is damaged: it has no {missing[0]!r}")
    return manifest


def _require_same(folder: Path, manifest: dict[str, Any], wanted: dict[str, Any]) -> None:
    for key, value in wanted.items():
        if manifest[key] != value:
            raise MismatchError(
                f"the training data in {folder} has the {key} {manifest[key]!r}, expected {value!r}; "
                "use another folder or remove this one"
            )


class ShardWriter:
    """Appends sequences to a folder; what is in it already, of the same target and settings, is continued.

    Shards are written under a temporary name and renamed, so that a run that is killed leaves whole shards only.
    ``n_sequences`` tells how many sequences the folder holds: a resumed run goes on from there.

    Args:
        target_sha256, tokenizer_sha256: Which target the features are of.
        taps: Layers whose inputs the features are, as in a draft's GGUF file.
        n_embd, n_vocab: Of the target.
        top_k: Kept probabilities of a row.
        seed: Of the run that made the tokens.
        settings: Anything else worth telling; not compared.
        shard_bytes: A shard is closed when it has this many bytes.

    Raises:
        MismatchError: The folder holds data of another target or of other settings.
        FileError: The folder cannot be written, or the disk is full; whole shards stay.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        target_sha256: str,
        tokenizer_sha256: str,
        taps: Sequence[int],
        n_embd: int,
        n_vocab: int,
        top_k: int,
        seed: int,
        settings: dict[str, Any] | None = None,
        shard_bytes: int = 1 << 27,
    ) -> None:
        self.folder = Path(folder)
        self._shard_bytes = shard_bytes
        self._samples: list[Sample] = []
        self._n_bytes = 0
        identity = {
            "target_sha256": target_sha256,
            "tokenizer_sha256": tokenizer_sha256,
            "taps": list(taps),
            "n_embd": n_embd,
            "n_vocab": n_vocab,
            "top_k": top_k,
            "seed": seed,
        }
        with _disk(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
        if (self.folder / _MANIFEST).exists():
            self._manifest = _read_manifest(self.folder)
            _require_same(self.folder, self._manifest, identity)
            # what a killed run had not finished
            whole = {shard["name"] for shard in self._manifest["shards"]}
            for path in self.folder.glob("shard-*"):
                if path.name not in whole:
                    shutil.rmtree(path)
        else:
            head = {"format": FORMAT, "version": VERSION, "dtype": "float16"}
            self._manifest = {**head, **identity, "settings": settings or {}, "shards": []}
            self._write_manifest()

    @property
    def n_sequences(self) -> int:
        """Sequences in whole shards; those that add() took since the last one are not among them."""
        return sum(shard["n_sequences"] for shard in self._manifest["shards"])

    def add(self, sample: Sample) -> None:
        """Takes one sequence; its arrays are converted and must not change afterwards."""
        n = len(sample.tokens)
        width = len(self._manifest["taps"]) * self._manifest["n_embd"]
        wanted = {
            "features": (n, width),
            "top_ids": (n, self._manifest["top_k"]),
            "top_probs": (n, self._manifest["top_k"]),
        }
        for name, shape in wanted.items():
            if getattr(sample, name).shape != shape:
                raise ArgumentError(f"{name} has the shape {getattr(sample, name).shape}, expected {shape}")
        if not 0 < sample.prompt_length <= n:
            raise ArgumentError(f"prompt_length is {sample.prompt_length}, expected 1 to the {n} tokens")
        sample = Sample(
            np.asarray(sample.tokens, np.int32),
            int(sample.prompt_length),
            np.asarray(sample.features, np.float16),
            np.asarray(sample.top_ids, np.int32),
            np.asarray(sample.top_probs, np.float16),
        )
        self._samples.append(sample)
        self._n_bytes += sum(a.nbytes for a in sample if isinstance(a, np.ndarray))
        if self._n_bytes >= self._shard_bytes:
            self.flush()

    def flush(self) -> None:
        """Closes the shard under way, if it has any sequence."""
        if not self._samples:
            return
        columns = {
            "tokens": np.concatenate([s.tokens for s in self._samples]),
            "features": np.concatenate([s.features for s in self._samples]),
            "top_ids": np.concatenate([s.top_ids for s in self._samples]),
            "top_probs": np.concatenate([s.top_probs for s in self._samples]),
            "sequence_start": np.cumsum([0] + [len(s.tokens) for s in self._samples], dtype=np.int64),
            "prompt_length": np.array([s.prompt_length for s in self._samples], np.int32),
        }
        name = f"shard-{len(self._manifest['shards']):05d}"
        part, whole = self.folder / f"{name}.part", self.folder / name
        with _disk(self.folder):
            try:
                part.mkdir()
                for column, values in columns.items():
                    np.save(part / f"{column}.npy", values)
                shard = {
                    "name": name,
                    "n_tokens": len(columns["tokens"]),
                    "n_sequences": len(self._samples),
                    "n_response_tokens": len(columns["tokens"]) - int(columns["prompt_length"].sum()),
                    "files": {
                        p.name: {"bytes": p.stat().st_size, "sha256": file_sha256(p)} for p in sorted(part.iterdir())
                    },
                }
                part.rename(whole)
            except OSError:
                shutil.rmtree(part, ignore_errors=True)
                raise
        self._manifest["shards"].append(shard)
        try:
            self._write_manifest()
        except FileError:
            self._manifest["shards"].pop()
            shutil.rmtree(whole, ignore_errors=True)
            raise
        self._samples, self._n_bytes = [], 0

    def _write_manifest(self) -> None:
        part = self.folder / f"{_MANIFEST}.part"
        with _disk(self.folder):
            part.write_text(json.dumps(self._manifest, indent=1) + "\n", encoding="utf-8")
            os.replace(part, self.folder / _MANIFEST)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        if kind is None:
            self.flush()


@contextlib.contextmanager
def _disk(folder: Path) -> Iterator[None]:
    """What goes wrong with the disk, as one sentence."""
    try:
        yield
    except OSError as e:
        if isinstance(e, FileError):
            raise
        why = "the disk is full" if e.errno == errno.ENOSPC else e.strerror
        raise FileError(f"{folder}: cannot write training data: {why}; the shards written before are whole") from None


class ShardReader:
    """Reads the sequences of one or more folders of shards, by number, without loading them.

    ``refresh()`` looks for shards that a run has added meanwhile.

    Args:
        target_sha256: What the shards must be of, as file_sha256() of the target says; None: whatever they are of.
        check: Compare the checksums of all files, which reads them once; otherwise only their sizes.

    Raises:
        FileError: A folder, or a file that a manifest names, is missing or unreadable.
        FormatError: A file is damaged or truncated.
        MismatchError: The shards are of another target, or of several kinds.
    """

    def __init__(self, *folders: str | os.PathLike[str], target_sha256: str | None = None, check: bool = False) -> None:
        self.folders = [Path(folder) for folder in folders]
        self._check = check
        self._shards: list[dict[str, Array]] = []
        self._place: list[tuple[int, int]] = []  # of each sequence, its shard and its number there
        self._manifests = [_read_manifest(folder) for folder in self.folders]
        self._n_opened = [0] * len(self.folders)
        kind = self._identity(0, _KIND) | ({"target_sha256": target_sha256} if target_sha256 is not None else {})
        for folder, manifest in zip(self.folders, self._manifests, strict=True):
            _require_same(folder, manifest, kind)
        self.refresh()

    @property
    def name(self) -> str:
        """All folders, for messages."""
        return ", ".join(map(str, self.folders))

    @property
    def manifest(self) -> dict[str, Any]:
        """Of the first folder: target, tokenizer, taps and widths are those of all."""
        return self._manifests[0]

    def _identity(self, i: int, keys: tuple[str, ...]) -> dict[str, Any]:
        return {key: self._manifests[i][key] for key in keys}

    def refresh(self) -> int:
        """Opens the shards that are new; returns the number of sequences."""
        for i, folder in enumerate(self.folders):
            manifest = _read_manifest(folder)
            _require_same(folder, manifest, self._identity(i, _IDENTITY))
            self._manifests[i] = manifest
            for shard in manifest["shards"][self._n_opened[i] :]:
                opened = self._open(folder, shard)
                self._place += [(len(self._shards), k) for k in range(shard["n_sequences"])]
                self._shards.append(opened)
                self._n_opened[i] += 1
        return len(self)

    def _open(self, folder: Path, shard: dict[str, Any]) -> dict[str, Array]:
        n, s, k = shard["n_tokens"], shard["n_sequences"], self.manifest["top_k"]
        columns: dict[str, tuple[Any, tuple[int, ...]]] = {
            "tokens": (np.int32, (n,)),
            "features": (np.float16, (n, len(self.manifest["taps"]) * self.manifest["n_embd"])),
            "top_ids": (np.int32, (n, k)),
            "top_probs": (np.float16, (n, k)),
            "sequence_start": (np.int64, (s + 1,)),
            "prompt_length": (np.int32, (s,)),
        }
        opened = {}
        for column, (dtype, shape) in columns.items():
            path = folder / shard["name"] / f"{column}.npy"
            told = shard["files"].get(path.name, {})
            try:
                size = path.stat().st_size
            except OSError as e:
                raise FileError(f"{path}: cannot be read: {e.strerror}") from None
            if size != told.get("bytes"):
                raise FormatError(
                    f"{path} has {size} bytes, expected {told.get('bytes')}; remove the folder and make it again"
                )
            if self._check and file_sha256(path) != told.get("sha256"):
                raise FormatError(f"{path} is damaged: its checksum is not the manifest's")
            try:
                values = np.load(path, mmap_mode="r")
            except (OSError, ValueError) as e:
                raise FormatError(f"{path} is damaged: {e}") from None
            if values.dtype != dtype or values.shape != shape:
                raise FormatError(
                    f"{path} has {values.dtype} {values.shape}, expected {np.dtype(dtype)} {shape}; "
                    "remove the folder and make it again"
                )
            opened[column] = values
        starts = np.asarray(opened["sequence_start"])
        lengths = np.asarray(opened["prompt_length"])
        if starts[0] != 0 or starts[-1] != n or (np.diff(starts) < lengths).any() or (lengths < 1).any():
            raise FormatError(f"{folder / shard['name']} is damaged: its sequences do not cover its {n} tokens")
        return opened

    @property
    def n_tokens(self) -> int:
        return sum(shard["n_tokens"] for manifest in self._manifests for shard in manifest["shards"])

    @property
    def n_response_tokens(self) -> int:
        return sum(shard["n_response_tokens"] for manifest in self._manifests for shard in manifest["shards"])

    def __len__(self) -> int:
        return len(self._place)

    def __getitem__(self, index: int) -> Sample:
        shard, i = self._place[index]
        columns = self._shards[shard]
        rows = slice(int(columns["sequence_start"][i]), int(columns["sequence_start"][i + 1]))
        return Sample(
            columns["tokens"][rows],
            int(columns["prompt_length"][i]),
            columns["features"][rows],
            columns["top_ids"][rows],
            columns["top_probs"][rows],
        )

    def sequences(self) -> Iterator[Sample]:
        """All sequences in the order in which they were added."""
        return (self[i] for i in range(len(self)))
