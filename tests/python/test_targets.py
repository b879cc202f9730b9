"""Features of the target: two sources with one result, the right rows of the right layers, and clear refusals."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import ArgumentError, Draft, DraftContext, MismatchError, Session, open_target
from dspark_cpp.convert import convert_checkpoint
from gguf import GGUFWriter
from gguf_edit import DROP, copy_tokenizer, edit, tensor
from safetensors.numpy import load_file, save_file
from scripted import PROMPT, Recorder, constant

F32 = 0  # ggml_type
N_LAYER = {"target-qwen3": 6, "target-gemma4": 5}
TEXT = [
    256,
    *b"The lighthouse at the end of the stone pier had two keepers, an old one and a young one. The old keeper",
]


def feature_rows(llm: Any, layers: list[int], tokens: list[int], source: str = "auto", n_rounds: int = 4) -> np.ndarray:
    """Rows of the prompt, and of a few rounds with rejected drafts behind it."""
    recorder = Recorder(lambda anchor, position, n_max: [7] * n_max, target_layers=layers)
    with Session(llm, recorder, feature_source=source) as session:
        assert session.feature_source == {"taps": "layer taps", "eval": "evaluation callback"}.get(
            source, session.feature_source
        )
        session.append(tokens)
        for _ in range(n_rounds):
            session.next()
        session.settle()
    return recorder.features()


# --- two sources ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_ubatch", [512, 16], ids=["one batch", "several inner batches"])
@pytest.mark.parametrize("target", N_LAYER)
def test_taps_and_evaluation_callback_give_equal_rows(
    target: str, n_ubatch: int, open_tiny: Callable[..., Any]
) -> None:
    layers = list(range(N_LAYER[target]))
    llm = open_tiny(target, tap=True, n_ubatch=n_ubatch)
    taps = feature_rows(llm, layers, TEXT, "taps")
    assert np.array_equal(feature_rows(llm, layers, TEXT, "eval"), taps)
    assert len({row.tobytes() for row in np.split(taps, len(layers), axis=1)}) == len(layers), "each layer is its own"


@pytest.mark.parametrize("source", ["taps", "eval"])
@pytest.mark.parametrize("layers", [[4, 2], [3, 3], [0], [5, 0, 1]], ids=str)
def test_rows_follow_the_order_of_the_list(source: str, layers: list[int], open_tiny: Callable[..., Any]) -> None:
    llm = open_tiny(tap=True)
    every = feature_rows(llm, list(range(6)), TEXT, "taps").reshape(-1, 6, 64)
    rows = feature_rows(llm, layers, TEXT, source).reshape(-1, len(layers), 64)
    assert np.array_equal(rows, every[:, layers])


@pytest.mark.parametrize("source", ["taps", "eval"])
@pytest.mark.parametrize(
    "name", ["deepspec-qwen3-vanilla", "specforge-dspark", "spk-dspark-bonus-dv96", "spk-dspark-gemma4"]
)
def test_features_equal_the_references(
    name: str,
    source: str,
    oracles: Path,
    golden_json: Callable[[str], dict[str, Any]],
    converted: Callable[..., Path],
    open_tiny: Callable[..., Any],
) -> None:
    golden = golden_json(name)
    with np.load(oracles / "drafts" / name / "golden.npz") as arrays:
        tokens, features = arrays["tokens"].tolist(), arrays["features"]
    layers = Draft(converted(name), inspect=True).target_layers
    assert list(layers) == golden["layer_inputs"]
    llm = open_tiny(golden["target"], tap=True, type_k=F32, type_v=F32)
    rows = feature_rows(llm, list(layers), tokens[:-1], source, n_rounds=0)
    off = np.abs(rows - features)
    # gemma4's GELU goes through a table of f16
    limit = 3e-3 if golden["target"] == "target-gemma4" else 2e-5
    assert off.max() < limit, f"off by {off.max()} at {np.unravel_index(off.argmax(), off.shape)}"


@pytest.mark.parametrize("target", N_LAYER)
def test_a11_the_tap_after_the_last_layer_is_the_residual_before_the_final_norm(
    target: str, open_tiny: Callable[..., Any], tiny_path: Callable[[str], Path]
) -> None:
    """Norm and head applied to the row give llama.cpp's own logits, for rows that have no logits too."""
    n_layer = N_LAYER[target]
    llm = open_tiny(target, tap=True, type_k=F32, type_v=F32, logits_all=True)
    rows = feature_rows(llm, [n_layer], TEXT, n_rounds=0)
    path = tiny_path(target)
    tied = target == "target-gemma4"
    head = tensor(path, "token_embd.weight" if tied else "output.weight").astype(np.float64)
    norm = tensor(path, "output_norm.weight").astype(np.float64)
    x = rows.astype(np.float64)
    logits = (x / np.sqrt((x**2).mean(axis=1, keepdims=True) + 1e-6) * norm) @ head.T
    if tied:
        logits = 20 * np.tanh(logits / 20)
    llm.reset()
    llm.eval(TEXT)
    off = np.abs(llm.scores[: len(TEXT)] - logits)
    assert off.max() < 1e-4, f"off by {off.max()} at {np.unravel_index(off.argmax(), off.shape)}"


