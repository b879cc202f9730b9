"""The cases of the field reports that concern the converter: layout, layer ids, mask token, packagings, tokenizers."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_fixtures import (
    DEEPSPEC,
    HEAD_DIM,
    N_EMBD,
    RANK,
    backbone_config,
    deepspec_config,
    draft_tensors,
    make_checkpoint,
    make_target,
    metadata,
)
from dspark_cpp.convert import ConvertReport, convert_checkpoint
from dspark_cpp.convert.gguf_file import GGUFFile
from dspark_cpp.convert.target import tokens_sha256
from dspark_cpp.errors import ArgumentError, DSparkError, FormatError, MismatchError
from gguf import GGUFWriter


def speculators_config(top: dict[str, Any] | None = None, **nested: Any) -> dict[str, Any]:
    """A speculators config for `make_target`; a value of None drops a top-level key."""
    config: dict[str, Any] = {
        "architectures": ["DSparkSpeculator"],
        "speculators_model_type": "dspark",
        "aux_hidden_state_layer_ids": [1, 3, 5],
        "block_size": 7,
        "mask_token_id": 37,
        "draft_vocab_size": None,
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        "transformer_layer_config": backbone_config(**nested),
        **(top or {}),
    }
    return {k: v for k, v in config.items() if v is not None}


def specforge_config(**dflash: Any) -> dict[str, Any]:
    """A SpecForge config for `make_target`."""
    inner = {
        "attention_mode": "gqa",
        "projector_type": "dspark",
        "mask_token_id": 37,
        "target_layer_ids": [0, 2, 4],
        "markov_rank": RANK,
        "markov_head_type": "vanilla",
        "enable_confidence_head": True,
        "confidence_head_with_markov": True,
        **dflash,
    }
    return {**backbone_config(), "architectures": ["DSparkDraftModel"], "block_size": 7, "dflash_config": inner}


def convert(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any] | None = None, **options: Any
) -> ConvertReport:
    target = make_target(tmp_path / "target")
    draft = make_checkpoint(tmp_path / "draft", config, tensors)
    return convert_checkpoint(draft, target, tmp_path / "o.gguf", **options)


# --- A1: a missing sample_from_anchor ---------------------------------------------------------------------------------


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("make", [speculators_config, lambda top: deepspec_config(**top)])
def test_a1_a_stated_layout_is_written_whatever_the_schema(tmp_path: Path, flag: bool, make: Any) -> None:
    report = convert(tmp_path, make({"sample_from_anchor": flag}))
    assert report.sample_from_anchor is flag
    assert metadata(report.path)["dflash.sample_from_anchor"] is flag
    assert report.layout_reason == "sample_from_anchor in the config"


def test_a1_an_absent_layout_follows_the_export_format_and_says_so(tmp_path: Path) -> None:
    speculators = convert(tmp_path / "a", speculators_config())
    assert (speculators.layout, speculators.max_draft) == ("bonus", 6)
    assert "trained 1+N" in speculators.layout_reason
    assert any("1+N" in line and "no sample_from_anchor" in line for line in speculators.lines())
    deepspec = convert(tmp_path / "b", deepspec_config())
    assert (deepspec.layout, deepspec.max_draft) == ("anchor", 7)
    specforge = convert(tmp_path / "c", specforge_config())
    assert (specforge.layout, specforge.max_draft) == ("anchor", 7)
    flat = convert(tmp_path / "d", deepspec_config(target_layer_ids=None, aux_hidden_state_layer_ids=[1, 3, 5]))
    assert (flat.layout, flat.max_draft) == ("bonus", 6)


def test_a1_a_layout_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="layout is '1.N', but 'anchor' or 'bonus' is needed"):
        convert(tmp_path, deepspec_config(), layout="1+N")


@pytest.mark.parametrize("layout", ["anchor", "bonus"])
def test_a1_the_callers_layout_wins_and_the_overruled_flag_is_told(tmp_path: Path, layout: str) -> None:
    report = convert(tmp_path, deepspec_config(sample_from_anchor=layout == "bonus"), layout=layout)
    assert report.layout == layout
    assert any("the caller overrides it" in w for w in report.warnings)


@pytest.mark.parametrize(
    ("flag", "tokens", "clash"),
    [
        (True, 7, False),
        (True, 6, True),
        (True, 4, False),
        (True, 8, True),
        (False, 6, False),
        (False, 7, True),
        (None, 7, True),
    ],
)
def test_a1_speculative_tokens_of_the_other_layout_ask_for_a_choice(
    tmp_path: Path, flag: bool | None, tokens: int, clash: bool
) -> None:
    methods = {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": tokens}]}
    config = speculators_config({"sample_from_anchor": flag, "speculators_config": methods})
    if not clash:
        assert convert(tmp_path, config).sample_from_anchor is flag
        return
    with pytest.raises(FormatError, match=f"speculative_tokens is {tokens}, but block_size 7 drafts .* --layout"):
        convert(tmp_path, config)
    assert convert(tmp_path, config, layout="anchor").layout == "anchor"


def test_deepspecs_dflash_baseline_is_anchor_first_without_markov(tmp_path: Path) -> None:
    config = deepspec_config(
        markov_rank=0, markov_head_type=None, enable_confidence_head=False, confidence_head_with_markov=None
    )
    report = convert(tmp_path, config, draft_tensors(markov=False, confidence=False))
    assert (report.family, report.layout, report.max_draft) == ("dflash", "anchor", 7)
    # A reader that goes by the Markov head alone would take it for 1+N.
    assert metadata(report.path)["dflash.sample_from_anchor"] is True


# --- A3: block size and drafts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("flag", "drafts"), [(True, 16), (False, 15)])
def test_a3_a_block_of_16_drafts_16_anchor_first_and_15_in_1_plus_n(tmp_path: Path, flag: bool, drafts: int) -> None:
    report = convert(tmp_path, deepspec_config(block_size=16, sample_from_anchor=flag))
    assert (report.block_size, report.max_draft) == (16, drafts)


# --- A10: one meaning, three numberings -------------------------------------------------------------------------------


def test_a10_ids_of_three_conventions_for_the_same_taps_are_one_list(tmp_path: Path) -> None:
    zlab = {
        **backbone_config(),
        "architectures": ["DFlashDraftModel"],
        "block_size": 7,
        "dflash_config": {"mask_token_id": 37, "target_layer_ids": [0, 2, 4]},
    }
    reports = [
        convert(tmp_path / "deepspec", deepspec_config(target_layer_ids=[0, 2, 4])),
        convert(tmp_path / "zlab", zlab, draft_tensors(markov=False, confidence=False)),
        convert(tmp_path / "speculators", speculators_config({"aux_hidden_state_layer_ids": [1, 3, 5]})),
        convert(
            tmp_path / "eagle-key", deepspec_config(target_layer_ids=None, eagle_aux_hidden_state_layer_ids=[1, 3, 5])
        ),
    ]
    for report in reports:
        assert report.layer_inputs == [1, 3, 5]
        assert report.layer_outputs == [0, 2, 4]
        assert metadata(report.path)["dflash.target_layers"] == [1, 3, 5]


def test_a10_the_embedding_is_minus_1_as_output_and_0_as_input(tmp_path: Path) -> None:
    assert convert(tmp_path / "a", deepspec_config(target_layer_ids=[-1, 2, 4])).layer_inputs == [0, 3, 5]
    config = speculators_config({"aux_hidden_state_layer_ids": [0, 3, 5]})
    assert convert(tmp_path / "b", config).layer_inputs == [0, 3, 5]


def test_a10_both_conventions_at_once_must_agree(tmp_path: Path) -> None:
    agreeing = deepspec_config(aux_hidden_state_layer_ids=[1, 3, 5])
    assert convert(tmp_path / "a", agreeing).layer_inputs == [1, 3, 5]
    with pytest.raises(FormatError, match=r"\[0, 2, 4\].*\[0, 2, 4\].*different layers"):
        convert(tmp_path / "b", deepspec_config(aux_hidden_state_layer_ids=[0, 2, 4]))


@pytest.mark.parametrize(
    ("key", "last", "ok"),
    [
        ("target_layer_ids", 6, True),
        ("target_layer_ids", 7, False),
        ("aux_hidden_state_layer_ids", 7, True),
        ("aux_hidden_state_layer_ids", 8, False),
    ],
)
def test_a10_the_last_usable_id_is_the_input_of_the_last_layer(tmp_path: Path, key: str, last: int, ok: bool) -> None:
    config = deepspec_config(**{"target_layer_ids": None, key: [1, 3, last]})
    if ok:
        assert convert(tmp_path, config).layer_inputs[-1] == 7  # the target has 8 layers
    else:
        with pytest.raises(MismatchError, match="output of the target's last layer"):
            convert(tmp_path, config)


# --- A14: the mask token ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mask", "error"), [(None, "mask_token_id is missing"), (40, "0 to 39"), (-1, "0 to 39"), (True, "0 to 39")]
)
def test_a14_a_mask_token_that_is_missing_or_no_row_is_refused(tmp_path: Path, mask: Any, error: str) -> None:
    with pytest.raises(FormatError, match=error):
        convert(tmp_path, deepspec_config(mask_token_id=mask))


def test_a14_a_mask_token_that_is_eos_is_told(tmp_path: Path) -> None:
    report = convert(tmp_path, deepspec_config(mask_token_id=36))
    assert any("mask_token_id 36 is also the target's eos token" in w for w in report.warnings)
    assert not convert(tmp_path, deepspec_config(mask_token_id=39)).warnings  # a row without a token is a fair mask


# --- A15: five packagings of one draft --------------------------------------------------------------------------------

# What tells where a file comes from, and so differs between exporters of the same weights.
PROVENANCE = {"dflash.source.format", "dflash.verifier.name", "general.name"}


def packagings() -> dict[str, tuple[dict[str, Any], dict[str, Any]]]:
    plain = draft_tensors()
    anchor = {"sample_from_anchor": True}
    nested_dflash = {k: v for k, v in DEEPSPEC.items() if k not in ("architectures", "block_size")}
    speculators = speculators_config(
        {
            **anchor,
            "speculators_config": {
                "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 7}],
                "verifier": {"name_or_path": "org/target", "architectures": ["Qwen3ForCausalLM"]},
            },
        }
    )
    liquid = {k: v for k, v in speculators_config(anchor).items() if not k.startswith("speculators")}
    liquid["architectures"] = ["Lfm2DSparkDraftModel"]
    liquid["transformer_layer_config"].pop("model_type")
    wrapped = {("logit_head." + n if n.startswith(("markov", "confidence")) else n): t for n, t in plain.items()}
    prefixed = {"model." + n: t for n, t in plain.items()}
    flat = {**backbone_config(), "architectures": ["DSparkDraftModel"], "block_size": 7, "dflash_config": nested_dflash}
    return {
        "deepspec-flat": (deepspec_config(), plain),
        "dflash-config-nested": (flat, prefixed),
        "speculators": (speculators, plain),
        "liquid-without-tag": (liquid, plain),
        "specforge": (specforge_config(), wrapped),
    }


def test_a15_five_packagings_give_the_same_file(tmp_path: Path) -> None:
    results = {}
    for name, (config, tensors) in packagings().items():
        file = GGUFFile(convert(tmp_path / name, config, tensors).path)
        values = {k: v.value for k, v in file.metadata.items() if k not in PROVENANCE}
        results[name] = (values, {n: (t.type, t.shape, t.whole().tobytes()) for n, t in file.tensors.items()})
    first = results.pop("deepspec-flat")
    assert first[0]["dflash.sample_from_anchor"] is True
    for name, result in results.items():
        assert result[0] == first[0], name
        assert result[1] == first[1], name


ALIASES = {
    "block_size": ("dflash_config.block_size", "dspark_config.block_size"),
    "mask_token_id": ("dflash_config.mask_token_id", "dspark_config.mask_token_id"),
    "target_layer_ids": ("dflash_config.target_layer_ids", "dspark_config.target_layer_ids"),
    "markov_rank": ("dflash_config.markov_rank", "dspark_config.markov_rank"),
    "markov_head_type": ("dflash_config.markov_head_type", "dspark_config.markov_head_type"),
    "enable_confidence_head": ("dflash_config.enable_confidence_head", "dspark_config.enable_confidence_head"),
    "confidence_head_with_markov": (
        "dflash_config.confidence_head_with_markov",
        "dspark_config.confidence_head_with_markov",
    ),
    "sample_from_anchor": ("dflash_config.sample_from_anchor", "dspark_config.sample_from_anchor"),
}


@pytest.mark.parametrize(("key", "alias"), [(key, alias) for key, names in ALIASES.items() for alias in names])
def test_a15_every_alias_of_a_key_means_that_key(tmp_path: Path, key: str, alias: str) -> None:
    # Gated, so that a kind of head that was not found (and then taken for vanilla) shows.
    config = deepspec_config(sample_from_anchor=True, markov_head_type="gated")
    gate = {
        "markov_head.gate_proj.weight": np.ones((RANK, N_EMBD + RANK), np.float32),
        "markov_head.gate_proj.bias": np.ones(RANK, np.float32),
    }
    config["architectures"] = ["DSparkDraftModel"]
    want = convert(tmp_path / "a", config, draft_tensors() | gate).path.read_bytes()
    table, name = alias.split(".")
    moved = {k: v for k, v in config.items() if k != key} | {table: {name: config[key]}}
    assert want.count(b"gated") == 1
    (tmp_path / "b").mkdir()
    assert convert(tmp_path / "b", moved, draft_tensors() | gate).path.read_bytes() == want


def test_a15_a_value_at_two_places_must_be_the_same(tmp_path: Path) -> None:
    config = specforge_config()
    config["mask_token_id"] = 5
    with pytest.raises(FormatError, match="mask_token_id is 5 but dflash_config.mask_token_id is 37; they must agree"):
        convert(tmp_path, config)


# --- A16, A20: every tensor counts ------------------------------------------------------------------------------------


def test_a16_dropping_any_tensor_is_an_error_that_names_it(tmp_path: Path) -> None:
    tensors = draft_tensors()
    for name in tensors:
        if name == "confidence_head.proj.bias":
            continue  # a confidence head without bias exists
        left = {k: v for k, v in tensors.items() if k != name}
        with pytest.raises(FormatError, match=f"{name} is missing"):
            convert(tmp_path, deepspec_config(), left)
    assert not (tmp_path / "o.gguf").exists()


def test_a20_a_fuse_of_another_width_is_refused_with_both_numbers(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"fc.weight has shape \[16, 64\], but \[16, 48\] is needed"):
        convert(tmp_path, deepspec_config(), draft_tensors(n_taps=4))


# --- A19: tokenizers --------------------------------------------------------------------------------------------------


def gguf_target(path: Path, model: str, tokens: list[bytes], arch: str) -> Path:
    """A target without weights whose tokenizer is of a given model."""
    w = GGUFWriter(path, arch)
    w.add_block_count(8)
    w.add_embedding_length(N_EMBD)
    w.add_tokenizer_model(model)
    w.add_token_list(tokens)
    w.add_token_scores([-float(i) for i in range(len(tokens))])
    w.add_token_types([1] * len(tokens))
    w.add_eos_token_id(2)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


@pytest.mark.parametrize(
    ("model", "arch", "token"),
    [
        ("llama", "llama", "\u2581tok"),
        ("gpt2", "qwen3", "\u0120tok"),
        ("gemma4", "gemma4", "tok "),
        ("gpt2", "llama", "\u00e9"),
    ],
)
def test_a19_the_targets_tokenizer_is_carried_whatever_its_kind(
    tmp_path: Path, model: str, arch: str, token: str
) -> None:
    tokens = [f"{token}{i}".encode() for i in range(39)] + [b"\xff\xfe not UTF-8"]
    target = gguf_target(tmp_path / "target.gguf", model, tokens, arch)
    draft = make_checkpoint(tmp_path / "draft", deepspec_config())
    report = convert_checkpoint(draft, target, tmp_path / "o.gguf")
    values = metadata(report.path)
    assert values["tokenizer.ggml.model"] == model.encode()
    assert values["tokenizer.ggml.tokens"] == tokens
    assert values["tokenizer.ggml.scores"] == [-float(i) for i in range(40)]
    assert values["dflash.tokens_sha256"].decode() == tokens_sha256(tokens) == report.tokens_sha256


def test_a19_a_target_with_another_number_of_tokens_is_refused(tmp_path: Path) -> None:
    target = gguf_target(tmp_path / "target.gguf", "gpt2", [b"%d" % i for i in range(41)], "qwen3")
    draft = make_checkpoint(tmp_path / "draft", deepspec_config())
    with pytest.raises(MismatchError, match="vocab_size is 40, but the target .* has 41 tokens"):
        convert_checkpoint(draft, target, tmp_path / "o.gguf")


def test_a_draft_is_no_target(tmp_path: Path) -> None:
    draft = make_checkpoint(tmp_path / "draft", deepspec_config())
    report = convert_checkpoint(draft, make_target(tmp_path / "target"), tmp_path / "o.gguf")
    with pytest.raises(FormatError, match="architecture dflash is not a target"):
        convert_checkpoint(draft, report.path, tmp_path / "p.gguf")


# --- A23: rope style --------------------------------------------------------------------------------------------------


def test_a23_interleaved_pairs_are_reordered_to_halves(tmp_path: Path) -> None:
    tensors = draft_tensors()
    plain = GGUFFile(convert(tmp_path / "a", deepspec_config(), tensors).path)
    ling = deepspec_config(architectures=["LingDSparkModel"], rope_is_neox_style=False)
    other = GGUFFile(convert(tmp_path / "b", ling, tensors).path)
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    for i in range(2):
        for part in ("q", "k"):
            name = f"blk.{i}.attn_{part}.weight"
            heads = plain.tensors[name].whole().reshape(-1, HEAD_DIM, N_EMBD)
            assert np.array_equal(other.tensors[name].whole().reshape(heads.shape), heads[:, order])
            norm = f"blk.{i}.attn_{part}_norm.weight"
            assert np.array_equal(other.tensors[norm].whole(), plain.tensors[norm].whole()[order])
    same = set(plain.tensors) - {n for n in plain.tensors if "attn_q" in n or "attn_k" in n}
    assert all(np.array_equal(plain.tensors[n].whole(), other.tensors[n].whole()) for n in same)


# --- A29: heads in all combinations -----------------------------------------------------------------------------------


@pytest.mark.parametrize("markov", [True, False])
@pytest.mark.parametrize("confidence", [True, False])
def test_a29_heads_may_be_combined_freely(tmp_path: Path, markov: bool, confidence: bool) -> None:
    config = deepspec_config(
        markov_rank=RANK if markov else 0, enable_confidence_head=confidence, confidence_head_with_markov=None
    )
    report = convert(tmp_path, config, draft_tensors(markov=markov, confidence=confidence))
    assert report.confidence == (("hidden+markov" if markov else "hidden") if confidence else None)
    assert metadata(report.path)["dflash.has_confidence_head"] is confidence
    assert (report.markov == "vanilla") is markov


def test_a29_a_confidence_head_that_wants_an_absent_markov_head_is_refused(tmp_path: Path) -> None:
    config = deepspec_config(markov_rank=0)
    with pytest.raises(DSparkError, match="confidence_head_with_markov is true, but there is no Markov head"):
        convert(tmp_path, config, draft_tensors(markov=False))


def varint(n: int) -> bytes:
    out = b""
    while n > 0x7F:
        out, n = out + bytes([n & 0x7F | 0x80]), n >> 7
    return out + bytes([n])


def field(number: int, payload: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(payload)) + payload


def spm_model(pieces: list[tuple[str, float, int]]) -> bytes:
    """A SentencePiece model file of these (text, score, type)."""
    out = b""
    for text, score, kind in pieces:
        message = field(1, text.encode()) + b"\x15" + struct.pack("<f", score) + b"\x18" + varint(kind)
        out += field(1, message)
    return out + field(2, b"\x18\x02")  # trainer_spec.model_type = BPE


def test_a19_a_sentencepiece_folder_gives_pieces_scores_and_types(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", model_type="llama", architectures=["LlamaForCausalLM"])
    (target / "tokenizer.json").unlink()
    pieces = [
        ("<unk>", 0.0, 2),
        ("<s>", 0.0, 3),
        ("</s>", 0.0, 3),
        ("<0x00>", 0.0, 6),
        ("\u2581a", -1.5, 1),
        ("b", -2.0, 4),
    ]
    (target / "tokenizer.model").write_bytes(spm_model(pieces))
    added = {"6": {"content": "<|im_end|>", "special": True}, "7": {"content": "\u2581x", "special": False}}
    (target / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    (target / "config.json").write_text(
        json.dumps(json.loads((target / "config.json").read_text()) | {"eos_token_id": 2})
    )
    draft = make_checkpoint(tmp_path / "draft", deepspec_config())
    report = convert_checkpoint(draft, target, tmp_path / "o.gguf")
    values = metadata(report.path)
    assert values["tokenizer.ggml.model"] == b"llama"
    tokens = values["tokenizer.ggml.tokens"]
    assert tokens[:9] == [p[0].encode() for p in pieces] + [b"<|im_end|>", b" x", b"[PAD8]"]
    assert len(tokens) == 40
    assert values["tokenizer.ggml.token_type"][:9] == [2, 3, 3, 6, 1, 1, 3, 4, 5]
    assert values["tokenizer.ggml.scores"][:9] == [0.0, 0.0, 0.0, 0.0, -1.5, -2.0, -1000.0, -1000.0, -10000.0]
    assert values["tokenizer.ggml.eos_token_id"] == 2
    assert report.tokens_sha256 == tokens_sha256(tokens)


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b"", lambda b: b"\xff" * 20, lambda b: b"\x0a\x7f" + b])
def test_a19_a_damaged_sentencepiece_model_is_refused(tmp_path: Path, damage: Any) -> None:
    target = make_target(tmp_path / "target", model_type="llama")
    (target / "tokenizer.json").unlink()
    (target / "tokenizer.model").write_bytes(damage(spm_model([("a", 0.0, 1), ("b", 0.0, 1)])))
    draft = make_checkpoint(tmp_path / "draft", deepspec_config())
    with pytest.raises(DSparkError, match="not a SentencePiece model"):
        convert_checkpoint(draft, target, tmp_path / "o.gguf")


def test_a19_a_gemma4_folder_keeps_its_bytes_and_shows_its_marks(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target", model_type="gemma4_text", architectures=["Gemma4ForCausalLM"])
    vocab = {"<pad>": 0, "<bos>": 1, "<0x0A>": 2, "\u2581the": 3}
    data = {
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}},
        "model": {"type": "BPE", "byte_fallback": True, "vocab": vocab, "merges": []},
        "added_tokens": [
            {"id": 0, "content": "<pad>", "special": True},
            {"id": 4, "content": "<|channel>", "special": True},
        ],
    }
    (target / "tokenizer.json").write_text(json.dumps(data))
    draft = make_checkpoint(tmp_path / "draft", deepspec_config())
    values = metadata(convert_checkpoint(draft, target, tmp_path / "o.gguf").path)
    assert values["tokenizer.ggml.model"] == b"gemma4"
    assert values["tokenizer.ggml.tokens"][:6] == [
        b"<pad>",
        b"<bos>",
        b"<0x0A>",
        "\u2581the".encode(),
        b"<|channel>",
        b"[PAD5]",
    ]
    assert values["tokenizer.ggml.token_type"][:6] == [3, 1, 6, 1, 4, 5]
    assert values["tokenizer.ggml.add_bos_token"] is True
    assert values["tokenizer.ggml.add_space_prefix"] is False
