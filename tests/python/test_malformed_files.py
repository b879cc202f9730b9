"""Draft files that are not what they should be: a sentence with the value seen and the value wanted, never a crash."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_cpp import Draft, DraftContext, DSparkError, FileError, FormatError, MismatchError, Session
from gguf import GGUFValueType
from gguf_edit import DROP, edit, tensor, tensor_names
from scripted import PROMPT

BASE = "spk-dspark-bonus-dv96"  # 96 of 320 tokens, own head, borrowed embedding
U32, STRING, BOOL, FLOAT, I32 = (
    GGUFValueType.UINT32,
    GGUFValueType.STRING,
    GGUFValueType.BOOL,
    GGUFValueType.FLOAT32,
    GGUFValueType.INT32,
)


def refuse(path: Path, match: str, kind: type[DSparkError] = FormatError) -> None:
    """Loading and inspecting both refuse the file, and say the same."""
    with pytest.raises(kind, match=match) as inspected:
        Draft(path, inspect=True)
    with pytest.raises(kind, match=match) as loaded:
        Draft(path)
    assert str(inspected.value) == str(loaded.value)
    assert str(path) in str(loaded.value)
    assert "\n" not in str(loaded.value)


# --- d2t --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [0, 50, 95])
@pytest.mark.parametrize("value", [-1, 320, 2**31, 2**32, 2**62, -(2**63), 2**63 - 1])
def test_a6_an_entry_of_d2t_outside_the_vocabulary_is_refused(
    value: int, index: int, tmp_path: Path, converted: Callable[..., Path]
) -> None:
    """The map indexes buffers: an entry that went unchecked would write outside of them."""
    d2t = tensor(converted(BASE), "d2t")
    d2t[index] = value
    path = edit(converted(BASE), tmp_path / "x.gguf", tensors={"d2t": d2t})
    refuse(path, rf"d2t\[{index}\] is {value}, expected a token id below 320")


def test_a6_two_rows_for_one_token_are_refused(tmp_path: Path, converted: Callable[..., Path]) -> None:
    d2t = tensor(converted(BASE), "d2t")
    d2t[11] = d2t[10]
    path = edit(converted(BASE), tmp_path / "x.gguf", tensors={"d2t": d2t})
    refuse(path, rf"d2t\[11\] is {d2t[10]}, a token that an earlier row has already")


def test_a6_offsets_instead_of_ids_are_refused_with_a_hint(tmp_path: Path, converted: Callable[..., Path]) -> None:
    d2t = tensor(converted(BASE), "d2t")
    offsets = d2t - np.arange(len(d2t))
    path = edit(converted(BASE), tmp_path / "x.gguf", tensors={"d2t": offsets})
    refuse(path, "are these offsets")


def test_a6_a_permuted_vocabulary_is_a_valid_one(
    tmp_path: Path, converted: Callable[..., Path], open_tiny: Callable[..., Any]
) -> None:
    """The rows of head, W2 and d2t in another order: the same target ids are proposed."""
    order = np.random.default_rng(5).permutation(96)
    names = ["d2t", "output.weight", "markov_w2.weight"]
    tensors = {name: tensor(converted(BASE), name)[order] for name in names}
    path = edit(converted(BASE), tmp_path / "x.gguf", tensors=tensors)
    llm = open_tiny()
    seen = []
    for file in (converted(BASE), path):
        with Session(llm, file, n_threads=1, type_k="f32", type_v="f32") as session:
            session.append(PROMPT)
            rounds = {}
            for _ in range(40):
                session.next()
                if session.last_round is not None:
                    rounds[session.last_round.position] = session.last_round.drafted
            seen.append(rounds)
    assert seen[0] == seen[1]


def test_a9_tables_of_other_lengths_are_refused_with_both(tmp_path: Path, converted: Callable[..., Path]) -> None:
    source = converted(BASE)
    short = edit(source, tmp_path / "d2t.gguf", tensors={"d2t": tensor(source, "d2t")[:90]})
    refuse(short, r"output.weight has 96 entries, expected 90")
    head = edit(source, tmp_path / "head.gguf", tensors={"output.weight": tensor(source, "output.weight")[:90]})
    refuse(head, r"output.weight has 90 entries, expected 96")
    w2 = edit(source, tmp_path / "w2.gguf", tensors={"markov_w2.weight": tensor(source, "markov_w2.weight")[:90]})
    refuse(w2, r"markov_w2.weight has shape \{16, 90\}, expected \{16, 96\}")
    w1 = edit(source, tmp_path / "w1.gguf", tensors={"markov_w1.weight": tensor(source, "markov_w1.weight")[:96]})
    refuse(w1, r"markov_w1.weight has 96 entries, expected 320")
    kind = edit(source, tmp_path / "i32.gguf", tensors={"d2t": tensor(source, "d2t").astype(np.int32)})
    refuse(kind, "d2t has type i32 .* expected i64")


# --- mask token, tensors, widths --------------------------------------------------------------------------------------


def test_a12_the_mask_token_does_not_come_from_a_tokenizer(
    tmp_path: Path, converted: Callable[..., Path], open_tiny: Callable[..., Any]
) -> None:
    source = converted("deepspec-qwen3-vanilla")
    keys = {"tokenizer.ggml.tokens": DROP, "tokenizer.ggml.model": DROP, "tokenizer.ggml.merges": DROP}
    bare = edit(source, tmp_path / "bare.gguf", keys={**keys, "tokenizer.ggml.token_type": DROP})
    llm = open_tiny()
    seen = []
    for path in (source, bare):
        with Draft(path, target=llm) as draft, DraftContext(draft, llm, n_threads=1) as context:
            assert draft.mask_token_id == 258
            context.append(np.ones((5, draft.n_features), np.float32))
            seen.append(context.propose(65, logits=True).logits)
    assert seen[0] is not None and seen[1] is not None
    assert np.array_equal(seen[0], seen[1])


def test_a12_a_file_without_mask_token_is_refused_when_loaded(tmp_path: Path, converted: Callable[..., Path]) -> None:
    key = "tokenizer.ggml.mask_token_id"
    refuse(edit(converted(BASE), tmp_path / "none.gguf", keys={key: DROP}), f"the key {key} is missing")
    for value in (320, 2**31, 2**32 - 1):
        path = edit(converted(BASE), tmp_path / f"{value}.gguf", keys={key: value})
        refuse(path, rf"{key} is \d+, expected a token id below 320")


@pytest.mark.parametrize(
    "name",
    ["deepspec-qwen3-vanilla", "deepspec-qwen3-gated", "deepspec-qwen3-rnn", "deepspec-gemma4", "spk-dspark-swa", BASE],
)
def test_a16_each_tensor_is_required_or_borrowed_from_the_target(
    name: str, tmp_path: Path, converted: Callable[..., Path]
) -> None:
    """A tensor that is missing is never replaced by zeros or random values; a confidence head may have no bias."""
    source = converted(name, True)
    borrowed = {"token_embd.weight": "embedding"} | ({} if "d2t" in tensor_names(source) else {"output.weight": "head"})
    # of these a file without them is another, complete draft: only the count of tensors tells that they were lost
    optional = (
        "conf_proj.bias",
        "rope_freqs.weight",
        "post_attention_norm.weight",
        "post_ffw_norm.weight",
        "layer_output_scale.weight",
    )
    accepted = []
    for missing in tensor_names(source):
        with pytest.raises(FormatError):
            Draft(edit(source, tmp_path / "lost.gguf", drop=[missing], recount=False), inspect=True)
        path = edit(source, tmp_path / "x.gguf", drop=[missing])
        try:
            draft = Draft(path, inspect=True)
        except FormatError as e:
            stem = missing.split(".", 2)[-1] if missing.startswith("blk.") else missing
            assert stem in str(e) or "d2t" in str(e), f"without {missing}: {e}"
            continue
        accepted.append(missing)
        if missing in borrowed:
            assert draft.describe()[borrowed[missing]] == "target's"
    assert all(name in borrowed or name.endswith(optional) for name in accepted)
    assert set(borrowed) <= set(accepted)


def test_a_tensor_that_nobody_uses_is_refused_by_name(tmp_path: Path, converted: Callable[..., Path]) -> None:
    for name in ["blk.0.extra.weight", "blk.9.attn_q.weight", "fc.bias", "markov_gate.weight", "rope_freq.weight"]:
        path = edit(converted(BASE), tmp_path / "x.gguf", tensors={name: np.zeros((4, 4), np.float32)})
        refuse(path, f"the tensor {name} is not one that a draft of this kind uses")


def test_a20_a_fuse_of_another_width_is_refused_with_both_numbers(
    tmp_path: Path, converted: Callable[..., Path], open_tiny: Callable[..., Any]
) -> None:
    source = converted(BASE)
    wide = np.zeros((64, 1024), np.float32)
    path = edit(source, tmp_path / "wide.gguf", tensors={"fc.weight": wide})
    refuse(path, r"fc.weight has shape \{1024, 64\}, expected \{192, 64\}")
    fewer = edit(source, tmp_path / "fewer.gguf", keys={"dflash.target_layers": [1, 3]})
    refuse(fewer, r"fc.weight has shape \{192, 64\}, expected \{128, 64\}")
    with pytest.raises(MismatchError, match="hidden size is 64, the target's 48"):
        Session(open_tiny("target-gemma4"), source)


def test_a21_other_spellings_of_the_architecture_are_refused_with_the_wanted_one(
    tmp_path: Path, converted: Callable[..., Path], tiny_path: Callable[[str], Path]
) -> None:
    for spelling in ("dspark", "dflash-draft"):
        path = edit(converted(BASE), tmp_path / f"{spelling}.gguf", keys={"general.architecture": spelling})
        refuse(path, f'architecture is "{spelling}", expected "dflash" .*convert the checkpoint again')
    refuse(tiny_path("target-qwen3"), 'architecture is "qwen3", expected "dflash"')


# --- metadata ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "match"),
    [
        ("dflash.block_size", 0, "block_size is 0, expected 1 to 128"),
        ("dflash.block_size", 1, "block_size is 1, expected 2 or more with sample_from_anchor = false"),
        ("dflash.block_size", 129, "block_size is 129, expected 1 to 128"),
        ("dflash.block_size", 2**32 - 1, "expected 1 to 128"),
        ("dflash.block_size", ("8", STRING), "block_size has type string, expected u32"),
        ("dflash.block_size", DROP, "dflash.block_size is missing"),
        ("dflash.block_count", 0, "block_count is 0, expected 1"),
        ("dflash.block_count", 2**32 - 1, "block_count is 4294967295"),
        ("dflash.block_count", 3, "blk.2.* is missing"),
        ("dflash.block_count", 1, "blk.1.* is not one that a draft of this kind uses"),
        ("dflash.context_length", DROP, "dflash.context_length is missing"),
        ("dflash.embedding_length", 0, "embedding_length is 0"),
        ("dflash.embedding_length", 32, r"has shape \{.*\}, expected \{"),
        ("dflash.attention.head_count_kv", 0, "head_count_kv is 0"),
        ("dflash.attention.head_count_kv", 3, "head_count is 4, expected a multiple of head_count_kv, 3"),
        ("dflash.attention.head_count", 8, r"attn_q.weight has shape \{64, 64\}, expected \{64, 128\}"),
        ("dflash.attention.key_length", 15, "head size is 15, expected an even number"),
        ("dflash.attention.value_length", 8, "value_length is 8, expected key_length, 16"),
        ("dflash.attention.layer_norm_rms_epsilon", float("nan"), "epsilon is nan, expected a finite number"),
        ("dflash.attention.layer_norm_rms_epsilon", 0.0, "epsilon is 0, expected a positive number"),
        ("dflash.attention.layer_norm_rms_epsilon", DROP, "epsilon is missing"),
        ("dflash.rope.freq_base", -1.0, "freq_base is -1, expected a positive number"),
        ("dflash.rope.freq_base", float("inf"), "freq_base is inf"),
        ("dflash.rope.dimension_count", (17, U32), "dimension_count is 17"),
        ("dflash.rope.dimension_count", (32, U32), "dimension_count is 32"),
        ("dflash.rope.scaling.type", ("longrope", STRING), 'scaling.type is "longrope", expected none, linear or yarn'),
        ("dflash.target_layers", DROP, "target_layers is missing"),
        ("dflash.target_layers", [1, -3, 5], "target_layers contains -3"),
        ("dflash.target_layers", ("1,3,5", STRING), "target_layers has type string, expected array"),
        ("dflash.markov_head_type", ("transformer", STRING), 'is "transformer", expected vanilla, gated or rnn'),
        ("dflash.markov_head_type", ("gated", STRING), "markov_gate.weight is missing"),
        ("dflash.markov_head_type", ("rnn", STRING), "markov_joint.weight is missing"),
        ("dflash.has_confidence_head", (False, BOOL), "has_confidence_head is false but .*conf_proj.weight is there"),
        ("dflash.sample_from_anchor", ("yes", STRING), "sample_from_anchor has type string, expected bool"),
        ("dflash.hidden_activation", ("relu2", STRING), 'hidden_activation is "relu2", expected silu'),
        ("dflash.attention.sliding_window", (16, U32), "sliding_window_pattern is missing"),
        ("dflash.attention.window_origin", ("end", STRING), 'window_origin is "end", expected query or anchor'),
        ("dflash.final_logit_softcapping", (-1.0, FLOAT), "softcapping is -1"),
        ("dflash.hyper_connection.count", (4, U32), "hyper_connection.count > 0.* not supported"),
        ("dflash.selector_rank", (4, U32), "selector_rank.* not supported"),
        ("dflash.rope.dimension_sections", ([1, 2], GGUFValueType.ARRAY), "dimension_sections"),
        ("dflash.block_size", 0, "block_size is 0"),
        ("tokenizer.ggml.tokens", ["a", "b"], "markov_w1.weight has 320 entries, expected 2"),
    ],
    ids=lambda value: None if isinstance(value, str) and " " in value else repr(value)[:40],
)
def test_metadata_out_of_range_is_refused_by_key(
    key: str, value: Any, match: str, tmp_path: Path, converted: Callable[..., Path]
) -> None:
    refuse(edit(converted(BASE), tmp_path / "x.gguf", keys={key: value}), match)


def test_the_packs_malformed_gguf_files_are_refused(
    oracles: Path, tmp_path: Path, converted: Callable[..., Path], open_tiny: Callable[..., Any]
) -> None:
    if not (oracles / "malformed").is_dir():
        pytest.skip("the malformed recipes are in the full oracle pack only")
    spec = importlib.util.spec_from_file_location("apply", oracles / "malformed" / "apply.py")
    assert spec and spec.loader
    apply = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(apply)
    llm = open_tiny()
    recipes = json.loads((oracles / "malformed" / "recipes.json").read_text())["cases"]
    seen = [case for case in recipes if case["stage"] == "gguf"]
    assert seen
    for case in seen:
        assert case["expect"].startswith("error:"), case["id"]
        apply.apply_gguf(case, converted(case["base"]), tmp_path / case["id"])
        with pytest.raises((FormatError, FileError, MismatchError)):
            Session(llm, tmp_path / case["id"] / "draft.gguf")
    Session(llm).close()


# --- damaged files ----------------------------------------------------------------------------------------------------

OPEN_ALL = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
import numpy as np
from dspark_cpp import Draft, DSparkError
source, scratch, what = sys.argv[1:]
whole = bytearray(open(source, "rb").read())
header = whole.find(b"output_norm.weight") + 4000
rng = np.random.default_rng(0)

def try_to_load(data):
    open(scratch, "wb").write(data)
    try:
        Draft(scratch).close()
        return True
    except DSparkError as e:
        assert str(e) and "\\n" not in str(e), repr(e)
        return False

if what == "truncated":
    cuts = [*range(0, 64), *range(64, header, 97), *range(header, len(whole), 4099), len(whole) - 1]
    for n in cuts:
        assert not try_to_load(whole[:n]), f"{n} of {len(whole)} bytes were taken for a draft"
elif what == "flipped":
    for _ in range(600):
        data = bytearray(whole)
        for at in rng.integers(0, header, rng.integers(1, 4)):
            data[at] = rng.integers(0, 256)
        try_to_load(data)
else:
    for size in (4, 24, 100, 5000):
        for _ in range(50):
            assert not try_to_load(b"GGUF" + rng.bytes(size))
    for size in range(0, 40):
        assert not try_to_load(rng.bytes(size))
print("done")
"""


