"""Reduced vocabularies, and configs whose values are of the wrong kind or for another target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_fixtures import N_EMBD, N_VOCAB, RANK, deepspec_config, draft_tensors, make_checkpoint, make_target
from dspark_cpp.convert import ConvertReport, convert_checkpoint
from dspark_cpp.convert.gguf_file import GGUFFile
from dspark_cpp.errors import FormatError, MismatchError

N_DRAFT = 10
ABSOLUTE = np.array([1, 2, 3, 5, 8, 13, 21, 34, 38, 39])


def convert(tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any] | None = None) -> ConvertReport:
    draft = make_checkpoint(tmp_path / "draft", config, tensors)
    return convert_checkpoint(draft, make_target(tmp_path / "target"), tmp_path / "o.gguf", outtype="f32")


def reduced(offsets: np.ndarray | None = None, **extra: Any) -> dict[str, Any]:
    tensors: dict[str, Any] = draft_tensors()
    tensors["markov_head.markov_w2.weight"] = np.ones((N_DRAFT, RANK), np.float32)
    tensors["lm_head.weight"] = np.ones((N_DRAFT, N_EMBD), np.float32)
    tensors["d2t"] = ABSOLUTE - np.arange(N_DRAFT) if offsets is None else offsets
    return tensors | extra


CONFIG = deepspec_config(draft_vocab_size=N_DRAFT)


def test_offsets_become_absolute_ids(tmp_path: Path) -> None:
    mask = np.zeros(N_VOCAB, np.uint8)
    mask[ABSOLUTE] = 1
    report = convert(tmp_path, CONFIG, reduced(t2d=mask))
    file = GGUFFile(report.path)
    assert file.tensors["d2t"].type.name == "I64"
    assert file.tensors["d2t"].whole().tolist() == ABSOLUTE.tolist()
    assert "t2d" not in file.tensors
    assert (report.n_vocab_draft, report.warnings) == (N_DRAFT, [])
    assert file.tensors["markov_w1.weight"].shape == (N_VOCAB, RANK)
    assert file.tensors["markov_w2.weight"].shape == (N_DRAFT, RANK)


def test_the_tables_length_stands_in_for_a_missing_size(tmp_path: Path) -> None:
    report = convert(tmp_path, deepspec_config(), reduced())
    assert report.n_vocab_draft == N_DRAFT
    assert any("10 is the length of d2t" in n for n in report.notes)


def test_a_table_of_zeros_is_told(tmp_path: Path) -> None:
    report = convert(tmp_path, CONFIG, reduced(np.zeros(N_DRAFT, np.int64)))
    assert any("d2t is all zero" in w for w in report.warnings)
    assert GGUFFile(report.path).tensors["d2t"].whole().tolist() == list(range(N_DRAFT))


@pytest.mark.parametrize("value", [0, 1])
def test_a_table_beside_a_full_vocabulary_is_dropped_only_if_it_says_nothing(tmp_path: Path, value: int) -> None:
    tensors = draft_tensors() | {"d2t": np.full(N_VOCAB, value, np.int64)}
    config = deepspec_config(draft_vocab_size=N_VOCAB)
    if value == 0:
        assert "d2t" not in GGUFFile(convert(tmp_path, config, tensors).path).tensors
    else:
        with pytest.raises(FormatError, match="d2t is present and not all zero"):
            convert(tmp_path, config, tensors)


@pytest.mark.parametrize(
    ("tensors", "error"),
    [
        (reduced(np.zeros(N_DRAFT, np.float32)), r"d2t is F32, but integers \(I64\)"),
        (reduced(np.zeros((N_DRAFT, 1), np.int64)), r"d2t has shape \[10, 1\], but draft_vocab_size is 10"),
        (reduced(ABSOLUTE), r"d2t\[3\] is 5|looks like absolute ids"),
        (reduced(t2d=np.zeros(N_VOCAB - 1, np.uint8)), r"t2d has shape \[39\], but vocab_size is 40"),
    ],
)
def test_malformed_tables_are_refused(tmp_path: Path, tensors: dict[str, Any], error: str) -> None:
    with pytest.raises(FormatError, match=error):
        convert(tmp_path, CONFIG, tensors)


@pytest.mark.parametrize(
    ("extra", "kind", "error"),
    [
        ({"draft_vocab_size": 0}, FormatError, "draft_vocab_size is 0, but an integer of at least 1"),
        ({"transformer_layer_config": [1]}, FormatError, r"transformer_layer_config is \[1\], but a JSON object"),
        ({"transformer_layer_config": {"model_type": "llama"}}, FormatError, "model_type is 'llama', but"),
        ({"hidden_act": "relu"}, FormatError, 'hidden_act is "relu", but one of silu'),
        (
            {"target_layer_ids": ["0", "2", "4"]},
            FormatError,
            r'target_layer_ids is \["0", "2", "4"\], but a list of int',
        ),
        ({"target_layer_ids": [0, 2.0, 4]}, FormatError, "but a list of integers"),
        ({"head_dim": None, "num_attention_heads": 3, "num_key_value_heads": 3}, FormatError, "16 / 3 is not whole"),
        ({"head_dim": 7}, FormatError, "head_dim is 7, but an even number"),
        ({"block_size": 7.5}, FormatError, "block_size is 7.5, but an integer"),
        ({"block_size": True}, FormatError, "block_size is true, but an integer"),
        ({"rms_norm_eps": 0}, FormatError, "rms_norm_eps is 0, but a positive number"),
        ({"num_attention_heads": 4}, FormatError, r"o_proj.weight has shape \[16, 16\], but \[16, 32\] is needed"),
        ({"target_hidden_size": 32}, MismatchError, "target_hidden_size is 32, but the target .* has 16"),
        ({"vocab_size": 41}, MismatchError, "vocab_size is 41, but the target .* has 40 tokens"),
        ({"hidden_size": 32}, MismatchError, "hidden_size is 32, but the target .* has 16"),
    ],
)
def test_values_that_do_not_fit_are_named_with_what_is_needed(
    tmp_path: Path, extra: dict[str, Any], kind: type[Exception], error: str
) -> None:
    with pytest.raises(kind, match=error):
        convert(tmp_path, deepspec_config(**extra))


def test_tables_of_the_markov_head_must_have_one_rank(tmp_path: Path) -> None:
    tensors = draft_tensors()
    tensors["markov_head.markov_w2.weight"] = tensors["markov_head.markov_w2.weight"][:, :3].copy()
    with pytest.raises(FormatError, match=r"markov_w2.weight has shape \[40, 3\], but \[40, 4\] is needed"):
        convert(tmp_path, deepspec_config(), tensors)


@pytest.mark.parametrize(("name", "told"), [("Qwen3ForCausalLM", False), ("Gemma4ForConditionalGeneration", True)])
def test_a_verifier_of_another_architecture_is_told(tmp_path: Path, name: str, told: bool) -> None:
    verifier = {"verifier": {"name_or_path": "org/model", "architectures": [name]}}
    report = convert(tmp_path, deepspec_config(speculators_config=verifier))
    assert any(f"made for {name}, but the target is Qwen3ForCausalLM" in w for w in report.warnings) is told
    assert report.verifier == "org/model"


@pytest.mark.parametrize(("extra", "kept"), [({"enable_confidence_head": False}, True), ({}, False)])
def test_a_confidence_head_that_is_there_counts_whatever_the_flag(
    tmp_path: Path, extra: dict[str, Any], kept: bool
) -> None:
    if kept:
        report = convert(tmp_path, deepspec_config(**extra))
        assert report.confidence == "hidden+markov"
        assert any("the checkpoint has a confidence head; it is kept" in w for w in report.warnings)
    else:
        with pytest.raises(FormatError, match="enable_confidence_head is true, but tensor .* is missing"):
            convert(tmp_path, deepspec_config(), draft_tensors(confidence=False))