@pytest.mark.parametrize("target", N_LAYER)
def test_a11_layers_beyond_the_last_are_refused(target: str, open_tiny: Callable[..., Any]) -> None:
    llm = open_tiny(target, tap=True)
    n_layer = N_LAYER[target]
    for layer in (n_layer + 1, -1, 10**6):
        with pytest.raises(MismatchError, match=f"input of layer {layer}, expected 0 to {n_layer}"):
            Session(llm, constant(7, target_layers=[layer]))
    Session(llm).close()


def test_a11_the_tap_after_the_last_layer_needs_the_callback(open_tiny: Callable[..., Any]) -> None:
    with pytest.raises(MismatchError, match=r"qwen3 target after its last layer.*open_target"):
        Session(open_tiny(), constant(7, target_layers=[6]))
    with pytest.raises(MismatchError, match="after its last layer"):
        Session(open_tiny(tap=True), constant(7, target_layers=[6]), feature_source="taps")


def test_the_callback_needs_a_target_that_was_opened_with_it(open_tiny: Callable[..., Any]) -> None:
    with pytest.raises(ArgumentError, match="feature tap"):
        Session(open_tiny(), constant(7, target_layers=[1]), feature_source="eval")


def test_an_open_target_is_an_ordinary_llama_when_no_session_reads_features(
    open_tiny: Callable[..., Any], plain_tokens: Callable[..., list[int]], continuation: Callable[..., list[int]]
) -> None:
    llm = open_tiny(tap=True)
    assert type(llm) is llama_cpp.Llama
    text = continuation("target-qwen3", PROMPT, 40)
    assert plain_tokens(llm, PROMPT, 40) == text
    feature_rows(llm, [6], TEXT)
    assert plain_tokens(llm, PROMPT, 40) == text, "after a session"
    params = llama_cpp.llama_context_default_params()
    assert not params.cb_eval_user_data, "the module's defaults are its own again"


# --- which layer is meant ---------------------------------------------------------------------------------------------


def repackage(oracles: Path, folder: Path, kind: str) -> Path:
    """The tensors of deepspec-qwen3-vanilla under another exporter's config."""
    source = oracles / "drafts" / "deepspec-qwen3-vanilla"
    flat = json.loads((source / "config.json").read_text())
    head_keys = ["markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov"]
    like = oracles / "drafts" / ("specforge-dspark" if kind == "z-lab" else "spk-dspark-anchor-full") / "config.json"
    if not like.exists():
        pytest.skip(f"{like.parent.name} is in the full oracle pack only")
    other = json.loads(like.read_text())
    if kind == "z-lab":  # outputs of layer i, nested
        config = other
        config["dflash_config"] |= {key: flat[key] for key in [*head_keys, "target_layer_ids", "mask_token_id"]}
    elif kind == "speculators":  # inputs of layer i
        config = other | {key: flat[key] for key in [*head_keys, "mask_token_id", "block_size"]}
        config["aux_hidden_state_layer_ids"] = [i + 1 for i in flat["target_layer_ids"]]
        config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = flat["block_size"]
    else:  # outputs of layer i, flat
        config = flat
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    if kind == "deepspec":
        shutil.copy(source / "model.safetensors", folder)
    else:
        tensors = load_file(source / "model.safetensors")
        own = ("embed_tokens.weight", "lm_head.weight")
        save_file({k: v for k, v in tensors.items() if k not in own}, folder / "model.safetensors")
    return folder


