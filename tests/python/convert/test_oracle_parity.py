"""The oracle drafts convert to the tensors and metadata that llama.cpp's converter writes, bit for bit.

Where the two differ, the difference is one of the lists below, each with its reason.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from convert_fixtures import ORACLES, target_of
from dspark_cpp.convert import convert_checkpoint
from dspark_cpp.convert.gguf_file import GGUFFile

DRAFTS = sorted(p.name for p in (ORACLES / "drafts").glob("*") if "eagle3" not in p.name) or ["none"]

# Our own keys, and keys of llama.cpp's that its converter leaves to the reader's default although the config decides.
OURS = {
    "dflash.attention.causal_pattern",
    "dflash.attention.window_origin",
    "dflash.attention.value_norm",
    "dflash.markov_head_type",
    "dflash.verifier.name",
    "dflash.tensor_count",
    "dflash.tokens_sha256",
    "dflash.source.format",
    "dflash.source.sha256",
    "dflash.source.converter",
    "dflash.attention.causal",
    "dflash.hidden_activation",
    "dflash.sample_from_anchor",
    "dflash.has_confidence_head",
}
# They depend on the folder's name or on the number of tensors.
NAMES = {"general.name", "general.size_label"}


def expected(name: str) -> dict[str, Any]:
    """Upstream's result, from the flattened variant where it refuses the nested config."""
    found: dict[str, Any] = json.loads((ORACLES / "drafts" / name / "expected_gguf.json").read_text())
    return found.get("flattened", found)


def token_hash(values: list[Any]) -> str:
    """The pack's hash of a list: of its repr."""
    return hashlib.sha256(repr([v.decode() if isinstance(v, bytes) else v for v in values]).encode()).hexdigest()


def compare_metadata(ours: GGUFFile, theirs: dict[str, Any], extra: set[str]) -> None:
    """Assert that every key of theirs is ours, with type and value, and that nothing else is but `extra`."""
    for key, want in theirs.items():
        if key in NAMES:
            continue
        assert key in ours.metadata, key
        got = ours.metadata[key]
        types = [got.type.name] + ([got.item_type.name] if got.item_type is not None else [])
        assert types == want["type"], key
        if "sha256" in want:
            assert len(got.value) == want["count"], key
            assert token_hash(got.value) == want["sha256"], key
        else:
            value = got.value.decode() if isinstance(got.value, bytes) else got.value
            assert value == want["value"], key
    left = set(ours.metadata) - set(theirs) - extra
    assert not left, left


def tensor_facts(file: GGUFFile) -> dict[str, tuple[list[int], str, str]]:
    """Shape in ggml order, type and SHA-256 of the stored bytes, per tensor."""
    facts = {}
    for name, t in file.tensors.items():
        raw = file.map[t.at : t.at + t.n_bytes]
        facts[name] = (list(reversed(t.shape)), t.type.name, hashlib.sha256(raw).hexdigest())
    return facts


def convert(name: str, tmp_path: Path, **options: Any) -> GGUFFile:
    out = tmp_path / "out.gguf"
    convert_checkpoint(
        ORACLES / "drafts" / name,
        options.pop("target", None) or target_of(ORACLES, name),
        out,
        outtype="f32",
        **options,
    )
    return GGUFFile(out)


@pytest.mark.parametrize("name", DRAFTS)
def test_tensors_and_metadata_equal_upstreams(full_oracles: Path, tmp_path: Path, name: str) -> None:
    want = expected(name)
    if want.get("refused"):
        pytest.skip(f"upstream refuses it: {want['error']}")
    ours = convert(name, tmp_path)
    # The tokenizer is the target GGUF's own, as it is; upstream makes its from the folder (the test below).
    kv = {k: v for k, v in want["kv"].items() if not k.startswith("tokenizer.") or k.endswith(("tokens", "_token_id"))}
    compare_metadata(ours, kv, OURS | {k for k in ours.metadata if k.startswith("tokenizer.")})
    source = GGUFFile(target_of(ORACLES, name)).metadata
    for key in (k for k in source if k.startswith("tokenizer.")):
        assert ours.metadata[key].value == source[key].value, key
    theirs = {k: (v["ne"], v["type"], v["sha256"]) for k, v in want["tensors"].items()}
    if name == "deepspec-qwen3-vanilla":
        # Upstream keeps the embedding and drops the head, and its loader then takes the embedding for the head: wrong
        # for this untied target. Ours shares both.
        assert "output.weight" not in theirs
        theirs.pop("token_embd.weight")
    assert tensor_facts(ours) == theirs


