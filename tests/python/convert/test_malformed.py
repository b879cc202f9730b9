"""Every broken checkpoint of the pack is refused with one sentence that names what is wrong, and nothing is written."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from convert_fixtures import ORACLES
from dspark_cpp.cli import main
from dspark_cpp.convert import ConvertReport, convert_checkpoint
from dspark_cpp.errors import DSparkError, FileError, FormatError, MismatchError

# What the message must contain: the value seen and the value wanted, or the name that is missing.
REFUSED: dict[str, tuple[type[DSparkError], tuple[str, ...]]] = {
    "d2t-out-of-range": (FormatError, ("d2t[95] is 320", "target id 415", "0 to 319")),
    "d2t-negative": (FormatError, ("d2t[0] is -1", "target id -1", "0 to 319")),
    "d2t-overflow": (FormatError, ("d2t[3] is 4611686018427387904", "0 to 319")),
    "d2t-duplicate": (FormatError, ("rows 10 and 11", "target id 15")),
    "d2t-missing": (FormatError, ("draft_vocab_size is 96 of 320", "no d2t")),
    "d2t-short": (FormatError, ("d2t has shape [95]", "draft_vocab_size is 96")),
    "d2t-absolute": (FormatError, ("absolute ids where offsets are expected",)),
    "d2t-flat-missing": (FormatError, ("draft_vocab_size is 112 of 320", "no d2t")),
    "draft-vocab-larger": (FormatError, ("draft_vocab_size is 352", "vocab_size is only 320")),
    "lm-head-short": (FormatError, ("lm_head.weight has shape [95, 64]", "[96, 64] is needed")),
    "lm-head-missing-reduced": (FormatError, ("lm_head.weight is missing", "96 of 320")),
    "fc-missing": (FormatError, ("tensor fc.weight is missing",)),
    "fc-narrow": (FormatError, ("fc.weight has shape [64, 128]", "[64, 192] is needed")),
    "ids-fewer-than-fc": (FormatError, ("fc.weight has shape [64, 192]", "[64, 128] is needed", "layer ids")),
    "layer-id-beyond": (MismatchError, ("has 26", "6 layers", "-1 to 4", "0 to 5")),
    "layer-id-final": (MismatchError, ("has 5", "last layer", "ambiguous", "6 layers")),
    "aux-id-negative": (MismatchError, ("has -1", "0 to 5")),
    "ids-not-increasing": (FormatError, ("[3, 1, 4]", "strictly increasing")),
    "ids-duplicate": (FormatError, ("[3, 3, 4]", "strictly increasing")),
    "ids-empty": (FormatError, ("target_layer_ids is []", "at least one")),
    "ids-missing": (FormatError, ("target_layer_ids is missing", "aux_hidden_state_layer_ids")),
    "mask-out-of-vocab": (FormatError, ("mask_token_id is 320", "0 to 319")),
    "mask-negative": (FormatError, ("mask_token_id is -1", "0 to 319")),
    "mask-missing": (FormatError, ("mask_token_id is missing", "dflash_config.mask_token_id")),
    "block-zero": (FormatError, ("block_size is 0", "at least 1")),
    "block-negative": (FormatError, ("block_size is -7", "at least 1")),
    "block-one-bonus": (FormatError, ("block_size is 1", "at least 2", "1+N")),
    "block-missing": (FormatError, ("block_size is missing", "dflash_config.block_size")),
    "anchor-flag-type": (FormatError, ('sample_from_anchor is "yes"', "true or false")),
    "nan-weight": (FormatError, ("tensor fc.weight", "nan")),
    "inf-weight": (FormatError, ("tensor lm_head.weight", "inf")),
    "truncated": (FileError, ("model.safetensors", "177695 bytes", "not fully covered")),
    "truncated-header": (FileError, ("253 bytes", "the header says it has 2928", "invalid header length")),
    "header-length-huge": (FileError, ("the header says it has 1152921504606846976", "header too large")),
    "offset-outside": (FileError, ("invalid offset for tensor `norm.weight`",)),
    "offset-size-mismatch": (FileError, ("254114 bytes", "invalid shape, data type, or offset for tensor")),
    "dtype-unknown": (FileError, ("F9", "BF16")),
    "markov-type-unknown": (FormatError, ('markov_head_type is "transformer"', "vanilla, gated, rnn")),
    "gated-without-gate": (FormatError, ("markov_head.gate_proj.weight is missing",)),
    "vanilla-with-gate": (FormatError, ("unexpected tensor markov_head.gate_proj.bias", "markov_head_type")),
    "rnn-joint-narrow": (FormatError, ("joint_proj.weight has shape [20, 88]", "[36, 88] is needed")),
    "markov-w1-draft-rows": (FormatError, ("markov_w1.weight has shape [96, 16]", "[320, 16] is needed")),
    "markov-w2-missing": (FormatError, ("markov_head.markov_w2.weight is missing",)),
    "markov-rank-mismatch": (FormatError, ("markov_w1.weight has shape [320, 16]", "markov_rank is 3")),
    "conf-width": (FormatError, ("confidence_head.proj.weight has shape [1, 67]", "[1, 80]")),
    "hidden-mismatch-target": (MismatchError, ("hidden_size is 64", "has 80")),
    "vocab-mismatch-target": (MismatchError, ("vocab_size is 320", "has 384")),
    "layer-missing": (FormatError, ("layers.1.mlp.up_proj.weight is missing",)),
    "tensor-unknown": (FormatError, ("unexpected tensor layers.0.self_attn.extra.weight",)),
    "kv-heads-odd": (FormatError, ("num_attention_heads 4", "num_key_value_heads 3")),
    "layer-types-short": (FormatError, ("layer_types has 1", "num_hidden_layers is 3")),
    "layer-types-unknown": (FormatError, ("chunked_attention", "sliding_attention")),
    "window-zero": (FormatError, ("sliding_window is 0", "at least 1")),
    "layers-zero": (FormatError, ("num_hidden_layers is 0", "at least 1")),
    "config-not-json": (FileError, ("config.json", "not valid JSON", "line 1")),
    "config-missing": (FileError, ("config.json", "no such file")),
    "arch-unknown": (FormatError, ("SomethingElse", "Qwen3DSparkModel")),
}


def recipes() -> list[str]:
    path = ORACLES / "malformed" / "recipes.json"
    if not path.is_file():
        return []
    return [c["id"] for c in json.loads(path.read_text())["cases"] if c["stage"] == "checkpoint"]


def make(case: str, folder: Path) -> tuple[Path, Path]:
    """Materialise a recipe; returns (draft folder, target folder)."""
    script = ORACLES / "malformed" / "apply.py"
    subprocess.run([sys.executable, script, ORACLES, case, folder], check=True)
    return folder / "draft", folder / "target"


def convert(case: str, tmp_path: Path) -> ConvertReport:
    draft, target = make(case, tmp_path / "in")
    (tmp_path / "out").mkdir()
    return convert_checkpoint(draft, target, tmp_path / "out" / "o.gguf", outtype="f32")


def test_every_recipe_is_covered(full_oracles: Path) -> None:
    assert set(recipes()) == set(REFUSED) | {"d2t-permuted-ok", "t2d-inconsistent"}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_is_refused_with_one_sentence(full_oracles: Path, tmp_path: Path, case: str) -> None:
    kind, parts = REFUSED[case]
    with pytest.raises(kind) as caught:
        convert(case, tmp_path)
    message = str(caught.value)
    for part in parts:
        assert part in message
    assert "\n" not in message
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_the_command_gives_1_and_that_sentence(
    full_oracles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    draft, target = make(case, tmp_path / "in")
    (tmp_path / "out").mkdir()
    assert main(["convert", str(draft), "--target", str(target), "-o", str(tmp_path / "out" / "o.gguf")]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ") and err.count("\n") == 1
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("case", ["d2t-absolute", "nan-weight", "config-not-json", "hidden-mismatch-target"])
def test_the_base_of_a_case_is_accepted(full_oracles: Path, tmp_path: Path, case: str) -> None:
    # A refusal only means something where the unbroken checkpoint passes.
    cases = {c["id"]: c for c in json.loads((full_oracles / "malformed" / "recipes.json").read_text())["cases"]}
    draft, target = make(case, tmp_path / "in")
    shutil.rmtree(draft)
    source = full_oracles / "drafts" / cases[case]["base"]
    good_target = full_oracles / json.loads((source / "golden.json").read_text())["target"]
    report = convert_checkpoint(source, good_target, tmp_path / "o.gguf", outtype="f32")
    assert report.path.stat().st_size > 0


def test_a_permuted_table_is_kept_in_its_order(full_oracles: Path, tmp_path: Path) -> None:
    from dspark_cpp.convert.gguf_file import GGUFFile

    report = convert("d2t-permuted-ok", tmp_path)
    permuted = GGUFFile(report.path)
    plain_path = tmp_path / "plain.gguf"
    convert_checkpoint(
        full_oracles / "drafts" / "spk-dspark-bonus-dv96", tmp_path / "in" / "target", plain_path, outtype="f32"
    )
    plain = GGUFFile(plain_path)
    ids, plain_ids = permuted.tensors["d2t"].whole(), plain.tensors["d2t"].whole()
    assert ids.tolist() != plain_ids.tolist()
    assert sorted(ids.tolist()) == plain_ids.tolist()
    order = [plain_ids.tolist().index(i) for i in ids.tolist()]
    for name in ("output.weight", "markov_w2.weight"):
        assert (permuted.tensors[name].whole() == plain.tensors[name].whole()[order]).all()


def test_an_inconsistent_t2d_is_told_and_changes_nothing(full_oracles: Path, tmp_path: Path) -> None:
    report = convert("t2d-inconsistent", tmp_path)
    assert any("t2d marks 94 tokens" in w and "differs from d2t (96 rows) in 2" in w for w in report.warnings)
    plain = tmp_path / "plain.gguf"
    convert_checkpoint(
        full_oracles / "drafts" / "spk-dspark-bonus-dv96", tmp_path / "in" / "target", plain, outtype="f32"
    )
    from dspark_cpp.convert.gguf_file import GGUFFile

    a, b = GGUFFile(report.path), GGUFFile(plain)
    assert {n: t.whole().tobytes() for n, t in a.tensors.items()} == {
        n: t.whole().tobytes() for n, t in b.tensors.items()
    }