def test_a10_three_conventions_for_the_same_layers_give_the_same_rows_and_proposals(
    oracles: Path, tmp_path: Path, tiny_path: Callable[[str], Path], open_tiny: Callable[..., Any]
) -> None:
    with np.load(oracles / "drafts" / "deepspec-qwen3-vanilla" / "golden.npz") as arrays:
        tokens, features = arrays["tokens"].tolist(), arrays["features"]
    llm = open_tiny(type_k=F32, type_v=F32)
    rows, drafted = {}, {}
    for kind in ["deepspec", "z-lab", "speculators"]:
        out = tmp_path / f"{kind}.gguf"
        convert_checkpoint(repackage(oracles, tmp_path / kind, kind), tiny_path("target-qwen3"), out, outtype="f32")
        with Draft(out, target=llm) as draft:
            assert draft.target_layers == (2, 4, 5)
            rows[kind] = feature_rows(llm, list(draft.target_layers), tokens[:-1], n_rounds=0)
            with DraftContext(draft, llm, n_threads=1, type_k="f32", type_v="f32") as context:
                context.append(rows[kind])
                drafted[kind] = context.propose(tokens[-1], logits=True).logits
    for kind in rows:
        assert np.array_equal(rows[kind], rows["deepspec"])
        assert np.array_equal(drafted[kind], drafted["deepspec"])
    assert np.abs(rows["deepspec"] - features).max() < 2e-5


@pytest.mark.parametrize("layer", [7, 99])
def test_a_draft_that_taps_layers_the_target_has_not_is_refused(
    layer: int, tmp_path: Path, converted: Callable[..., Path], open_tiny: Callable[..., Any]
) -> None:
    path = edit(converted("spk-dspark-bonus-dv96"), tmp_path / "x.gguf", keys={"dflash.target_layers": [1, 3, layer]})
    with pytest.raises(MismatchError, match=f"input of layer {layer}, the target has layers 0 to 5"):
        Session(open_tiny(), path)


# --- other targets ----------------------------------------------------------------------------------------------------


def test_a18_a_tied_target_lends_its_embedding_as_the_head(
    tmp_path: Path, converted: Callable[..., Path], tiny_path: Callable[[str], Path], open_tiny: Callable[..., Any]
) -> None:
    """A DFlash draft without tables on target-gemma4, which has no output.weight, proposes as with its own copies."""
    heads = ["output.weight", "d2t", "markov_w1.weight", "markov_w2.weight", "conf_proj.weight", "conf_proj.bias"]
    keys = {"dflash.markov_head_type": DROP, "dflash.has_confidence_head": DROP}
    source = converted("spk-dspark-gemma4")
    borrowing = edit(source, tmp_path / "borrowing.gguf", drop=heads, keys=keys)
    table = tensor(tiny_path("target-gemma4"), "token_embd.weight")
    tables = {"token_embd.weight": table, "output.weight": table}
    owning = edit(source, tmp_path / "owning.gguf", drop=heads[1:], keys=keys, tensors=tables)
    llm = open_tiny("target-gemma4")
    rng = np.random.default_rng(0)
    seen = []
    for path, home in ((borrowing, "target's"), (owning, "own")):
        with Draft(path, target=llm) as draft, DraftContext(draft, llm, n_threads=1) as context:
            assert (draft.describe()["embedding"], draft.describe()["head"]) == (home, home)
            rng = np.random.default_rng(0)
            context.append(rng.standard_normal((30, draft.n_features), dtype=np.float32))
            seen.append(context.propose(65, logits=True).logits)
    assert seen[0] is not None and seen[0].shape == (5, 320)
    assert np.abs(seen[0] - seen[1]).max() < 1e-5


