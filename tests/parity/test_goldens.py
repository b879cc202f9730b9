"""The reference and the C++ graph against what the original implementations computed."""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_close, assert_same_ids
from goldens import DRAFTS, SLIDING_DRAFT, Golden, cpp_atol, feed
from reference import MASK_KINDS, inject, load_draft, propose

# torch computed the goldens in float32
REFERENCE_ATOL = 5e-5
BORROWED_ATOL = 0.02


def rounds_of(golden: Golden):
    """Every (position, mask kind or None, arrays) of a draft's goldens."""
    for p in golden.anchors:
        for mask in (None, *MASK_KINDS):
            if arrays := golden.round(p, mask):
                yield p, mask, arrays


def propose_all(draft, golden: Golden, n_inject_rows: int):
    """(position, number of rows that the round itself injected, goldens, proposal) in one growing C++ context."""
    for p in golden.anchors:
        n_waiting = feed(draft, golden.features, p, n_inject_rows)
        yield p, n_waiting, golden.round(p), draft.propose(int(golden.tokens[p]), with_logits=True)


@pytest.mark.parametrize("name", DRAFTS)
def test_reference_equals_goldens(name, golden, converted):
    g = golden(name)
    draft = load_draft(converted(name, True))
    context = inject(draft, g.features)
    assert_close(context.fused, g.arrays["fused"], REFERENCE_ATOL, f"{name}: fused")
    if "d2t_abs" in g.arrays:
        assert_same_ids(draft.d2t, g.arrays["d2t_abs"], f"{name}: d2t")
    checked = set()
    for p, mask, arrays in rounds_of(g):
        what = f"{name}: position {p}, mask {mask}"
        out = propose(draft, context, p, int(g.tokens[p]), mask)
        assert_same_ids(out.block_ids, arrays.pop("block_ids"), f"{what}, block_ids")
        assert_same_ids(out.ids, arrays.pop("draft_ids"), f"{what}, draft_ids")
        assert_close(out.hidden, arrays.pop("hidden"), REFERENCE_ATOL, f"{what}, hidden")
        assert_close(out.base_logits, arrays.pop("base_logits"), REFERENCE_ATOL, f"{what}, base_logits")
        assert_close(out.logits, arrays.pop("logits"), REFERENCE_ATOL, f"{what}, logits")
        top = np.sort(out.logits, axis=-1)
        assert_close(top[:, -1] - top[:, -2], arrays.pop("margin"), 2 * REFERENCE_ATOL, f"{what}, margin")
        if out.confidence is not None:
            assert_close(out.confidence, arrays.pop("conf_logits"), REFERENCE_ATOL, f"{what}, conf_logits")
        assert not arrays, f"{what}: goldens that nothing was compared with: {sorted(arrays)}"
        checked.add(mask)
    assert checked == ({None, *MASK_KINDS} - {"speculators"} if name == SLIDING_DRAFT else {None})


@pytest.mark.parametrize("name", DRAFTS)
def test_self_contained_draft_equals_goldens(name, golden, converted, probe, record_property):
    """The file has the very weights that the goldens were computed with, and needs no target."""
    g = golden(name)
    draft = probe.DraftProbe(str(converted(name, True)))
    atol = cpp_atol(name)
    for p, n_waiting, arrays, out in propose_all(draft, g, probe.n_inject_rows):
        what = f"{name}: position {p}"
        assert_same_ids(out["ids"], arrays["draft_ids"], f"{what}, ids")
        seen = {
            "fused": (draft.node("fused_ctx")[:n_waiting], g.arrays["fused"][p - n_waiting : p]),
            "hidden": (draft.node("block_out"), arrays["hidden"]),
            "base_logits": (draft.node("base_logits"), arrays["base_logits"][g.first_slot :]),
            "logits": (out["logits"], arrays["logits"]),
        }
        if "conf_logits" in arrays:
            seen["conf_logits"] = (out["confidence_logits"], arrays["conf_logits"])
        for key, (a, b) in seen.items():
            record_property(key, assert_close(a, b, atol, f"{what}, {key}"))
        assert bool(out["confidence_logits"]) == ("conf_logits" in arrays), f"{what}: confidences"


@pytest.mark.parametrize("name", DRAFTS)
def test_borrowing_draft_equals_goldens(name, golden, converted, target, probe, record_property):
    """With the target's embedding and head, which are not rounded to the draft's bf16."""
    g = golden(name)
    draft = probe.DraftProbe(str(converted(name, False)), target(g.target))
    for p, _, arrays, out in propose_all(draft, g, probe.n_inject_rows):
        what = f"{name}: position {p}"
        assert_same_ids(out["ids"], arrays["draft_ids"], f"{what}, ids")
        record_property("logits", assert_close(out["logits"], arrays["logits"], BORROWED_ATOL, f"{what}, logits"))


@pytest.mark.parametrize("name", DRAFTS)
def test_borrowing_draft_equals_the_reference_with_the_targets_tables(
    name, golden, converted, target, tiny_path, probe
):
    """Tight where the goldens allow only a loose comparison: the reference borrows too."""
    g = golden(name)
    path = converted(name, False)
    reference = load_draft(path, tiny_path(g.target))
    context = inject(reference, g.features)
    draft = probe.DraftProbe(str(path), target(g.target))
    for p, _, _, out in propose_all(draft, g, probe.n_inject_rows):
        wanted = propose(reference, context, p, int(g.tokens[p]))
        what = f"{name}: position {p}"
        assert_same_ids(out["ids"], wanted.ids, f"{what}, ids")
        assert_close(out["logits"], wanted.logits, cpp_atol(name), f"{what}, logits")
