"""The C++ graph node by node against the reference, f32 weights and cache."""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_close
from goldens import DRAFTS, cpp_atol, feed
from reference import inject, load_draft, propose


def cached(draft, layer: int, v: bool, heads: tuple[int, int]) -> np.ndarray:
    """The f32 cache of a layer as (n_past, nkv, d)."""
    return np.frombuffer(draft.cache_rows(layer, v), np.float32).reshape(-1, *heads)


@pytest.mark.parametrize("name", DRAFTS)
def test_every_named_node_equals_the_reference(name, golden, converted, probe, record_property):
    g = golden(name)
    path = converted(name, True)
    reference = load_draft(path)
    context = inject(reference, g.features)
    draft = probe.DraftProbe(str(path))
    atol = cpp_atol(name)
    for p in g.anchors:
        n_waiting = feed(draft, g.features, p, probe.n_inject_rows)
        draft.propose(int(g.tokens[p]))

        wanted = propose(reference, context, p, int(g.tokens[p])).nodes
        rows = slice(p - n_waiting, p)
        new = {"fused_ctx": context.fused[rows]}
        for il in range(reference.n_layer):
            new |= {f"k_ctx.{il}": context.k[il][rows], f"v_ctx.{il}": context.v[il][rows]}
        for node, value in new.items():
            seen = draft.node(node)
            assert seen is not None and len(seen) == probe.n_inject_rows, f"{node}: {seen}"
            # a single head is dropped from the shape
            seen = seen[:n_waiting].reshape(value.shape)
            record_property(node, assert_close(seen, value, atol, f"{name}: position {p}, {node}"))
        for node, value in wanted.items():
            seen = draft.node(node)
            assert seen is not None, f"the graph has no node {node}"
            record_property(node, assert_close(seen.reshape(value.shape), value, atol, f"{name}: position {p}, {node}"))


@pytest.mark.parametrize("name", DRAFTS)
def test_cache_holds_the_references_keys_and_values_at_their_positions(name, golden, converted, probe, record_property):
    g = golden(name)
    path = converted(name, True)
    reference = load_draft(path)
    context = inject(reference, g.features)
    draft = probe.DraftProbe(str(path))
    draft.append(g.features)
    heads = (reference.n_head_kv, reference.d)
    for il in range(reference.n_layer):
        for v, wanted in ((False, context.k[il]), (True, context.v[il])):
            what = f"{'V' if v else 'K'} of layer {il}"
            record_property(what, assert_close(cached(draft, il, v, heads), wanted, 1e-4, f"{name}: {what}"))


def test_unknown_node_is_none(golden, converted, probe):
    draft = probe.DraftProbe(str(converted(DRAFTS[0], True)))
    draft.append(golden(DRAFTS[0]).features[:3])
    draft.propose(1)
    assert draft.node("no_such_node") is None


def test_comparison_names_the_worst_index():
    wanted = np.zeros((2, 3))
    seen = wanted.copy()
    seen[1, 2] = 0.5
    with pytest.raises(AssertionError, match=r"x: max-abs 0\.5 at \(1, 2\) \(0\.5, expected 0\), allowed 0\.1"):
        assert_close(seen, wanted, 0.1, "x")
    seen[0, 1] = np.nan
    with pytest.raises(AssertionError, match=r"max-abs inf at \(0, 1\)"):
        assert_close(seen, wanted, 0.1, "x")
