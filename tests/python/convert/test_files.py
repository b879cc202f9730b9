"""Broken and mutated files end in an error of this package: no traceback of another kind, no hang, no huge allocation.

The mutations are seeded; a failure names the seed.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import resource
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_fixtures import deepspec_config, golden_of, make_checkpoint, make_target
from dspark_cpp.convert import convert_checkpoint, describe_checkpoint, quantize_gguf
from dspark_cpp.convert.gguf_file import GGUFFile
from dspark_cpp.convert.safetensors_file import SafetensorsFile
from dspark_cpp.errors import ArgumentError, DSparkError, FileError, FormatError

N_FUZZ = 300


def safetensors(path: Path, header: Any, data: bytes = b"", length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    ("header", "data", "error"),
    [
        (b"[]", b"", "2\\): not a whole safetensors file: .*invalid type: sequence"),
        (b"{", b"", "invalid JSON in header"),
        (b"\xff\xff", b"", "invalid UTF-8 in header"),
        (b"[" * 100_000, b"", "100008 bytes, .*invalid JSON in header"),
        (b'{"a": 1, "a": 2}', b"", "invalid type: integer `1`"),
        ({"a": 5}, b"", "invalid type: integer `5`"),
        ({"a": entry(shape=(-2,))}, b"\0" * 8, "invalid value: integer `-2`"),
        ({"a": entry(shape=(True, 2))}, b"\0" * 8, "invalid type: boolean `true`"),
        ({"a": entry(shape=(2**62, 2**62))}, b"\0" * 8, "overflow computing buffer size"),
        ({"a": entry(offsets=(8, 0))}, b"\0" * 8, "invalid offset for tensor `a`"),
        ({"a": entry(), "b": entry()}, b"\0" * 8, "invalid offset for tensor `[ab]`"),
        ({"a": entry()}, b"\0" * 12, "81 bytes, of which .* not fully covered"),
        ({"a": entry()}, b"\0" * 4, "73 bytes, of which .* not fully covered"),
    ],
)
def test_a_malformed_safetensors_file_is_refused(tmp_path: Path, header: Any, data: bytes, error: str) -> None:
    with pytest.raises(FileError, match=error):
        SafetensorsFile(safetensors(tmp_path / "m.safetensors", header, data))


def test_an_empty_tensor_is_no_reason_to_fail(tmp_path: Path) -> None:
    path = safetensors(tmp_path / "m.safetensors", {"a": entry(shape=(0, 3), offsets=(0, 0))})
    assert SafetensorsFile(path).tensors["a"].whole().shape == (0, 3)


def test_a_folder_without_safetensors_is_refused_with_a_hint(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_text("")
    with pytest.raises(FileError, match="no model.safetensors.*pytorch_model.bin is a pickle"):
        describe_checkpoint(tmp_path)
    with pytest.raises(FileError, match="not a folder"):
        describe_checkpoint(tmp_path / "config.json")


@pytest.mark.parametrize("target", ["missing", "text", "folder"])
def test_an_unusable_target_is_refused(tmp_path: Path, target: str) -> None:
    draft = make_checkpoint(tmp_path / "draft", deepspec_config())
    (tmp_path / "text").write_text("not a model, but long enough to have a header")
    (tmp_path / "folder").mkdir()
    wanted = {"missing": "no such target", "text": "starts with b'GGUF'", "folder": "config.json: no such file"}
    with pytest.raises(FileError, match=wanted[target]):
        convert_checkpoint(draft, tmp_path / target, tmp_path / "o.gguf")


def test_a_draft_cannot_be_converted_without_a_target(tmp_path: Path) -> None:
    draft: Any = make_checkpoint(tmp_path / "draft", deepspec_config())
    nothing: Any = None
    with pytest.raises(ArgumentError, match="the draft takes its tokenizer from the target"):
        convert_checkpoint(draft, nothing, tmp_path / "o.gguf")


def test_a_target_without_tokenizer_is_refused_with_advice(tmp_path: Path) -> None:
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    (target / "tokenizer.json").unlink()
    with pytest.raises(FileError, match="no tokenizer.json.*convert the target to GGUF"):
        convert_checkpoint(draft, target, tmp_path / "o.gguf")


def test_an_unknown_pre_tokenizer_is_not_guessed(tmp_path: Path) -> None:
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    data = json.loads((target / "tokenizer.json").read_text())
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "[a-z]+"}, "behavior": "Isolated"},
            {"type": "ByteLevel", "use_regex": False},
        ],
    }
    (target / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(FormatError, match="pre-tokenizer is not one that is known here"):
        convert_checkpoint(draft, target, tmp_path / "o.gguf")


QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.mark.parametrize(
    ("regex", "name"), [(QWEN2, b"qwen2"), (QWEN2.replace(r"\p{N}| ?", r"\p{N}{1,3}| ?"), b"llama-bpe")]
)
def test_known_pre_tokenizers_are_told_by_their_expression(tmp_path: Path, regex: str, name: bytes) -> None:
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    data = json.loads((target / "tokenizer.json").read_text())
    data["pre_tokenizer"] = {
        "type": "Sequence",
        "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated"},
            {"type": "ByteLevel", "use_regex": False},
        ],
    }
    (target / "tokenizer.json").write_text(json.dumps(data))
    report = convert_checkpoint(draft, target, tmp_path / "o.gguf")
    assert GGUFFile(report.path).metadata["tokenizer.ggml.pre"].value == name


def test_the_output_cannot_be_a_folder_or_lie_in_none(tmp_path: Path) -> None:
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    with pytest.raises(FileError, match="is a folder"):
        convert_checkpoint(draft, target, tmp_path)
    with pytest.raises(FileError, match="cannot be written: No such file"):
        convert_checkpoint(draft, target, tmp_path / "none" / "o.gguf")


@pytest.mark.parametrize("name", ["o.gguf", "o.gguf.partial"])
def test_a_pipe_or_socket_is_not_replaced_by_a_file(tmp_path: Path, name: str) -> None:
    """A run as root with -o /dev/null made /dev/null a regular file for the whole machine; a pipe hung the writer."""
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    good = convert_checkpoint(draft, target, tmp_path / "good.gguf").path
    os.mkfifo(tmp_path / name)
    (tmp_path / "link").symlink_to(tmp_path / "o.gguf")
    for out in (tmp_path / "o.gguf", tmp_path / "link"):
        with pytest.raises(FileError, match=f"{name}: is a device, pipe or socket; the name of a file is needed"):
            convert_checkpoint(draft, target, out)
        with pytest.raises(FileError, match="is a device, pipe or socket"):
            quantize_gguf(good, out, "f16")
    assert (tmp_path / name).is_fifo()


def test_a_link_as_output_stays_a_link_to_the_new_file(tmp_path: Path) -> None:
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    (tmp_path / "link.gguf").symlink_to("real.gguf")
    report = convert_checkpoint(draft, target, tmp_path / "link.gguf")
    assert (tmp_path / "link.gguf").is_symlink() and report.path == tmp_path / "real.gguf"
    assert (tmp_path / "real.gguf").read_bytes()[:4] == b"GGUF"


def test_an_older_output_survives_a_failed_conversion(tmp_path: Path) -> None:
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    out = convert_checkpoint(draft, target, tmp_path / "o.gguf").path
    before = out.read_bytes()
    from convert_fixtures import draft_tensors

    tensors = draft_tensors()
    tensors["norm.weight"][0] = np.nan
    make_checkpoint(tmp_path / "draft", deepspec_config(), tensors)
    with pytest.raises(FormatError):
        convert_checkpoint(draft, target, out)
    assert out.read_bytes() == before
    assert {p.name for p in tmp_path.iterdir()} == {"draft", "target", "o.gguf"}


# --- mutations --------------------------------------------------------------------------------------------------------

JUNK: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63), 10**400, 1e308, -0.5, "", "yes", "0", "\ud83d\ude00",
    [], [0], ["x"], {}, {"a": 1}, [[1]], [None], [2**40], [True], [1, 1], [-1, 0, 1], "x" * 5000,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    out = [path] if path else []
    items: Any = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        out += places(child, (*path, key))
    return out


def mutate(value: Any, rng: random.Random) -> Any:
    value = json.loads(json.dumps(value))
    for _ in range(rng.randint(1, 3)):
        where = rng.choice(places(value) or [()])
        if not where:
            return copy.deepcopy(rng.choice(JUNK))
        node = value
        for key in where[:-1]:
            node = node[key]
        if rng.random() < 0.2:
            del node[where[-1]]
        else:
            node[where[-1]] = copy.deepcopy(rng.choice(JUNK))
    return value


def try_convert(draft: Path, target: Path, out: Path, label: object) -> bool:
    """Whether it converts; any error but ours fails the test."""
    try:
        convert_checkpoint(draft, target, out, outtype="f32")
    except DSparkError as e:
        assert "\n" not in str(e) and str(e), label
        assert not out.exists(), label
        return False
    except Exception as e:
        raise AssertionError(f"{label}: {type(e).__name__}: {e}") from e
    GGUFFile(out)  # what is written can be read
    out.unlink()
    return True


def memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


@pytest.mark.parametrize(
    "base", ["deepspec-qwen3-vanilla", "spk-dspark-bonus-dv96", "specforge-dspark", "deepspec-gemma4"]
)
def test_mutated_configs_are_converted_or_refused(oracles: Path, tmp_path: Path, base: str) -> None:
    golden_of(oracles, base)
    source = oracles / "drafts" / base
    target = oracles / "target-qwen3" / "target-qwen3-f32.gguf"
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    config = json.loads((source / "config.json").read_text())
    before = memory()
    accepted = 0
    for seed in range(N_FUZZ):
        (draft / "config.json").write_text(json.dumps(mutate(config, random.Random(seed))))
        converts = try_convert(draft, target, tmp_path / "o.gguf", (base, seed))
        accepted += converts
        assert not converts or describe_checkpoint(draft, target)["fits"], (base, seed)
        with contextlib.suppress(DSparkError):
            json.dumps(describe_checkpoint(draft))
    assert 0 < accepted < N_FUZZ  # both ways were taken
    assert memory() - before < 200_000  # KiB


def flip(data: bytes, limit: int, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        kind, at = rng.randrange(4), rng.randrange(min(limit, len(out)))
        if kind == 0:
            out[at] = rng.randrange(256)
        elif kind == 1:
            out[at : at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)))
        elif kind == 2:
            del out[at : at + rng.randint(1, 16)]
        else:
            out[at:at] = bytes(rng.randrange(256) for _ in range(rng.randint(1, 16)))
    return bytes(out) if rng.random() > 0.1 else bytes(out[: rng.randrange(len(out))])


def test_mutated_safetensors_files_are_converted_or_refused(oracles: Path, tmp_path: Path) -> None:
    source = oracles / "drafts" / "spk-dspark-bonus-dv96"
    target = oracles / "target-qwen3" / "target-qwen3-f32.gguf"
    draft = tmp_path / "draft"
    draft.mkdir()
    (draft / "config.json").write_bytes((source / "config.json").read_bytes())
    data = (source / "model.safetensors").read_bytes()
    n_header = 8 + struct.unpack("<Q", data[:8])[0]
    before = memory()
    for seed in range(N_FUZZ):
        # A new inode each time: an earlier mapping must not see its file shrink.
        (draft / "model.safetensors").unlink(missing_ok=True)
        (draft / "model.safetensors").write_bytes(flip(data, n_header, random.Random(seed)))
        try_convert(draft, target, tmp_path / "o.gguf", seed)
    assert memory() - before < 200_000


def test_mutated_target_files_are_converted_or_refused(oracles: Path, tmp_path: Path) -> None:
    draft = oracles / "drafts" / "deepspec-qwen3-vanilla"
    data = (oracles / "target-qwen3" / "target-qwen3-f32.gguf").read_bytes()
    before = memory()
    for seed in range(N_FUZZ):
        target = tmp_path / f"t{seed}.gguf"
        target.write_bytes(flip(data, 16_000, random.Random(seed)))
        try_convert(draft, target, tmp_path / "o.gguf", seed)
        target.unlink()
    assert memory() - before < 200_000


def test_mutated_target_folders_are_converted_or_refused(tmp_path: Path) -> None:
    draft = make_checkpoint(tmp_path / "draft", deepspec_config())
    for seed in range(N_FUZZ):
        rng = random.Random(seed)
        target = make_target(tmp_path / "target")
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
            if rng.random() < 0.6:
                value = json.loads((target / name).read_text())
                (target / name).write_text(json.dumps(mutate(value, rng)))
        try_convert(draft, target, tmp_path / "o.gguf", seed)


@pytest.mark.parametrize("outtype", ["f32", "q8_0"])
def test_mutated_draft_files_are_quantised_or_refused(oracles: Path, tmp_path: Path, outtype: str) -> None:
    name = "spk-dspark-bonus-dv96"
    target = oracles / "target-qwen3" / "target-qwen3-f32.gguf"
    exact = convert_checkpoint(oracles / "drafts" / name, target, tmp_path / "exact.gguf", outtype="f16").path
    data = exact.read_bytes()
    before = memory()
    refused = 0
    for seed in range(N_FUZZ):
        rng = random.Random(seed)
        draft, out = tmp_path / f"d{seed}.gguf", tmp_path / "o.gguf"
        draft.write_bytes(flip(data, rng.choice((600, 16_000, len(data))), rng))
        try:
            quantize_gguf(draft, out, outtype)
        except DSparkError as e:
            assert "\n" not in str(e) and str(e), seed
            assert not out.exists(), seed
            refused += 1
        else:
            GGUFFile(out)  # what is written can be read
            out.unlink()
        draft.unlink()
    assert 0 < refused < N_FUZZ  # both ways were taken
    assert memory() - before < 200_000
