"""Slots, layouts, draft length and ties."""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_close, assert_same_bits, assert_same_ids
from crafted import craft, features, rewrite
from goldens import DRAFTS
from reference import inject, load_draft, propose

SHAPE = {"H": 64, "V": 96}
WIDTH = 2 * SHAPE["H"]
ROWS = features(20, WIDTH)
ANCHOR = 11


def propose_rows(draft, anchor: int, n_max: int = 1000) -> dict:
    """A proposal whose logits are (n, Vd) for n = 1 too."""
    out = draft.propose(anchor, n_max=n_max, with_logits=True)
    out["logits"] = out["logits"].reshape(len(out["ids"]), -1)
    return out


@pytest.mark.parametrize("name", DRAFTS)
@pytest.mark.parametrize("n_max", [1, 3, 6])
def test_n_max_gives_a_prefix_of_the_full_block(name, n_max, golden, converted, probe):
    """Case C17: the block is always run at its trained size."""
    g = golden(name)
    draft = probe.DraftProbe(str(converted(name, True)))
    for p in g.anchors:
        draft.append(g.features[draft.n_past : p])
        full = propose_rows(draft, int(g.tokens[p]))
        cut = propose_rows(draft, int(g.tokens[p]), n_max)
        assert len(cut["ids"]) == min(n_max, len(full["ids"]))
        prefix = {key: value[:n_max] for key, value in full.items()}
        assert_same_bits(cut, prefix, f"{name}: position {p}, n_max {n_max}")


@pytest.mark.parametrize("name", ["deepspec-qwen3-vanilla", "spk-dspark-bonus-dv96", "spk-dflash"])
def test_n_max_above_the_block_is_clamped(name, golden, converted, probe):
    g = golden(name)
    draft = probe.DraftProbe(str(converted(name, True)))
    draft.append(g.features[:48])
    full = draft.propose(int(g.tokens[48]), with_logits=True)
    assert len(full["ids"]) == g.info["draft_only"]["max_draft"]
    for n_max in (len(full["ids"]) + 1, 1000):
        assert_same_bits(draft.propose(int(g.tokens[48]), n_max=n_max, with_logits=True), full, f"{name}, {n_max}")


@pytest.mark.parametrize("n_max", [0, -1])
def test_n_max_below_one_is_refused(n_max, tmp_path, probe):
    draft = probe.DraftProbe(str(craft(tmp_path / "draft.gguf", **SHAPE)))
    draft.append(ROWS)
    with pytest.raises(RuntimeError, match=f"DSPARK_ERROR_ARGUMENT: n_max is {n_max}, expected 1 or more"):
        draft.propose(ANCHOR, n_max=n_max)


@pytest.mark.parametrize("markov", ["vanilla", "gated", "rnn", None])
@pytest.mark.parametrize(
    "anchor_first, block_size, n_drafted", [(True, 7, 7), (False, 8, 7), (True, 1, 1), (False, 2, 1)]
)
def test_both_layouts_run_the_whole_block_and_read_their_slots(
    markov, anchor_first, block_size, n_drafted, tmp_path, probe
):
    """Cases A1 and A2: anchor-first drafts B tokens from B slots, 1+N B - 1; both equal the reference."""
    confidence = "markov" if markov else "hidden"
    path = craft(
        tmp_path / "draft.gguf", S=block_size, anchor_first=anchor_first, markov=markov, confidence=confidence, **SHAPE
    )
    reference = load_draft(path)
    draft = probe.DraftProbe(str(path))
    draft.append(ROWS)
    out = propose_rows(draft, ANCHOR)
    wanted = propose(reference, inject(reference, ROWS), len(ROWS), ANCHOR)
    assert draft.node("block_out").size == block_size * SHAPE["H"], "number of slots that were run"
    assert draft.node("base_logits").size == n_drafted * SHAPE["V"], "number of slots with logits"
    assert_same_ids(out["ids"], wanted.ids, "ids")
    assert len(out["ids"]) == n_drafted
    assert_close(out["logits"], wanted.logits, 1e-4, "logits")
    assert_close(out["confidence_logits"], wanted.confidence, 1e-4, "confidence_logits")


def test_a_draft_says_itself_which_layout_it_has(tmp_path, probe):
    """Case A1: the same weights with the flag true, false and absent; the two layouts differ in their first token's
    logits, and absence means anchor-first for a draft with a Markov head, 1+N for plain DFlash."""
    outs = {}
    for markov in ("vanilla", None):
        for flag in (True, False, None):
            path = craft(tmp_path / f"{markov}-{flag}.gguf", anchor_first=flag, markov=markov, confidence=None, **SHAPE)
            draft = probe.DraftProbe(str(path))
            draft.append(ROWS)
            outs[markov, flag] = draft.propose(ANCHOR, with_logits=True)
            reference = load_draft(path)
            wanted = propose(reference, inject(reference, ROWS), len(ROWS), ANCHOR)
            assert_close(outs[markov, flag]["logits"], wanted.logits, 1e-4, f"markov {markov}, flag {flag}")
        assert np.abs(outs[markov, True]["logits"][0] - outs[markov, False]["logits"][0]).max() > 0.1
    assert_same_bits(outs["vanilla", None], outs["vanilla", True], "Markov head, flag absent")
    assert_same_bits(outs[None, None], outs[None, False], "plain DFlash, flag absent")


