"""The end of the context, and the memory that a context takes."""

from __future__ import annotations

import ctypes
import re

import llama_cpp
import numpy as np
import pytest
from compare import assert_close, assert_same_bits
from crafted import craft, features
from reference import inject, load_draft, propose

SHAPE = {"H": 64, "F": 96, "nq": 4, "nkv": 2, "d": 16}
WIDTH = 2 * SHAPE["H"]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return craft(tmp_path_factory.mktemp("crafted") / "draft.gguf", S=8, anchor_first=False, **SHAPE)


@pytest.mark.parametrize("anchor_first, n_drafted", [(True, 8), (False, 7)], ids=["anchor-first", "1+N"])
@pytest.mark.parametrize("n_ctx", [40, 256, 512, 515])
def test_a_block_is_drafted_whole_or_not_at_all(tmp_path, probe, anchor_first, n_drafted, n_ctx):
    """Case A4: 1+N runs one slot more than it drafts, and that slot needs its cell too."""
    draft_file = craft(tmp_path / "draft.gguf", S=8, anchor_first=anchor_first, **SHAPE)
    rows = features(n_ctx, WIDTH)
    draft = probe.DraftProbe(str(draft_file), n_ctx=n_ctx)
    draft.append(rows[: n_ctx - 8])
    fits = draft.propose(5, with_logits=True)
    assert len(fits["ids"]) == n_drafted, f"with 8 cells left {len(fits['ids'])} tokens, expected {n_drafted}"
    assert draft.node("block_out").shape == (8, SHAPE["H"])

    unlimited = probe.DraftProbe(str(draft_file))
    unlimited.append(rows[: n_ctx - 8])
    assert_same_bits(fits, unlimited.propose(5, with_logits=True), "at the limit")

    draft.append(rows[n_ctx - 8 : n_ctx - 7])
    for n_left in range(7, -1, -1):
        out = draft.propose(5, with_logits=True)
        assert out["ids"] == [] and out["confidence_logits"] == [], f"with {n_left} cells left: {out['ids']}"
        if n_left:
            draft.append(rows[draft.n_past : draft.n_past + 1])
    assert draft.n_past == n_ctx


def test_what_was_near_the_limit_is_drafted_again_after_a_rewind(path, probe):
    rows = features(64, WIDTH)
    draft = probe.DraftProbe(str(path), n_ctx=64)
    draft.append(rows[:30])
    before = draft.propose(5, with_logits=True)
    draft.append(rows[30:])
    assert draft.propose(5)["ids"] == []
    draft.rewind(30)
    assert_same_bits(draft.propose(5, with_logits=True), before, "after the rewind")


@pytest.mark.parametrize("first_append", [1, 500, 600])
def test_growth_past_512_cells_keeps_results(path, probe, first_append):
    rows = features(1100, WIDTH)
    draft = probe.DraftProbe(str(path))
    draft.append(rows[:first_append])
    draft.propose(5)
    if first_append < 500:
        draft.append(rows[first_append:500])
    elif first_append > 500:
        draft.rewind(500)
    small = draft.kv_size
    before = draft.propose(5, with_logits=True)
    draft.append(rows[500:1100])
    assert draft.kv_size > small
    grown = draft.propose(5, with_logits=True)
    draft.rewind(500)
    assert_same_bits(draft.propose(5, with_logits=True), before, "before and after growth")

    at_once = probe.DraftProbe(str(path))
    at_once.append(rows)
    assert_same_bits(grown, at_once.propose(5, with_logits=True), "grown in steps and at once")
    draft.append(rows[500:1100])
    for v in (False, True):
        assert_same_bits(draft.cache_rows(1, v), at_once.cache_rows(1, v), f"cache, v={v}")


@pytest.mark.parametrize("n_last", [1, 2, 3, 4, 5])
def test_the_last_cells_can_be_filled_in_any_chunk(path, probe, n_last):
    """An injection handles a fixed number of rows; the unused ones must not fall behind the last cell."""
    rows = features(512, WIDTH)
    draft = probe.DraftProbe(str(path), n_ctx=512)
    draft.append(rows[: 512 - n_last])
    draft.flush()
    draft.append(rows[512 - n_last :])
    context = inject(load_draft(path), rows)
    for il in range(2):
        for v, wanted in ((False, context.k[il]), (True, context.v[il])):
            seen = np.frombuffer(draft.cache_rows(il, v), np.float32).reshape(wanted.shape)
            assert_close(seen, wanted, 1e-4, f"layer {il}, v={v}")


