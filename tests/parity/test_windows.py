"""Sliding windows and causality inside the block: the file's rule is the one that is run."""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_close, assert_same_bits, assert_same_ids
from crafted import craft, features, rewrite
from goldens import ATOL, SLIDING_DRAFT
from reference import MASK_KINDS, inject, load_draft, propose

WIDTH = 2 * 64
ANCHOR = 11
# what each rule is in a file whose layers 0 and 2 slide
KEYS_OF_KIND = {
    "speculators": {"attention.window_origin": "anchor", "attention.causal_pattern": [True, False, True]},
    "speculators_nc": {"attention.window_origin": "anchor"},
    "specforge": {"attention.window_origin": "query", "attention.causal_pattern": [True, False, True]},
    "llamacpp": {},
}
OWN_KEYS = ["attention.window_origin", "attention.causal_pattern"]


def run(probe, path, rows, anchor=ANCHOR):
    draft = probe.DraftProbe(str(path))
    draft.append(rows)
    out = draft.propose(anchor, with_logits=True)
    return out | {"hidden": draft.node("block_out")}


@pytest.mark.parametrize("kind", MASK_KINDS)
def test_each_rule_equals_its_goldens(kind, golden, converted, tmp_path, probe, record_property):
    """Without our own keys a file means what it means to llama.cpp."""
    g = golden(SLIDING_DRAFT)
    own = kind == g.info["attention_mask_kind"]
    path = rewrite(converted(g.name, True), tmp_path / "draft.gguf", drop_keys=OWN_KEYS, keys=KEYS_OF_KIND[kind])
    n_checked = 0
    for p in g.anchors:
        if not (arrays := g.round(p, None if own else kind)):
            continue
        out = run(probe, path, g.features[:p], int(g.tokens[p]))
        what = f"rule {kind}, position {p}"
        assert_same_ids(out["ids"], arrays["draft_ids"], what)
        for key, name in (("hidden", "hidden"), ("logits", "logits"), ("confidence_logits", "conf_logits")):
            record_property(key, assert_close(out[key], arrays[name], ATOL, f"{what}, {name}"))
        n_checked += 1
    assert n_checked > 0


def test_converter_writes_the_rule_that_the_draft_was_trained_with(golden, converted):
    g = golden(SLIDING_DRAFT)
    draft = load_draft(converted(g.name, False))
    origin, causal = MASK_KINDS[g.info["attention_mask_kind"]]
    slides = tuple(kind == "sliding_attention" for kind in g.info["layer_types"])
    assert draft.window == g.info["sliding_window"]
    assert draft.slides == slides
    assert draft.window_origin == origin
    assert draft.causal == tuple(causal and s for s in slides)


def test_the_window_matters(golden, converted, tmp_path, probe):
    """Case B13: sliding layers run as full attention lose their acceptance past the window."""
    g = golden(SLIDING_DRAFT)
    path = converted(g.name, True)
    full = rewrite(path, tmp_path / "full.gguf", keys={"attention.sliding_window_pattern": [False] * 3})
    reference = load_draft(path)
    context = inject(reference, g.features)
    for p in g.anchors:
        anchor = int(g.tokens[p])
        windowed, unwindowed = (run(probe, f, g.features[:p], anchor)["logits"] for f in (path, full))
        wanted = propose(reference, context, p, anchor)
        assert_close(windowed, wanted.logits, ATOL, f"position {p}")
        if p > reference.window:
            assert np.abs(windowed - unwindowed).max() > 0.1, f"the window of {reference.window} has no effect at {p}"