@pytest.mark.parametrize("what", ["truncated", "flipped", "noise"])
def test_damaged_files_never_crash(
    what: str, tmp_path: Path, converted: Callable[..., Path], run_python: Callable[..., Any]
) -> None:
    done = run_python(OPEN_ALL, converted(BASE), tmp_path / "x.gguf", what, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "done"), done.stderr[-2000:]


def test_missing_foreign_and_empty_files(tmp_path: Path) -> None:
    refuse(tmp_path / "nowhere.gguf", "cannot open .*No such file or directory", FileError)
    refuse(tmp_path, "Is a directory|is a folder, expected a GGUF file", FileError)
    empty = tmp_path / "empty.gguf"
    empty.write_bytes(b"")
    refuse(empty, r"at least 4 bytes \(it has 0\)", FileError)
    foreign = tmp_path / "foreign.gguf"
    foreign.write_bytes(b"PK\3\4 a zip file")
    refuse(foreign, "not a GGUF file: it begins with the bytes 50 4b 03 04")


# --- confidence temperatures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1.0] * 6, "confidence_temperature has 6 values, expected one for each of 7 drafted tokens"),
        ([1.0] * 8, "confidence_temperature has 8 values, expected one for each of 7 drafted tokens"),
        ([1.0, 0.0, *[1.0] * 5], r"confidence_temperature\[1\] is 0, expected a positive number"),
        ([*[1.0] * 6, -2.0], r"confidence_temperature\[6\] is -2, expected a positive number"),
        ([float("nan"), *[1.0] * 6], r"confidence_temperature\[0\] is -?nan, expected a positive number"),
        ([1.0, float("inf"), *[1.0] * 5], r"confidence_temperature\[1\] is inf, expected a positive number"),
    ],
)
def test_temperatures_that_no_logit_can_be_divided_by_are_refused(
    values: list[float], said: str, tmp_path: Path, converted: Callable[..., Path]
) -> None:
    for name in ("deepspec-qwen3-vanilla", BASE):  # seven drafted tokens in either layout
        key = {"dflash.confidence_temperature": (values, GGUFValueType.ARRAY, FLOAT)}
        refuse(edit(converted(name), tmp_path / "x.gguf", keys=key), said)


def test_temperatures_of_another_type_or_of_no_head_are_refused(tmp_path: Path, converted: Callable[..., Path]) -> None:
    for value, said in (
        (([1] * 7, GGUFValueType.ARRAY, I32), "confidence_temperature is an array of i32, expected f32"),
        ((1.0, FLOAT), "confidence_temperature .*f32, expected array"),
    ):
        key = {"dflash.confidence_temperature": value}
        refuse(edit(converted(BASE), tmp_path / "x.gguf", keys=key), said)
    key = {"dflash.confidence_temperature": ([1.0] * 7, GGUFValueType.ARRAY, FLOAT)}
    refuse(
        edit(converted("spk-dflash"), tmp_path / "x.gguf", keys=key),
        "confidence_temperature is there but the tensor conf_proj.weight is missing",
    )
