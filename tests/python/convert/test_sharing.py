"""Embedding and head are written together or borrowed together, and which it was is told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_fixtures import N_EMBD, N_VOCAB, deepspec_config, draft_tensors, make_checkpoint, make_target
from dspark_cpp.convert import convert_checkpoint
from dspark_cpp.convert.gguf_file import GGUFFile
from dspark_cpp.errors import MismatchError
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from ml_dtypes import bfloat16

rng = np.random.default_rng(1)  # the seed of make_target
EMBEDDING = rng.standard_normal((N_VOCAB, N_EMBD), dtype=np.float32)
HEAD = rng.standard_normal((N_VOCAB, N_EMBD), dtype=np.float32)
OTHER = np.random.default_rng(9).standard_normal((N_VOCAB, N_EMBD), dtype=np.float32)


def convert(tmp_path: Path, shipped: dict[str, Any], **options: Any) -> tuple[GGUFFile, str]:
    target = options.pop("target", None) or make_target(tmp_path / "target")
    draft = make_checkpoint(tmp_path / "draft", deepspec_config(), draft_tensors() | shipped)
    report = convert_checkpoint(draft, target, tmp_path / "o.gguf", outtype="f32", **options)
    return GGUFFile(report.path), next(n for n in report.notes if n.startswith("embedding and head"))


def tables(file: GGUFFile) -> tuple[np.ndarray | None, np.ndarray | None]:
    found = [file.tensors.get(n) for n in ("token_embd.weight", "output.weight")]
    return tuple(t.whole() if t is not None else None for t in found)  # type: ignore[return-value]


@pytest.mark.parametrize(
    "shipped",
    [
        {},
        {"embed_tokens.weight": EMBEDDING},
        {"lm_head.weight": HEAD},
        {"embed_tokens.weight": EMBEDDING, "lm_head.weight": HEAD},
        {"embed_tokens.weight": EMBEDDING.astype(bfloat16), "lm_head.weight": HEAD.astype(bfloat16)},
    ],
)
def test_copies_of_the_targets_tables_are_borrowed(tmp_path: Path, shipped: dict[str, Any]) -> None:
    file, note = convert(tmp_path, shipped)
    assert tables(file) == (None, None)
    assert "the target's" in note


@pytest.mark.parametrize(
    ("shipped", "want"),
    [
        ({"embed_tokens.weight": OTHER}, (OTHER, HEAD)),
        ({"lm_head.weight": OTHER}, (EMBEDDING, OTHER)),
        ({"embed_tokens.weight": EMBEDDING, "lm_head.weight": OTHER}, (EMBEDDING, OTHER)),
    ],
)
def test_a_table_of_its_own_brings_the_other_one_along(tmp_path: Path, shipped: dict[str, Any], want: Any) -> None:
    file, note = convert(tmp_path, shipped)
    got = tables(file)
    assert np.array_equal(got[0], want[0]) and np.array_equal(got[1], want[1])
    assert "differ from the target's" in note


def test_self_contained_fills_in_from_the_target(tmp_path: Path) -> None:
    file, _ = convert(tmp_path, {}, self_contained=True)
    got = tables(file)
    assert np.array_equal(got[0], EMBEDDING) and np.array_equal(got[1], HEAD)


def test_self_contained_needs_the_targets_weights(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target")
    (target / "model.safetensors").unlink()
    with pytest.raises(MismatchError, match="the target's embedding is needed, but its weights are not there"):
        convert(tmp_path, {}, self_contained=True, target=target)
    assert tables(convert(tmp_path, {}, target=target)[0]) == (None, None)


def gguf_target(path: Path, kind: GGMLQuantizationType | None, tied: bool) -> Path:
    """A GGUF target with 32-wide tables, quantised where a type is given."""
    w = GGUFWriter(path, "qwen3")
    w.add_block_count(8)
    w.add_embedding_length(N_EMBD)
    w.add_token_list([str(i) for i in range(N_VOCAB)])
    for name, table in (("token_embd.weight", EMBEDDING), ("output.weight", HEAD)):
        if tied and name == "output.weight":
            continue
        if kind is None:
            w.add_tensor(name, table)
        else:
            w.add_tensor(name, quantize(table, kind), raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def test_a_tied_target_gives_its_embedding_as_head(tmp_path: Path) -> None:
    target = gguf_target(tmp_path / "t.gguf", None, tied=True)
    got = tables(convert(tmp_path, {}, target=target, self_contained=True)[0])
    assert np.array_equal(got[0], EMBEDDING) and np.array_equal(got[1], EMBEDDING)
    # The head of an untied checkpoint is no copy of a tied target's.
    got = tables(convert(tmp_path, {"lm_head.weight": HEAD}, target=target)[0])
    assert np.array_equal(got[1], HEAD)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_0"])
def test_a_quantised_target_is_recognised_as_the_same(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import convert_fixtures

    wide = {"embedding": np.random.default_rng(4).standard_normal((N_VOCAB, 32), dtype=np.float32)}
    w = GGUFWriter(tmp_path / "t.gguf", "qwen3")
    w.add_block_count(8)
    w.add_embedding_length(32)
    w.add_token_list([str(i) for i in range(N_VOCAB)])
    w.add_tensor(
        "token_embd.weight",
        quantize(wide["embedding"], GGMLQuantizationType[kind]),
        raw_dtype=GGMLQuantizationType[kind],
    )
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    monkeypatch.setattr(convert_fixtures, "N_EMBD", 32)
    config = deepspec_config(hidden_size=32)
    tensors = convert_fixtures.draft_tensors()
    for shipped, borrowed in ((wide["embedding"], True), (np.flipud(wide["embedding"]), False)):
        draft = make_checkpoint(tmp_path / "draft", config, tensors | {"embed_tokens.weight": shipped})
        report = convert_checkpoint(draft, tmp_path / "t.gguf", tmp_path / "o.gguf")
        assert ("token_embd.weight" not in GGUFFile(report.path).tensors) is borrowed