def test_long_contexts_equal_the_reference(path, probe, record_property):
    """Past several growths, and at every remainder of the cells that attention looks at."""
    rows = features(1100, WIDTH)
    reference = load_draft(path)
    context = inject(reference, rows)
    draft = probe.DraftProbe(str(path))
    for n in (247, 248, 249, 255, 256, 257, 504, 505, 513, 760, 1024, 1100):
        draft.append(rows[draft.n_past : n])
        out = draft.propose(9, with_logits=True)
        wanted = propose(reference, context, n, 9)
        record_property("logits", assert_close(out["logits"], wanted.logits, 1e-4, f"logits at position {n}"))
        record_property("block_out", assert_close(draft.node("block_out"), wanted.hidden, 1e-4, f"hidden at {n}"))


def test_memory_follows_use_and_not_the_context_size(path, probe):
    rows = features(600, WIDTH)
    sizes = []
    for n_ctx in (0, 4096, 1 << 20):
        draft = probe.DraftProbe(str(path), n_ctx=n_ctx)
        at_start = draft.kv_size
        draft.append(rows[:100])
        few = draft.kv_size
        draft.append(rows[100:])
        sizes.append((at_start, few, draft.kv_size))
    assert sizes[0] == sizes[1] == sizes[2]
    at_start, few, many = sizes[0]
    assert at_start == 0
    # 2 layers, K and V, f32, n_cells plus one spare cell
    row = 2 * 2 * SHAPE["nkv"] * SHAPE["d"] * 4
    assert few == pytest.approx(513 * row, rel=0.01)
    assert many == pytest.approx(1025 * row, rel=0.01)


def test_memory_does_not_exceed_what_n_ctx_needs(path, probe):
    draft = probe.DraftProbe(str(path), n_ctx=200)
    draft.append(features(190, WIDTH))
    assert draft.kv_size <= 257 * 2 * 2 * SHAPE["nkv"] * SHAPE["d"] * 4 * 1.01


def test_memory_is_independent_of_the_targets_context(golden, converted, tiny_path, probe):
    g = golden("spk-dspark-swa")
    sizes = []
    for n_ctx in (64, 1024):
        llm = llama_cpp.Llama(str(tiny_path(g.target)), n_ctx=n_ctx, verbose=False)
        draft = probe.DraftProbe(str(converted(g.name, False)), ctypes.cast(llm.model, ctypes.c_void_p).value)
        draft.append(g.features[:50])
        draft.propose(3)
        sizes.append(draft.kv_size)
        del draft
        llm.close()
    assert sizes[0] == sizes[1] > 0


@pytest.mark.parametrize("n_past, message", [(-1, "position -1, it holds 4"), (5, "position 5, it holds 4")])
def test_rewind_outside_the_context_is_refused(path, probe, n_past, message):
    draft = probe.DraftProbe(str(path))
    draft.append(features(4, WIDTH))
    with pytest.raises(RuntimeError, match=message):
        draft.rewind(n_past)
    assert draft.n_past == 4


def test_proposing_without_features_is_refused(path, probe):
    """Case B3: never a proposal from nothing."""
    draft = probe.DraftProbe(str(path))
    with pytest.raises(RuntimeError, match=r"DSPARK_ERROR_STATE: .*no target features"):
        draft.propose(3)
    draft.append(features(4, WIDTH))
    draft.rewind(0)
    with pytest.raises(RuntimeError, match="DSPARK_ERROR_STATE"):
        draft.propose(3)


@pytest.mark.parametrize("anchor", [-1, 96, 1 << 30])
def test_anchor_outside_the_vocabulary_is_refused(path, probe, anchor):
    draft = probe.DraftProbe(str(path))
    draft.append(features(4, WIDTH))
    with pytest.raises(RuntimeError, match=re.escape(f"the anchor is token {anchor}, expected 0 to 95")):
        draft.propose(anchor)
    assert len(draft.propose(95)["ids"]) == 7


def test_borrowing_draft_without_target_is_refused(golden, converted, probe):
    with pytest.raises(RuntimeError, match="DSPARK_ERROR_MISMATCH: .*no target was given"):
        probe.DraftProbe(str(converted("spk-dspark-swa", False)))
