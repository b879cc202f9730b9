"""The draft's context: the same rows give the same cache, bit for bit, however they arrive; limits and growth."""

from __future__ import annotations

from itertools import cycle

import numpy as np
import pytest
from compare import assert_same_bits
from crafted import craft, features
from gguf import GGMLQuantizationType as T

N_ROWS = 150  # more than a bulk injection takes, and some over
ANCHOR = 17
# heads of 32, so that every cache type is possible; widths of whole blocks, so that every weight type is
SHAPE = {"H": 64, "F": 96, "nq": 2, "nkv": 2, "d": 32, "R": 32, "S": 7}
WEIGHTS = [T.F32, T.F16, T.BF16, T.Q8_0, T.Q4_0]
CACHES = ["f32", "f16", "q8_0"]
SPLITS = {
    "ones": [1],
    "threes": [3],
    "sevens": [7],
    "thirty-twos": [32],
    "mixed": [2, 9, 1, 1, 5, 13, 4, 3],
    "with empty ones": [0, 8, 0, 5],
}


def chunks(n: int, sizes: list[int]):
    """Ranges covering 0..n-1, of the given sizes over and over."""
    start = 0
    for size in cycle(sizes):
        if start == n:
            return
        yield slice(start, min(start + size, n))
        start = min(start + size, n)


def state(draft, n_layer: int = 2) -> dict:
    return {f"{'V' if v else 'K'}.{il}": draft.cache_rows(il, v) for il in range(n_layer) for v in (False, True)}


@pytest.fixture(scope="module", params=WEIGHTS, ids=lambda t: t.name.lower())
def path(request, tmp_path_factory):
    kind = request.param
    return craft(tmp_path_factory.mktemp("crafted") / f"{kind.name}.gguf", weight_type=kind, **SHAPE)


@pytest.fixture(params=CACHES)
def cache_type(request):
    return request.param


def test_chunked_injection_is_bit_equal_to_whole(path, cache_type, probe):
    def open_draft():
        return probe.DraftProbe(str(path), type_k=cache_type, type_v=cache_type)

    rows = features(N_ROWS, 2 * SHAPE["H"])
    whole = open_draft()
    whole.append(rows)
    proposal = whole.propose(ANCHOR, with_logits=True)
    for name, sizes in SPLITS.items():
        draft = open_draft()
        for part in chunks(N_ROWS, sizes):
            draft.append(rows[part])
        what = f"{path.stem} weights, {cache_type} cache, split in {name}"
        assert draft.n_past == N_ROWS
        assert_same_bits(draft.propose(ANCHOR, with_logits=True), proposal, what)
        assert_same_bits(state(draft), state(whole), what)


def test_rounds_between_the_chunks_change_nothing(path, cache_type, probe):
    """As in real use: propose, append what was verified, rewind, propose."""
    rows = features(N_ROWS, 2 * SHAPE["H"])
    whole = probe.DraftProbe(str(path), type_k=cache_type, type_v=cache_type)
    whole.append(rows)
    draft = probe.DraftProbe(str(path), type_k=cache_type, type_v=cache_type)
    junk = features(8, 2 * SHAPE["H"], seed=5)
    for part in chunks(N_ROWS, [3, 1, 6]):
        draft.append(rows[part])
        draft.propose((ANCHOR + part.start) % 64)
        n = draft.n_past
        draft.append(junk)
        draft.rewind(n)
    what = f"{path.stem} weights, {cache_type} cache"
    assert_same_bits(draft.propose(ANCHOR, with_logits=True), whole.propose(ANCHOR, with_logits=True), what)
    assert_same_bits(state(draft), state(whole), what)


@pytest.mark.parametrize("n_verified, n_kept", [(8, 1), (8, 3), (8, 8), (3, 1), (4, 3), (1, 1), (20, 5)])
def test_inject_all_then_rewind_equals_inject_accepted_only(path, cache_type, probe, n_verified, n_kept):
    rows = features(N_ROWS, 2 * SHAPE["H"])
    n = 21
    drafts = []
    for n_new in (n_verified, n_kept):
        draft = probe.DraftProbe(str(path), type_k=cache_type, type_v=cache_type)
        draft.append(rows[:n])
        draft.propose(ANCHOR)
        draft.append(rows[n : n + n_new])
        draft.rewind(n + n_kept)
        drafts.append(draft)
    all_rows, accepted_rows = drafts
    what = f"{path.stem} weights, {cache_type} cache, {n_kept} of {n_verified} kept"
    proposal = accepted_rows.propose(ANCHOR, with_logits=True)
    assert_same_bits(all_rows.propose(ANCHOR, with_logits=True), proposal, what)
    assert_same_bits(state(all_rows), state(accepted_rows), what)


def test_proposing_does_not_change_the_context(path, cache_type, probe):
    draft = probe.DraftProbe(str(path), type_k=cache_type, type_v=cache_type)
    draft.append(features(N_ROWS, 2 * SHAPE["H"]))
    before = state(draft)
    first = draft.propose(ANCHOR, with_logits=True)
    other = draft.propose(ANCHOR + 1, with_logits=True)
    assert not np.array_equal(first["logits"], other["logits"]), "another anchor gave the same logits"
    what = f"{path.stem} weights, {cache_type} cache"
    assert_same_bits(draft.propose(ANCHOR, with_logits=True), first, f"{what}, third proposal")
    assert_same_bits(state(draft), before, what)
    assert draft.n_past == N_ROWS


def test_logits_on_request_do_not_change_the_ids(path, probe):
    draft = probe.DraftProbe(str(path))
    draft.append(features(N_ROWS, 2 * SHAPE["H"]))
    with_logits = draft.propose(ANCHOR, with_logits=True)
    without = draft.propose(ANCHOR)
    assert "logits" not in without
    assert without["ids"] == with_logits["ids"]
    assert_same_bits(without["confidence_logits"], with_logits["confidence_logits"], "confidences")


def test_replay_after_a_rewind_is_bit_equal(path, probe):
    rows = features(N_ROWS, 2 * SHAPE["H"])
    draft = probe.DraftProbe(str(path))
    draft.append(rows)
    first = draft.propose(ANCHOR, with_logits=True)
    before = state(draft)
    draft.rewind(10)
    draft.propose(3)
    draft.append(features(12, 2 * SHAPE["H"], seed=9))
    draft.rewind(10)
    draft.append(rows[10:])
    assert_same_bits(draft.propose(ANCHOR, with_logits=True), first, "after rewind and replay")
    assert_same_bits(state(draft), before, "after rewind and replay")


def test_two_contexts_do_not_see_each_other(path, probe):
    rows = features(N_ROWS, 2 * SHAPE["H"])
    alone = probe.DraftProbe(str(path))
    alone.append(rows)
    wanted = alone.propose(ANCHOR, with_logits=True)
    a, b = probe.DraftProbe(str(path)), probe.DraftProbe(str(path))
    for part in chunks(N_ROWS, [11]):
        a.append(rows[part])
        b.append(-rows[part])
        b.propose(ANCHOR)
    assert_same_bits(a.propose(ANCHOR, with_logits=True), wanted, "next to another context")


def test_threads_do_not_change_a_bit(path, probe):
    rows = features(N_ROWS, 2 * SHAPE["H"])
    results = []
    for n_threads in (1, 2):
        draft = probe.DraftProbe(str(path), n_threads=n_threads)
        draft.append(rows)
        results.append(draft.propose(ANCHOR, with_logits=True))
    assert_same_bits(results[1], results[0], "2 threads")
