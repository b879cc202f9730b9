"""Shards of training data: what is written is read, whole or refused, and never lost by a failure."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_cpp.errors import ArgumentError, FileError, FormatError, MismatchError
from dspark_cpp.train.shards import Sample, ShardReader, ShardWriter, file_sha256

IDENTITY: dict[str, Any] = {
    "target_sha256": "a" * 64,
    "tokenizer_sha256": "b" * 64,
    "taps": [1, 3],
    "n_embd": 4,
    "n_vocab": 100,
    "top_k": 3,
    "seed": 7,
}


def sample(number: int) -> Sample:
    rng = np.random.default_rng(number)
    n = int(rng.integers(2, 9))
    return Sample(
        rng.integers(0, 100, n).astype(np.int32),
        int(rng.integers(1, n)),
        rng.normal(size=(n, 8)).astype(np.float16),
        rng.integers(0, 100, (n, 3)).astype(np.int32),
        rng.random((n, 3)).astype(np.float16),
    )


def write(folder: Path, numbers: range, shard_bytes: int = 400) -> None:
    with ShardWriter(folder, **IDENTITY, shard_bytes=shard_bytes) as writer:
        for number in numbers:
            writer.add(sample(number))


def require_equal(a: Sample, b: Sample) -> None:
    assert a.prompt_length == b.prompt_length
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


def test_sequences_come_back_as_they_were_added(tmp_path: Path) -> None:
    write(tmp_path, range(20))
    reader = ShardReader(tmp_path, target_sha256="a" * 64, check=True)
    assert len(reader) == 20 and len(reader.manifest["shards"]) > 2
    for number, found in enumerate(reader.sequences()):
        require_equal(found, sample(number))
    assert reader.n_tokens == sum(len(sample(i).tokens) for i in range(20))
    assert reader.n_response_tokens == sum(len(sample(i).tokens) - sample(i).prompt_length for i in range(20))


def test_a_folder_that_grows_is_read_on(tmp_path: Path) -> None:
    write(tmp_path, range(5))
    reader = ShardReader(tmp_path)
    write(tmp_path, range(5, 9))
    assert len(reader) == 5
    assert reader.refresh() == 9
    require_equal(reader[8], sample(8))


def test_a_killed_run_leaves_whole_shards_and_is_continued(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, **IDENTITY, shard_bytes=400)
    for number in range(9):
        writer.add(sample(number))
    kept = writer.n_sequences
    assert 0 < kept < 9
    (tmp_path / "shard-00099.part").mkdir()  # killed while it wrote one
    (tmp_path / "shard-00098").mkdir()  # killed before the manifest told of one
    del writer
    resumed = ShardWriter(tmp_path, **IDENTITY, shard_bytes=400)
    assert resumed.n_sequences == kept
    assert not list(tmp_path.glob("shard-0009*"))
    for number in range(kept, 9):
        resumed.add(sample(number))
    resumed.flush()
    write(tmp_path / "other", range(9))
    for a, b in zip(ShardReader(tmp_path).sequences(), ShardReader(tmp_path / "other").sequences(), strict=True):
        require_equal(a, b)


def test_a_full_disk_loses_no_shard_and_the_writer_can_try_again(tmp_path: Path, monkeypatch: Any) -> None:
    writer = ShardWriter(tmp_path, **IDENTITY, shard_bytes=1 << 20)
    writer.add(sample(0))
    writer.flush()
    writer.add(sample(1))
    save = np.save

    def full(path: Path, values: Any) -> None:
        if path.name == "top_ids.npy":
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, values)

    monkeypatch.setattr(np, "save", full)
    with pytest.raises(FileError, match="the disk is full; the shards written before are whole"):
        writer.flush()
    assert [p.name for p in sorted(tmp_path.glob("shard*"))] == ["shard-00000"]
    require_equal(ShardReader(tmp_path)[0], sample(0))
    monkeypatch.undo()
    writer.flush()
    require_equal(ShardReader(tmp_path, check=True)[1], sample(1))


@pytest.mark.parametrize("key, value", [("target_sha256", "c" * 64), ("taps", [1, 2]), ("top_k", 4), ("seed", 8)])
def test_data_of_another_target_or_run_is_not_continued(tmp_path: Path, key: str, value: Any) -> None:
    write(tmp_path, range(2))
    with pytest.raises(MismatchError, match=f"has the {key} .* expected"):
        ShardWriter(tmp_path, **{**IDENTITY, key: value})
    assert len(ShardReader(tmp_path)) == 2


def test_shards_of_another_target_are_refused(tmp_path: Path) -> None:
    write(tmp_path, range(2))
    with pytest.raises(MismatchError, match="target_sha256"):
        ShardReader(tmp_path, target_sha256="d" * 64)


def test_several_folders_are_read_one_after_the_other_and_must_be_of_one_kind(tmp_path: Path) -> None:
    for name, numbers, seed in (("a", range(5), 7), ("b", range(5, 9), 8), ("c", range(2), 7)):
        identity = {**IDENTITY, "seed": seed} | ({"taps": [1, 2]} if name == "c" else {})
        with ShardWriter(tmp_path / name, **identity) as writer:
            for number in numbers:
                writer.add(sample(number))
    reader = ShardReader(tmp_path / "a", tmp_path / "b")
    assert reader.n_tokens == sum(len(sample(i).tokens) for i in range(9))
    for number, found in enumerate(reader.sequences()):
        require_equal(found, sample(number))
    with pytest.raises(MismatchError, match=r"training data in .*c has the taps \[1, 2\], expected"):
        ShardReader(tmp_path / "a", tmp_path / "c")


@pytest.mark.parametrize("name", ["tokens", "features", "top_ids", "top_probs", "sequence_start", "prompt_length"])
def test_a_truncated_or_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    write(tmp_path, range(2))
    path = tmp_path / "shard-00000" / f"{name}.npy"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(FormatError, match=f"{name}.npy has .* bytes, expected"):
        ShardReader(tmp_path)
    path.unlink()
    with pytest.raises(FileError, match=f"{name}.npy: cannot be read"):
        ShardReader(tmp_path)


def test_flipped_bits_are_found_by_the_checksums(tmp_path: Path) -> None:
    write(tmp_path, range(2))
    path = tmp_path / "shard-00000" / "features.npy"
    damaged = bytearray(path.read_bytes())
    damaged[-3] ^= 1
    path.write_bytes(damaged)
    ShardReader(tmp_path)
    with pytest.raises(FormatError, match="is damaged: its checksum"):
        ShardReader(tmp_path, check=True)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"format": "other"}', '{"format": "dspark-features", "version": 9}']
)
def test_a_damaged_manifest_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(FormatError, match="manifest.json"):
        ShardReader(tmp_path)


def test_a_manifest_without_a_field_is_refused(tmp_path: Path) -> None:
    write(tmp_path, range(1))
    path = tmp_path / "manifest.json"
    manifest = json.loads(path.read_text())
    del manifest["taps"]
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match="it has no 'taps'"):
        ShardReader(tmp_path)


def test_a_missing_folder_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="manifest.json: cannot be read: No such file"):
        ShardReader(tmp_path / "none")
    with pytest.raises(FileError, match="cannot be read"):
        file_sha256(tmp_path / "none")


def test_arrays_of_a_wrong_shape_are_refused(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, **IDENTITY)
    with pytest.raises(ArgumentError, match=r"features has the shape .* expected"):
        writer.add(sample(0)._replace(features=np.zeros((1, 8), np.float16)))
    with pytest.raises(ArgumentError, match="prompt_length is 0"):
        writer.add(sample(0)._replace(prompt_length=0))