def test_an_architecture_without_taps_hands_out_features_through_the_callback(gemma3_path: Path) -> None:
    llm = open_target(gemma3_path, n_ctx=256, n_threads=2, n_threads_batch=2, verbose=False)
    try:
        tokens = llm.tokenize(b"The quick brown fox jumps over the lazy dog")
        n_layer = int(llm.metadata["gemma3.block_count"])
        rows = feature_rows(llm, [0, 1, n_layer // 2, n_layer], tokens, n_rounds=3)
        width = llm.n_embd()
        assert rows.shape == (len(tokens) + 2, 4 * width)
        assert np.isfinite(rows).all()
        # layer 0 receives the embeddings scaled by sqrt(width): the same token, the same row
        again = feature_rows(llm, [0], [tokens[0], tokens[3], tokens[3]], n_rounds=0)
        assert np.array_equal(again[1], again[2]) and np.array_equal(again[1], rows[3, :width])
        with Session(llm, constant(7, target_layers=[1])) as session:
            assert session.feature_source == "evaluation callback"
            drafted = list(session.generate(tokens, max_tokens=8, stop_at_eog=False))
        with Session(llm) as session:
            assert list(session.generate(tokens, max_tokens=8, stop_at_eog=False)) == drafted
    finally:
        llm.close()


def test_an_architecture_without_taps_is_refused_in_a_sentence_if_opened_as_usual(gemma3_path: Path) -> None:
    llm = llama_cpp.Llama(str(gemma3_path), n_ctx=128, n_threads=2, n_threads_batch=2, verbose=False)
    try:
        with pytest.raises(
            MismatchError, match=r"no layer-input taps for a gemma3 target.*dspark_cpp\.open_target\(\)"
        ):
            Session(llm, constant(7, target_layers=[1]))
        with pytest.raises(MismatchError, match="no layer-input taps for a gemma3 target"):
            Session(llm, constant(7, target_layers=[1]), feature_source="taps")
        with Session(llm, constant(7)) as session:  # needs no features
            assert len(list(session.generate([2, 651], max_tokens=3, stop_at_eog=False))) == 3
    finally:
        llm.close()


def test_a_llama_that_another_thread_opens_meanwhile_gets_no_tap(
    open_tiny: Callable[..., Any], smollm_path: Path
) -> None:
    """open_target() swaps a module's function for a moment; whoever called it then got the other target's tap."""
    opened: list[llama_cpp.Llama] = []
    thread = threading.Thread(target=lambda: opened.append(open_target(smollm_path, n_ctx=64, verbose=False)))
    thread.start()
    others = [open_tiny(n_ctx=64)]
    while thread.is_alive():
        others.append(open_tiny(n_ctx=64))
    thread.join()
    assert opened[0].context_params.cb_eval_user_data
    assert not any(llm.context_params.cb_eval_user_data for llm in others)
    opened[0].close()


def write_bert(tokenizer: Path, out: Path) -> Path:
    """An embedding model of one layer, of zeros."""
    width = 32
    w = GGUFWriter(out, "bert")
    copy_tokenizer(tokenizer, w)
    w.add_block_count(1)
    w.add_context_length(256)
    w.add_embedding_length(width)
    w.add_feed_forward_length(width)
    w.add_head_count(2)
    w.add_layer_norm_eps(1e-12)
    w.add_causal_attention(False)
    w.add_vocab_size(320)
    w.add_token_type_count(2)
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (320, width),
        "position_embd.weight": (256, width),
        "token_types.weight": (2, width),
    }
    for name in ("token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"):
        shapes |= {f"{name}.weight": (width,), f"{name}.bias": (width,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down"):
        shapes |= {f"blk.0.{name}.weight": (width, width), f"blk.0.{name}.bias": (width,)}
    for name, shape in shapes.items():
        w.add_tensor(name, np.zeros(shape, np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return out


def test_an_embedding_model_is_refused_as_a_target(tiny_path: Callable[[str], Path], tmp_path: Path) -> None:
    path = write_bert(tiny_path("target-qwen3"), tmp_path / "bert.gguf")
    llm = llama_cpp.Llama(str(path), embedding=True, n_ctx=256, verbose=False)
    try:
        for draft in (None, constant(7)):
            with pytest.raises(MismatchError, match="context has no memory .an embedding model.*it cannot generate"):
                Session(llm, draft)
    finally:
        llm.close()
