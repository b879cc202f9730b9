"""Types of the draft's K/V cache: rounding them costs few proposals (case A25)."""

from __future__ import annotations

import ctypes

import llama_cpp
import numpy as np
import pytest
from compare import assert_close
from crafted import craft, features
from dspark_cpp import Draft
from gguf import GGMLQuantizationType as T
from gguf.quants import dequantize
from reference import inject, load_draft

# proposals that agree with those of an f32 cache, of the same draft on the same rows
AGREEMENT = {"f16": 0.99, "bf16": 0.99, "q8_0": 0.95, "q4_0": 0.80}
TEXT = (
    b"The history of the Roman Empire begins with a small town on the river Tiber. Its people built roads, bridges and "
    b"aqueducts, and wrote down their laws.\n\nfor i in range(10):\n    print(i + 1)\n\nOnce upon a time there was a "
    b"little girl who lived in a village near the forest. Every day she walked to the well to fetch water."
)


def proposals(draft, tokens, rows, step: int = 1) -> np.ndarray:
    """(positions, K) ids at every step-th position."""
    ids = []
    for p in range(1, len(rows), step):
        draft.append(rows[draft.n_past : p])
        ids.append(draft.propose(int(tokens[p]))["ids"])
    return np.array(ids)


@pytest.mark.parametrize("cache_type", AGREEMENT)
def test_every_slot_agrees_with_an_f32_cache_on_a_trained_draft(cache_type, golden, converted, probe, record_property):
    g = golden("deepspec-gemma4")  # the oracle with heads of 32
    path = str(converted(g.name, True))
    wanted = proposals(probe.DraftProbe(path), g.tokens, g.features)
    seen = proposals(probe.DraftProbe(path, type_k=cache_type, type_v=cache_type), g.tokens, g.features)
    agreement = float((seen == wanted).mean())
    record_property("agreement", agreement)
    assert agreement >= AGREEMENT[cache_type], f"{cache_type}: {agreement:.1%} of {wanted.size} tokens as with f32"


@pytest.fixture(scope="module")
def demo(smollm_path, demo_draft_path):
    """SmolLM2, its draft, and the true features of a text: (address of the model, draft file, tokens, rows)."""
    lib = llama_cpp.llama_cpp._lib
    try:
        set_tap = lib["_Z30llama_set_embeddings_layer_inpP13llama_contextjb"]
        get_tap = lib["_Z30llama_get_embeddings_layer_inpP13llama_contextj"]
    except AttributeError:
        pytest.skip("this libllama does not export its layer-input taps under the Itanium ABI's name")
    set_tap.argtypes, set_tap.restype = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_bool], None
    get_tap.argtypes, get_tap.restype = [ctypes.c_void_p, ctypes.c_uint32], ctypes.POINTER(ctypes.c_float)

    layers = Draft(demo_draft_path, inspect=True).target_layers
    llm = llama_cpp.Llama(str(smollm_path), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
    for layer in layers:
        set_tap(llm.ctx, layer, True)
    tokens = llm.tokenize(TEXT, add_bos=False)
    llm.eval(tokens)
    shape = (len(tokens), llm.n_embd())
    rows = np.concatenate([np.ctypeslib.as_array(get_tap(llm.ctx, layer), shape) for layer in layers], axis=1)
    yield ctypes.cast(llm.model, ctypes.c_void_p).value, str(demo_draft_path), tokens, rows.copy()
    llm.close()


@pytest.fixture(scope="module")
def demo_f32(demo, probe):
    target, path, tokens, rows = demo
    return proposals(probe.DraftProbe(path, target), tokens, rows, 2)


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q4_0"])
def test_first_slot_agrees_with_an_f32_cache_on_the_demo_draft(cache_type, demo, demo_f32, probe, record_property):
    """Its later slots follow their predecessors, so that one early change counts many times."""
    target, path, tokens, rows = demo
    draft = probe.DraftProbe(path, target, type_k=cache_type, type_v=cache_type)
    seen = proposals(draft, tokens, rows, 2)
    same = seen == demo_f32
    record_property("agreement by slot", same.mean(axis=0).round(3).tolist())
    # of some forty rows one may be a tie
    n_other = int((~same[:, 0]).sum())
    assert n_other <= max(1, (1 - AGREEMENT[cache_type]) * len(same)), (
        f"{cache_type}: {n_other} of {len(same)} first tokens"
    )
    assert same.mean() >= AGREEMENT[cache_type] - 0.25, f"{cache_type}: {same.mean():.1%} of all tokens"


@pytest.mark.parametrize("cache_type", ["f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1"])
def test_cache_holds_the_rounded_keys_and_values(cache_type, tmp_path, probe, record_property):
    """K is stored after norm and rope, V as projected; nothing else is done to them."""
    path = craft(tmp_path / "draft.gguf", nq=2, nkv=2, d=32)
    rows = features(50, 128)
    context = inject(load_draft(path), rows)
    draft = probe.DraftProbe(str(path), type_k=cache_type, type_v=cache_type)
    draft.append(rows)
    # half a step between neighbouring values, in units of the largest value of a block
    step = {
        "f16": 2**-11,
        "bf16": 2**-8,
        "q8_0": 1 / 254,
        "q5_0": 1 / 16,
        "q5_1": 1 / 31,
        "q4_0": 1 / 8,
        "q4_1": 1 / 15,
    }
    kind = T[cache_type.upper()]
    for il in range(2):
        for v, wanted in ((False, context.k[il]), (True, context.v[il])):
            raw = np.frombuffer(draft.cache_rows(il, v), np.float16 if kind == T.F16 else np.uint8).reshape(50, -1)
            seen = dequantize(raw, kind).reshape(wanted.shape)
            largest = float(np.abs(wanted).max())
            what = f"{'V' if v else 'K'} of layer {il}"
            record_property(what, assert_close(seen, wanted, 1.1 * step[cache_type] * largest, what))


@pytest.mark.parametrize("type_k, type_v", [("f16", "q8_0"), ("q8_0", "f16"), ("f32", "f16"), ("q4_0", "f32")])
def test_keys_and_values_may_differ_in_type(type_k, type_v, golden, converted, probe):
    g = golden("deepspec-gemma4")
    path = str(converted(g.name, True))
    wanted = proposals(probe.DraftProbe(path), g.tokens, g.features, 5)
    seen = proposals(probe.DraftProbe(path, type_k=type_k, type_v=type_v), g.tokens, g.features, 5)
    assert (seen == wanted).mean() >= min(AGREEMENT.get(type_k, 1.0), AGREEMENT.get(type_v, 1.0))


@pytest.mark.parametrize("cache_type", ["q8_0", "q4_0"])
def test_block_types_are_refused_for_heads_that_are_no_multiple_of_32(cache_type, golden, converted, probe):
    path = str(converted("deepspec-qwen3-vanilla", True))
    message = f"DSPARK_ERROR_ARGUMENT: the draft's cache cannot have type {cache_type} with a head size of 16; expected"
    for types in ({"type_k": cache_type}, {"type_v": cache_type}):
        with pytest.raises(RuntimeError, match=message):
            probe.DraftProbe(path, **types)


@pytest.mark.parametrize("cache_type", ["i32", "f64", "q4_K", "iq2_xs"])
def test_types_that_no_cache_can_have_are_refused(cache_type, tmp_path, probe):
    path = craft(tmp_path / "draft.gguf", d=256, nq=1, nkv=1)
    with pytest.raises(RuntimeError, match=f"the draft's cache cannot have type {cache_type}"):
        probe.DraftProbe(str(path), type_k=cache_type)
