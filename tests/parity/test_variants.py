"""What no oracle draft has: random drafts with every optional part, node by node against the reference."""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_close, assert_same_bits, assert_same_ids
from crafted import craft, features
from goldens import ATOL, GELU_ATOL, feed
from reference import inject, load_draft, propose

H, NQ, D, R = 64, 4, 16, 8
WIDTH = 2 * H
N = 33
ANCHOR = 11

rng = np.random.default_rng(11)
SINKS = {f"blk.{il}.attn_sinks": rng.standard_normal(NQ) + 1.0 for il in range(2)}
POST_NORMS = {
    f"blk.{il}.{name}": 1.0 + 0.2 * rng.standard_normal(H)
    for il in range(2)
    for name in ("post_attention_norm", "post_ffw_norm")
}
LAYER_SCALE = {f"blk.{il}.layer_output_scale": [0.7 + 0.5 * il] for il in range(2)}
NO_V = [f"blk.{il}.attn_v" for il in range(2)]
PARTIAL = {"rope_freqs": [*np.ones(2), *np.full(D // 2 - 2, 1e30)]}
YARN = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
    "rope.freq_base": 1000.0,
}

# name: arguments of craft
VARIANTS = {
    "plain": {},
    "attention sinks": {"tensors": SINKS},
    "embedding scale": {"keys": {"embedding_scale": 8.0}},
    "attention scale": {"keys": {"attention.scale": 1.0}},
    "value scale": {"keys": {"attention.value_scale": 0.6}},
    "logit scale": {"keys": {"logit_scale": 0.3}},
    "softcap": {"keys": {"final_logit_softcapping": 3.0}},
    "softcap and logit scale": {"keys": {"final_logit_softcapping": 3.0, "logit_scale": 2.0}},
    "rope base": {"keys": {"rope.freq_base": 500000.0}},
    "partial rotary by divisors": {"tensors": PARTIAL},
    "partial rotary by dimension_count": {"keys": {"rope.dimension_count": 8}},
    "partial rotary by both": {
        "tensors": {"rope_freqs": [1, 2, 4, 1e30, 9, 9, 9, 9]},
        "keys": {"rope.dimension_count": 8},
    },
    "linear rope scaling": {"keys": {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}},
    "yarn": {"keys": YARN},
    "yarn with its own attention factor": {"keys": YARN | {"rope.scaling.yarn_attn_factor": 1.25}},
    "yarn with betas": {"keys": YARN | {"rope.scaling.yarn_beta_fast": 8.0, "rope.scaling.yarn_beta_slow": 0.5}},
    "yarn of half strength": {"keys": YARN | {"rope.scaling.yarn_ext_factor": 0.5}},
    "degenerate M-RoPE": {"keys": {"rope.dimension_sections": np.array([D // 2, 0, 0, 0], np.int32).tolist()}},
    "K = V": {"drop": NO_V},
    "K = V without value norm": {"drop": NO_V, "keys": {"attention.value_norm": False}},
    "value norm": {"keys": {"attention.value_norm": True}},
    "post norms": {"tensors": POST_NORMS},
    "layer scale": {"tensors": LAYER_SCALE},
    "gelu": {"keys": {"hidden_activation": "gelu"}},
    "gelu_pytorch_tanh": {"keys": {"hidden_activation": "gelu_pytorch_tanh"}},
    "gated": {"markov": "gated"},
    "rnn": {"markov": "rnn"},
    "gated, 1+N": {"markov": "gated", "anchor_first": False},
    "rnn, 1+N": {"markov": "rnn", "anchor_first": False},
    "one head": {"nq": 1, "nkv": 1},
    "as many K/V heads as heads": {"nkv": NQ},
    "one K/V head": {"nkv": 1},
    "head size not H / nq": {"d": 24},
    "one layer, one tap": {"L": 1, "m": 1},
    "large block": {"S": 33},
    "rank 1": {"R": 1},
    "odd vocabulary": {"V": 97, "Vd": 31},
    "epsilon": {"keys": {"attention.layer_norm_rms_epsilon": 0.1}},
    "all of Gemma 4": {
        "tensors": POST_NORMS | LAYER_SCALE | PARTIAL,
        "drop": NO_V,
        "nkv": 1,
        "keys": {
            "hidden_activation": "gelu_pytorch_tanh",
            "embedding_scale": 8.0,
            "attention.scale": 1.0,
            "final_logit_softcapping": 30.0,
        },
    },
}


def atol_of(options: dict) -> float:
    return GELU_ATOL if options.get("keys", {}).get("hidden_activation") == "gelu_pytorch_tanh" else ATOL


def compare_all(probe, path, atol, record_property, n: int = N) -> None:
    """Every named node, the cache, ids, logits and confidences."""
    reference = load_draft(path)
    rows = features(n, reference.weight("fc").shape[1])
    context = inject(reference, rows)
    draft = probe.DraftProbe(str(path))
    n_waiting = feed(draft, rows, n, probe.n_inject_rows)
    out = draft.propose(ANCHOR, with_logits=True)
    wanted = propose(reference, context, n, ANCHOR)

    values = {"fused_ctx": context.fused}
    for il in range(reference.n_layer):
        values |= {f"k_ctx.{il}": context.k[il], f"v_ctx.{il}": context.v[il]}
    values = {node: value[n - n_waiting :] for node, value in values.items()} | wanted.nodes
    for node, value in values.items():
        seen = draft.node(node)
        assert seen is not None, f"the graph has no node {node}"
        if node.split(".")[0] in ("fused_ctx", "k_ctx", "v_ctx"):
            seen = seen[:n_waiting]
        record_property(node, assert_close(seen.reshape(value.shape), value, atol, node))
    assert_same_ids(out["ids"], wanted.ids, "ids")
    assert_close(out["logits"].reshape(wanted.logits.shape), wanted.logits, atol, "logits")
    if wanted.confidence is not None:
        assert_close(out["confidence_logits"], wanted.confidence, atol, "confidence_logits")
    else:
        assert out["confidence_logits"] == []
    for il in range(reference.n_layer):
        for v, value in ((False, context.k[il]), (True, context.v[il])):
            seen = np.frombuffer(draft.cache_rows(il, v), np.float32).reshape(value.shape)
            assert_close(seen, value, ATOL, f"cache of layer {il}, v={v}")


@pytest.mark.parametrize("name", VARIANTS)
def test_variant_equals_the_reference_node_by_node(name, tmp_path, probe, record_property):
    options = VARIANTS[name]
    compare_all(probe, craft(tmp_path / "draft.gguf", **options), atol_of(options), record_property)


NEUTRAL = {"plain", "degenerate M-RoPE"}


@pytest.mark.parametrize(
    "name", [n for n, o in VARIANTS.items() if n not in NEUTRAL and o.keys() <= {"keys", "tensors"}]
)
def test_variant_matters(name, tmp_path, probe):
    """Else the comparison above would prove nothing about it."""
    rows = features(N, WIDTH)
    logits = []
    for options in (VARIANTS[name], {}):
        draft = probe.DraftProbe(str(craft(tmp_path / "draft.gguf", **options)))
        draft.append(rows)
        logits.append(draft.propose(ANCHOR, with_logits=True)["logits"])
    assert np.abs(logits[0] - logits[1]).max() > 1e-3, f"{name} changes nothing"


def test_degenerate_mrope_is_plain_rope(tmp_path, probe):
    rows = features(N, WIDTH)
    outs = []
    for name in ("plain", "degenerate M-RoPE"):
        draft = probe.DraftProbe(str(craft(tmp_path / "draft.gguf", **VARIANTS[name])))
        draft.append(rows)
        outs.append(draft.propose(ANCHOR, with_logits=True))
    assert_same_bits(outs[1], outs[0], "M-RoPE with sections (d/2, 0, 0, 0)")


@pytest.mark.parametrize("layout", [True, False], ids=["anchor-first", "1+N"])
@pytest.mark.parametrize("confidence", ["markov", "hidden", None])
@pytest.mark.parametrize("markov", ["vanilla", "gated", "rnn", None])
def test_heads_in_every_combination_equal_the_reference(markov, confidence, layout, tmp_path, probe, record_property):
    """Case A29: rank 0 with and without confidence, rank > 0 with both kinds of it and without."""
    path = tmp_path / "draft.gguf"
    if markov is None and confidence == "markov":
        craft(path, markov=None, confidence=confidence, anchor_first=layout)
        with pytest.raises(RuntimeError, match=f"conf_proj.weight has width {H + R}, expected {H} for a draft without"):
            probe.DraftProbe(str(path))
        return
    craft(path, markov=markov, confidence=confidence, anchor_first=layout)
    compare_all(probe, path, ATOL, record_property)


def test_confidence_without_bias_equals_the_reference(tmp_path, probe, record_property):
    compare_all(probe, craft(tmp_path / "draft.gguf", drop=["conf_proj.bias"]), ATOL, record_property)


def test_markov_state_starts_anew_with_every_block(tmp_path, probe):
    """rnn: the second proposal knows nothing of the first."""
    path = craft(tmp_path / "draft.gguf", markov="rnn")
    draft, fresh = probe.DraftProbe(str(path)), probe.DraftProbe(str(path))
    rows = features(N, WIDTH)
    draft.append(rows[:10])
    draft.propose(3)
    draft.append(rows[10:])
    fresh.append(rows)
    assert_same_bits(draft.propose(ANCHOR, with_logits=True), fresh.propose(ANCHOR, with_logits=True), "rnn")


@pytest.mark.parametrize("seed", range(1, 9))
def test_random_drafts_equal_the_reference(seed, tmp_path, probe, record_property):
    """Shapes and options drawn at random, at a random length."""
    draw = np.random.default_rng(seed)
    nkv = int(draw.integers(1, 4))
    markov = str(draw.choice(["vanilla", "gated", "rnn"]))
    path = craft(
        tmp_path / "draft.gguf",
        seed=seed,
        H=int(draw.integers(5, 40)) * 2,
        F=int(draw.integers(3, 150)),
        nq=nkv * int(draw.integers(1, 4)),
        nkv=nkv,
        d=2 * int(draw.integers(1, 20)),
        L=int(draw.integers(1, 5)),
        V=int(draw.integers(60, 130)),
        Vd=int(draw.integers(1, 60)),
        R=int(draw.integers(1, 20)),
        S=int(draw.integers(2, 12)),
        m=int(draw.integers(1, 6)),
        markov=markov,
        anchor_first=bool(draw.integers(2)),
    )
    compare_all(probe, path, ATOL, record_property, n=int(draw.integers(1, 200)))