@pytest.mark.parametrize("n", [1, 3, 4, 5, 40])
@pytest.mark.parametrize("window", [1, 4, 9, 30])
@pytest.mark.parametrize("causal", [[False] * 3, [True, False, False], [False, True, True]], ids=str)
@pytest.mark.parametrize("origin", ["query", "anchor"])
def test_windows_and_causality_of_every_layer_equal_the_reference(origin, causal, window, n, tmp_path, probe):
    """Windows shorter than the block too, which move inside it or hold still."""
    keys = {
        "attention.sliding_window": window,
        "attention.sliding_window_pattern": [True, False, True],
        "attention.causal_pattern": causal,
        "attention.window_origin": origin,
    }
    path = craft(tmp_path / "draft.gguf", L=3, S=9, keys=keys)
    reference = load_draft(path)
    rows = features(n, WIDTH)
    out = run(probe, path, rows)
    wanted = propose(reference, inject(reference, rows), n, ANCHOR)
    assert_close(out["hidden"], wanted.hidden, ATOL, "hidden")
    assert_close(out["logits"], wanted.logits, ATOL, "logits")


@pytest.mark.parametrize("origin, n_seen", [("query", 9), ("anchor", 10)])
def test_rows_before_the_window_are_never_read(origin, n_seen, tmp_path, probe):
    """Window 10: a moving one reaches slot 0 itself and 9 context rows, one fixed at the anchor 10 context rows."""
    keys = {
        "attention.sliding_window": 10,
        "attention.sliding_window_pattern": [True],
        "attention.window_origin": origin,
    }
    # one layer, so that slots cannot hear of the row from each other
    path = craft(tmp_path / "draft.gguf", L=1, keys=keys)
    rows = features(50, WIDTH)
    base = run(probe, path, rows)
    changed = rows.copy()
    changed[: 50 - n_seen] = 3.0 * features(50 - n_seen, WIDTH, seed=8)
    assert_same_bits(run(probe, path, changed), base, "rows before the window were changed")
    changed[50 - n_seen] *= -1
    moved = np.abs(run(probe, path, changed)["hidden"] - base["hidden"]).max(axis=1)
    assert moved[0] > 1e-4, "slot 0 does not see the first row of the window"
    if origin == "query":
        assert moved[1:].max() == 0.0, "the window does not move with the slots"
    else:
        assert moved.min() > 1e-4, "the window moves although it is fixed at the anchor"


def test_causal_slots_do_not_see_later_ones(tmp_path, probe):
    """So that a shorter block gives the same first slots, which it does not without causality."""
    rows = features(30, WIDTH)
    for keys in ({"attention.causal": True}, {"attention.causal_pattern": [True, True]}, {}):
        hidden = [
            run(probe, craft(tmp_path / "draft.gguf", S=n_slots, keys=keys), rows)["hidden"][:4] for n_slots in (4, 9)
        ]
        if keys:
            assert_close(hidden[0], hidden[1], 1e-5, f"{keys}: first slots of a short and of a long block")
        else:
            assert np.abs(hidden[0] - hidden[1]).max() > 1e-2


def test_causal_pattern_goes_before_the_common_flag(tmp_path, probe):
    rows = features(30, WIDTH)
    outs = []
    for keys in ({"attention.causal": True, "attention.causal_pattern": [False, False]}, {"attention.causal": False}):
        outs.append(run(probe, craft(tmp_path / "draft.gguf", keys=keys), rows))
    assert_same_bits(outs[0], outs[1], "pattern of false")


@pytest.mark.parametrize(
    "keys, message",
    [
        ({"attention.window_origin": "slot"}, r'window_origin is "slot", expected query or anchor'),
        ({"attention.sliding_window": 8}, "sliding_window_pattern"),
        ({"attention.sliding_window": 8, "attention.sliding_window_pattern": [True]}, "sliding_window_pattern"),
        ({"attention.causal_pattern": [True]}, "causal_pattern"),
    ],
    ids=["origin", "no pattern", "short pattern", "short causal pattern"],
)
def test_half_described_windows_are_refused(keys, message, tmp_path, probe):
    with pytest.raises(RuntimeError, match=f"DSPARK_ERROR_FORMAT: .*{message}"):
        probe.DraftProbe(str(craft(tmp_path / "draft.gguf", keys=keys)))