def test_layout_flag_of_an_oracle_draft_decides(golden, converted, tmp_path, probe):
    """With the other flag a trained draft gives the reference's result for that flag, not for its own."""
    g = golden("deepspec-qwen3-vanilla")
    own = converted(g.name, True)
    other = rewrite(own, tmp_path / "other.gguf", keys={"sample_from_anchor": False})
    p = 48
    for path, wanted_ids in ((own, g.round(p)["draft_ids"]), (other, None)):
        reference = load_draft(path)
        draft = probe.DraftProbe(str(path))
        draft.append(g.features[:p])
        out = draft.propose(int(g.tokens[p]), with_logits=True)
        wanted = propose(reference, inject(reference, g.features), p, int(g.tokens[p]))
        assert_same_ids(out["ids"], wanted.ids if wanted_ids is None else wanted_ids, path.name)
        assert_close(out["logits"], wanted.logits, 1e-4, path.name)


def test_slots_depend_on_the_anchor_and_on_every_context_row(tmp_path, probe):
    """Case A18, block mask: each slot sees the whole context and the whole block."""
    path = craft(tmp_path / "draft.gguf", **SHAPE)

    def hidden(rows, anchor=ANCHOR):
        draft = probe.DraftProbe(str(path))
        draft.append(rows)
        draft.propose(anchor)
        return draft.node("block_out")

    base = hidden(ROWS)
    assert (np.abs(hidden(ROWS, ANCHOR + 1) - base).max(axis=1) > 1e-4).all(), "a slot does not see the anchor"
    for row in range(len(ROWS)):
        changed = ROWS.copy()
        changed[row] *= -1
        moved = np.abs(hidden(changed) - base).max(axis=1)
        assert (moved > 1e-4).all(), f"context row {row} does not reach slot {moved.argmin()}"


@pytest.mark.parametrize("markov", ["vanilla", None])
def test_ties_go_to_the_lowest_row(markov, tmp_path, probe):
    """Equal heads and equal biases give equal logits, as greedy decoding of the target breaks ties too."""
    rng = np.random.default_rng(3)
    V, H, R = SHAPE["V"], SHAPE["H"], 8
    output = np.repeat(rng.standard_normal((1, H)), V, axis=0)
    w2 = np.repeat(rng.standard_normal((1, R)), V, axis=0)
    tensors = {"output": output} | ({"markov_w2": w2} if markov else {})
    path = craft(tmp_path / "all.gguf", markov=markov, confidence=None, tensors=tensors, **SHAPE)
    draft = probe.DraftProbe(str(path))
    draft.append(ROWS)
    out = draft.propose(ANCHOR, with_logits=True)
    assert np.ptp(out["logits"], axis=1).max() == 0.0
    assert out["ids"] == [0] * 5

    # pairs of equal rows: the even one of each pair
    tensors = {
        key: np.repeat(rng.standard_normal((V // 2, value.shape[1])), 2, axis=0) for key, value in tensors.items()
    }
    path = craft(tmp_path / "pairs.gguf", markov=markov, confidence=None, tensors=tensors, **SHAPE)
    draft = probe.DraftProbe(str(path))
    draft.append(ROWS)
    assert all(i % 2 == 0 for i in draft.propose(ANCHOR)["ids"])


def test_ties_go_to_the_lowest_draft_row_even_if_its_target_id_is_higher(tmp_path, probe):
    V, H, Vd = SHAPE["V"], SHAPE["H"], 40
    output = np.repeat(np.random.default_rng(3).standard_normal((1, H)), Vd, axis=0)
    d2t = np.arange(V, V - Vd, -1) - 1
    tensors = {"output": output, "markov_w2": np.zeros((Vd, 8)), "d2t": d2t}
    draft = probe.DraftProbe(str(craft(tmp_path / "draft.gguf", Vd=Vd, tensors=tensors, **SHAPE)))
    draft.append(ROWS)
    assert draft.propose(ANCHOR)["ids"] == [V - 1] * 5


def test_argmax_of_logits_takes_the_first_of_equal_values(probe):
    rng = np.random.default_rng(0)
    for n in (1, 2, 63, 64, 65, 1000):
        x = rng.integers(0, 4, n).astype(np.float32)
        assert probe.argmax(x) == int(np.argmax(x))
    assert probe.argmax(np.full(300, -np.inf, np.float32)) == 0


@pytest.mark.parametrize("anchor_first, block_size", [(True, 6), (False, 7)])
def test_confidences_are_divided_by_the_files_temperatures(anchor_first, block_size, tmp_path, probe):
    """One temperature a drafted token: in the 1+N layout the first belongs to slot 1."""
    temperature = [0.5, 2.0, 3.0, 1.0, 0.25, 8.0]
    plain = craft(tmp_path / "plain.gguf", S=block_size, anchor_first=anchor_first, **SHAPE)
    scaled = rewrite(plain, tmp_path / "scaled.gguf", keys={"confidence_temperature": temperature})
    outs = []
    for path in (plain, scaled):
        draft = probe.DraftProbe(str(path))
        draft.append(ROWS)
        outs.append(propose_rows(draft, ANCHOR))
        reference = load_draft(path)
        wanted = propose(reference, inject(reference, ROWS), len(ROWS), ANCHOR)
        assert_close(outs[-1]["confidence_logits"], wanted.confidence, 1e-4, f"confidences of {path.name}")
    raw, divided = (np.float32(out["confidence_logits"]) for out in outs)
    assert_same_bits(divided, raw / np.float32(temperature), "divided confidences")
    assert_same_ids(outs[0]["ids"], outs[1]["ids"], "ids")
    draft.append(ROWS[:0])
    assert_same_bits(propose_rows(draft, ANCHOR, 3)["confidence_logits"], outs[1]["confidence_logits"][:3], "a prefix")
