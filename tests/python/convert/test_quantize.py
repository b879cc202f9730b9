"""Re-typing a draft equals converting it to that type, and tells how far its values moved."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest
from convert_fixtures import N_VOCAB, deepspec_config, draft_tensors, make_checkpoint, make_target, target_of
from dspark_cpp.cli import quantize as cli
from dspark_cpp.convert import convert_checkpoint, quantize_gguf
from dspark_cpp.convert.gguf_file import GGUFFile
from dspark_cpp.errors import ArgumentError, FileError, FormatError


def converted(oracles: Path, out: Path, outtype: str) -> Path:
    name = "spk-dspark-bonus-dv96"
    return convert_checkpoint(oracles / "drafts" / name, target_of(oracles, name), out, outtype=outtype).path


@pytest.mark.parametrize("outtype", ["f32", "f16", "bf16", "q8_0", "q4_0"])
def test_quantising_an_f32_draft_equals_converting_to_the_type(oracles: Path, tmp_path: Path, outtype: str) -> None:
    exact = converted(oracles, tmp_path / "f32.gguf", "f32")
    direct = converted(oracles, tmp_path / "direct.gguf", outtype)
    quantize_gguf(exact, tmp_path / "q.gguf", outtype)
    a, b = GGUFFile(direct), GGUFFile(tmp_path / "q.gguf")
    assert {k: v.value for k, v in a.metadata.items()} == {k: v.value for k, v in b.metadata.items()}
    assert {n: (t.type, bytes(t.raw())) for n, t in a.tensors.items()} == {
        n: (t.type, bytes(t.raw())) for n, t in b.tensors.items()
    }


def test_quantising_twice_changes_nothing_more(oracles: Path, tmp_path: Path) -> None:
    once = converted(oracles, tmp_path / "q4.gguf", "q4_0")
    report = quantize_gguf(once, tmp_path / "again.gguf", "q4_0")
    assert report.changes == []
    assert (tmp_path / "again.gguf").read_bytes() == once.read_bytes()


def test_the_report_names_the_change(oracles: Path, tmp_path: Path) -> None:
    exact = converted(oracles, tmp_path / "f32.gguf", "f32")
    report = quantize_gguf(exact, tmp_path / "q.gguf", "q4_0")
    errors = {c.name: c.error for c in report.changes}
    assert 0.02 < errors["fc.weight"] < 0.11
    assert 0 < errors["output.weight"] < 0.01  # kept in q8_0
    assert 0 < errors["markov_w1.weight"] < 0.001  # kept in f16
    assert report.largest is not None and report.largest.error == max(errors.values())
    assert report.n_bytes < report.n_bytes_before
    assert any("F32 -> Q4_0" in line for line in report.lines())


def test_heads_are_quantised_only_when_asked(tmp_path: Path) -> None:
    tensors = draft_tensors(confidence=False)
    for name in ("markov_head.markov_w1.weight", "markov_head.markov_w2.weight"):
        tensors[name] = np.random.default_rng(5).standard_normal((N_VOCAB, 32), dtype=np.float32)
    config = deepspec_config(markov_rank=32, enable_confidence_head=False, confidence_head_with_markov=None)
    draft = make_checkpoint(tmp_path / "d", config, tensors)
    exact = convert_checkpoint(draft, make_target(tmp_path / "t"), tmp_path / "f32.gguf", outtype="f32").path
    for asked, kind in ((False, "F16"), (True, "Q8_0")):
        quantize_gguf(exact, tmp_path / "q.gguf", "q8_0", quantize_heads=asked)
        assert GGUFFile(tmp_path / "q.gguf").tensors["markov_w1.weight"].type.name == kind


def test_wrong_inputs_are_refused_and_leave_nothing(oracles: Path, tmp_path: Path) -> None:
    target = oracles / "target-qwen3" / "target-qwen3-f32.gguf"
    with pytest.raises(FormatError, match="general.architecture is 'qwen3', but a draft has 'dflash'"):
        quantize_gguf(target, tmp_path / "q.gguf", "q8_0")
    with pytest.raises(ArgumentError, match="outtype is 'auto'"):
        quantize_gguf(target, tmp_path / "q.gguf", "auto")
    with pytest.raises(FileError, match="no such file"):
        quantize_gguf(tmp_path / "none.gguf", tmp_path / "q.gguf", "q8_0")
    assert list(tmp_path.iterdir()) == []


def test_the_command_gives_0_1_and_2(oracles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    cli.add_parser(parser.add_subparsers())
    exact = converted(oracles, tmp_path / "f32.gguf", "f32")
    args = parser.parse_args(["quantize", str(exact), "-o", str(tmp_path / "q.gguf"), "--outtype", "q8_0"])
    assert args.func(args) == 0
    assert "F32 -> Q8_0" in capsys.readouterr().err
    args = parser.parse_args(["quantize", str(tmp_path / "none"), "-o", str(tmp_path / "r.gguf"), "--outtype", "q8_0"])
    assert args.func(args) == 1
    assert capsys.readouterr().err == f"error: {tmp_path / 'none'}: no such file\n"
    with pytest.raises(SystemExit) as caught:
        parser.parse_args(["quantize", str(exact), "-o", "x", "--outtype", "q3_k"])
    assert caught.value.code == 2
