"""What is stored as what, and that storing changes a value by no more than its type must."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_fixtures import deepspec_config, draft_tensors, make_checkpoint, make_target, metadata
from dspark_cpp.convert import convert_checkpoint
from dspark_cpp.convert.gguf_file import GGUFFile
from dspark_cpp.convert.weights import ArrayWeight, as_f32, is_finite
from dspark_cpp.errors import ArgumentError, FormatError
from ml_dtypes import bfloat16


def convert(
    tmp_path: Path, outtype: str, tensors: dict[str, Any] | None = None, config: dict[str, Any] | None = None
) -> GGUFFile:
    target = make_target(tmp_path / "target")
    draft = make_checkpoint(tmp_path / "draft", config or deepspec_config(), tensors)
    return GGUFFile(convert_checkpoint(draft, target, tmp_path / "o.gguf", outtype=outtype).path)


@pytest.mark.parametrize(("outtype", "file_type"), [("f32", 0), ("f16", 1), ("bf16", 32), ("q8_0", 7), ("q4_0", 2)])
def test_vectors_stay_f32_in_every_type(tmp_path: Path, outtype: str, file_type: int) -> None:
    file = convert(tmp_path, outtype)
    for name, t in file.tensors.items():
        if len(t.shape) == 1:
            assert t.type.name == "F32", name
    assert file.metadata["general.file_type"].value == file_type


def test_heads_stay_f16_when_the_rest_is_quantised(oracles: Path, tmp_path: Path) -> None:
    draft, target = oracles / "drafts" / "spk-dspark-bonus-dv96", oracles / "target-qwen3" / "target-qwen3-f32.gguf"
    types = {}
    for outtype in ("q8_0", "q4_0"):
        file = GGUFFile(convert_checkpoint(draft, target, tmp_path / "o.gguf", outtype=outtype).path)
        types[outtype] = {n: t.type.name for n, t in file.tensors.items() if len(t.shape) == 2 and "blk.1" not in n}
    heads = {"markov_w1.weight": "F16", "markov_w2.weight": "F16", "conf_proj.weight": "F16"}
    body = (
        "fc",
        "blk.0.attn_q",
        "blk.0.attn_k",
        "blk.0.attn_v",
        "blk.0.attn_output",
        "blk.0.ffn_up",
        "blk.0.ffn_gate",
        "blk.0.ffn_down",
    )
    assert types["q8_0"] == heads | {f"{n}.weight": "Q8_0" for n in (*body, "output")}
    assert types["q4_0"] == heads | {f"{n}.weight": "Q4_0" for n in body} | {"output.weight": "Q8_0"}


def test_rows_that_no_block_divides_fall_back_to_f16(tmp_path: Path) -> None:
    file = convert(tmp_path, "q8_0")  # hidden 16, FFN 24
    assert {t.type.name for t in file.tensors.values() if len(t.shape) == 2} == {"F16"}


@pytest.mark.parametrize(("dtype", "name"), [(np.float32, "F32"), (np.float16, "F16"), (bfloat16, "BF16")])
def test_auto_keeps_the_checkpoints_type_exactly(tmp_path: Path, dtype: Any, name: str) -> None:
    tensors = {n: t.astype(dtype) for n, t in draft_tensors().items()}
    file = convert(tmp_path, "auto", tensors)
    fc = file.tensors["fc.weight"]
    assert fc.type.name == name
    assert fc.whole().tobytes() == tensors["fc.weight"].tobytes()
    norm = file.tensors["output_norm.weight"].whole()
    assert np.array_equal(norm, tensors["norm.weight"].astype(np.float32))


def test_every_16_bit_pattern_widens_exactly() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    for dtype in (np.dtype(np.float16), np.dtype(bfloat16)):
        values = bits.view(dtype)
        finite = np.isfinite(values.astype(np.float32))
        assert np.array_equal(as_f32(values)[finite], values.astype(np.float32)[finite])
        for value in (values[~finite][:1], values[~finite][-1:], values[finite][:1]):
            assert is_finite(value) == bool(np.isfinite(value.astype(np.float32)).all())
        assert is_finite(values[finite]) and not is_finite(values)


def test_quantised_rows_stay_near(oracles: Path, tmp_path: Path) -> None:
    draft, target = oracles / "drafts" / "spk-dspark-bonus-dv96", oracles / "target-qwen3" / "target-qwen3-f32.gguf"
    exact = GGUFFile(convert_checkpoint(draft, target, tmp_path / "a.gguf", outtype="f32").path).tensors
    for outtype, budget in (("bf16", 0.004), ("f16", 0.0006), ("q8_0", 0.01), ("q4_0", 0.11)):
        rounded = GGUFFile(convert_checkpoint(draft, target, tmp_path / "b.gguf", outtype=outtype).path).tensors
        for name in ("fc.weight", "blk.0.ffn_down.weight"):
            a, b = as_f32(exact[name].whole()), as_f32(rounded[name].whole())
            error = np.linalg.norm(a - b) / np.linalg.norm(a)
            assert 0 < error < budget, (outtype, name, error)


@pytest.mark.parametrize("outtype", ["f16", "q8_0", "q4_0"])
def test_a_value_beyond_the_type_is_refused(oracles: Path, tmp_path: Path, outtype: str) -> None:
    tensors = draft_tensors()
    tensors["fc.weight"][3, 5] = 1e9
    with pytest.raises(
        FormatError, match="tensor fc.weight: a value of magnitude 1e.09 does not fit in F16; use bf16 or f32"
    ):
        convert(tmp_path, outtype, tensors)
    assert not (tmp_path / "o.gguf").exists()
    assert as_f32(convert(tmp_path, "bf16", tensors).tensors["fc.weight"].whole())[3, 5] == pytest.approx(1e9, rel=0.01)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("outtype", ["f32", "bf16", "f16", "q8_0"])
def test_no_type_lets_a_nan_or_infinity_through(tmp_path: Path, bad: float, outtype: str) -> None:
    tensors = draft_tensors()
    tensors["layers.1.mlp.down_proj.weight"][-1, -1] = bad
    with pytest.raises(FormatError, match="tensor layers.1.mlp.down_proj.weight: .* finite numbers are needed"):
        convert(tmp_path, outtype, tensors)
    assert {p.name for p in tmp_path.iterdir()} == {"target", "draft"}


def test_an_unknown_type_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="outtype is 'q5_k', but one of f32"):
        convert(tmp_path, "q5_k")


def test_a_large_tensor_is_read_in_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dspark_cpp.convert import weights

    whole = convert(tmp_path, "f16").path.read_bytes()
    monkeypatch.setattr(weights, "CHUNK_ELEMENTS", 40)
    table = ArrayWeight("t", np.arange(70.0).reshape(7, 10))
    assert [c.shape for c in table.chunks()] == [(4, 10), (3, 10)]
    assert convert(tmp_path, "f16").path.read_bytes() == whole


def test_the_source_hash_follows_the_weights_and_nothing_else(tmp_path: Path) -> None:
    def hash_of(tensors: dict[str, Any], **config: Any) -> bytes:
        path = convert(tmp_path, "f32", tensors, deepspec_config(**config)).path
        value: bytes = metadata(path)["dflash.source.sha256"]
        return value

    tensors = draft_tensors()
    first = hash_of(tensors)
    assert len(first) == 64
    assert hash_of({"model." + n: t for n, t in reversed(tensors.items())}, block_size=5) == first
    tensors["norm.weight"][0] += 1
    assert hash_of(tensors) != first