@pytest.mark.parametrize("name", DRAFTS)
def test_a_folder_as_target_gives_upstreams_tokenizer(full_oracles: Path, tmp_path: Path, name: str) -> None:
    want = expected(name)
    if want.get("refused"):
        pytest.skip(f"upstream refuses it: {want['error']}")
    ours = convert(name, tmp_path, target=target_of(ORACLES, name).parent)
    compare_metadata(ours, want["kv"], OURS)


@pytest.mark.parametrize("name", ["deepspec-qwen3-vanilla", "deepspec-gemma4"])
def test_self_contained_keeps_both_tables_of_the_checkpoint(full_oracles: Path, tmp_path: Path, name: str) -> None:
    facts = tensor_facts(convert(name, tmp_path, self_contained=True))
    want = expected(name)["tensors"]
    assert facts["token_embd.weight"][2] == want["token_embd.weight"]["sha256"]
    assert facts["output.weight"][0] == [64, 320]
    assert facts["output.weight"][2] != facts["token_embd.weight"][2]


@pytest.mark.parametrize("name", ["deepspec-qwen3-gated", "deepspec-qwen3-rnn"])
def test_gated_and_rnn_heads_are_written(full_oracles: Path, tmp_path: Path, name: str) -> None:
    ours = convert(name, tmp_path)
    kind = name.rpartition("-")[2]
    assert ours.get_text("dflash.markov_head_type") == kind
    shapes = {n: list(reversed(t.shape)) for n, t in ours.tensors.items() if n.startswith("markov_")}
    extra = {
        "gated": {"markov_gate.weight": [76, 12], "markov_gate.bias": [12]},
        "rnn": {"markov_joint.weight": [88, 36], "markov_joint.bias": [36]},
    }[kind]
    assert shapes == {"markov_w1.weight": [12, 320], "markov_w2.weight": [12, 320], **extra}


@pytest.mark.parametrize("name", DRAFTS)
def test_decisions_equal_the_goldens(full_oracles: Path, tmp_path: Path, name: str) -> None:
    golden = json.loads((ORACLES / "drafts" / name / "golden.json").read_text())
    report = convert_checkpoint(ORACLES / "drafts" / name, target_of(ORACLES, name), tmp_path / "o.gguf", outtype="f32")
    assert report.layer_inputs == golden["layer_inputs"]
    assert report.sample_from_anchor == golden["sample_from_anchor"]
    assert report.block_size == golden["block_size"]
    assert report.max_draft == golden["draft_only"]["max_draft"]
    assert report.mask_token_id == golden["mask_token_id"]
    assert report.n_vocab_draft == golden["draft_vocab_size"]
    assert report.markov_rank == golden["markov_rank"]
    assert (report.confidence is not None) == golden["has_confidence_head"]
    assert (report.confidence == "hidden+markov") == golden["confidence_head_with_markov"]


def test_windows_carry_their_producers_rule(full_oracles: Path, tmp_path: Path) -> None:
    ours = convert("spk-dspark-swa", tmp_path)
    values = {k.rpartition(".")[2]: v.value for k, v in ours.metadata.items() if ".attention." in k}
    assert values["sliding_window"] == 16
    assert values["sliding_window_pattern"] == [True, False, True]
    assert values["causal_pattern"] == [True, False, True]
    assert values["window_origin"] == b"anchor"
    assert values["causal"] is False


def test_eagle3_is_refused_by_name(full_oracles: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="EAGLE-3 draft, which is not supported"):
        convert_checkpoint(
            ORACLES / "drafts" / "spk-eagle3-dv96", target_of(ORACLES, "spk-eagle3-dv96"), tmp_path / "o.gguf"
        )
    assert list(tmp_path.iterdir()) == []
