"""Reduced draft vocabularies: d2t maps draft rows to target ids."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import llama_cpp
import numpy as np
import pytest
from compare import assert_close, assert_same_bits, assert_same_ids
from crafted import craft, features
from reference import inject, load_draft, propose

SHAPE = {"H": 64, "V": 96}
ROWS = features(20, 2 * SHAPE["H"])
ANCHOR = 11


def run(probe, path: Path) -> tuple[dict, object]:
    draft = probe.DraftProbe(str(path))
    draft.append(ROWS)
    return draft.propose(ANCHOR, with_logits=True), draft


@pytest.mark.parametrize("markov", ["vanilla", "gated", "rnn", None])
@pytest.mark.parametrize("anchor_first", [True, False])
def test_identity_map_equals_no_map_bit_for_bit(markov, anchor_first, tmp_path, probe):
    options = {"markov": markov, "anchor_first": anchor_first, "confidence": "markov" if markov else "hidden", **SHAPE}
    plain = craft(tmp_path / "plain.gguf", **options)
    mapped = craft(tmp_path / "mapped.gguf", tensors={"d2t": np.arange(SHAPE["V"])}, **options)
    assert_same_bits(run(probe, mapped)[0], run(probe, plain)[0], "identity d2t")


@pytest.mark.parametrize("markov", ["vanilla", "gated", "rnn", None])
@pytest.mark.parametrize("sorted_map", [True, False])
def test_reduced_vocabulary_equals_the_reference(markov, sorted_map, tmp_path, probe):
    tensors = {} if sorted_map else {"d2t": np.random.default_rng(4).permutation(SHAPE["V"])[:40]}
    path = craft(tmp_path / "draft.gguf", Vd=40, S=9, markov=markov, confidence=None, tensors=tensors, **SHAPE)
    reference = load_draft(path)
    wanted = propose(reference, inject(reference, ROWS), len(ROWS), ANCHOR)
    out, _ = run(probe, path)
    assert out["logits"].shape == (9, 40), "logits are in draft rows"
    assert_same_ids(out["ids"], wanted.ids, "ids")
    assert set(out["ids"]) <= set(reference.d2t.tolist())
    assert_close(out["logits"], wanted.logits, 1e-4, "logits")


def test_markov_table_is_indexed_by_target_ids(tmp_path, probe):
    """Case A5: row r of W1 holds the value r and W2 is all ones, so that every bias is the previous *target* id."""
    Vd = 40
    tensors = {"markov_w1": np.arange(SHAPE["V"])[:, None], "markov_w2": np.ones((Vd, 1))}
    # the confidence head reads the Markov embedding alone
    tensors |= {"conf_proj": np.eye(1, SHAPE["H"] + 1, SHAPE["H"]), "conf_proj.bias": [0.0]}
    for d2t in (np.arange(SHAPE["V"])[-Vd:], np.random.default_rng(4).permutation(SHAPE["V"])[:Vd]):
        path = craft(tmp_path / "draft.gguf", Vd=Vd, R=1, S=7, tensors={**tensors, "d2t": d2t}, **SHAPE)
        out, draft = run(probe, path)
        previous = [ANCHOR, *out["ids"][:-1]]
        for k, prev in enumerate(previous):
            assert_same_bits(draft.node(f"markov_bias.{k}"), np.full(Vd, prev, np.float32), f"bias of slot {k}")
        assert_close(out["confidence_logits"], previous, 0.0, "confidence of the previous id")
        # a bias that is the same for all rows moves no choice
        assert_same_ids(out["ids"], d2t[draft.node("base_logits").argmax(axis=1)], "ids")


def test_markov_bias_rows_are_draft_rows(tmp_path, probe):
    """W2 favours one draft row only: its target id is what comes out, slot after slot."""
    Vd, row = 40, 13
    w2 = np.zeros((Vd, 1))
    w2[row] = 1000.0
    tensors = {"markov_w1": np.ones((SHAPE["V"], 1)), "markov_w2": w2}
    path = craft(tmp_path / "draft.gguf", Vd=Vd, R=1, confidence=None, tensors=tensors, **SHAPE)
    d2t = load_draft(path).d2t
    assert run(probe, path)[0]["ids"] == [int(d2t[row])] * 5


@pytest.mark.parametrize("name", ["spk-dspark-bonus-dv96", "flat-dspark-bonus-dv112", "spk-dspark-gemma4"])
def test_converted_offsets_are_absolute_ids(name, golden, converted, probe):
    """Case A6: checkpoints hold offsets, the file absolute ids, and proposals are target ids."""
    g = golden(name)
    assert_same_ids(load_draft(converted(name, True)).d2t, g.arrays["d2t_abs"], f"{name}: d2t")
    draft = probe.DraftProbe(str(converted(name, True)))
    draft.append(g.features[:48])
    out = draft.propose(int(g.tokens[48]), with_logits=True)
    assert_same_ids(out["ids"], g.arrays["d2t_abs"][out["logits"].argmax(axis=1)], name)


@pytest.mark.parametrize(
    "d2t, message",
    [
        ([*range(39), -1], r"d2t\[39\] is -1, expected a token id below 96"),
        ([*range(39), 96], r"d2t\[39\] is 96, expected a token id below 96"),
        ([*range(39), 3], r"d2t\[39\] is 3, a token that an earlier row has already"),
        ([0] * 40, r"d2t\[1\] is 0, a token that an earlier row has already \(are these offsets"),
        ([*range(39)], r"39.*40|40.*39"),
    ],
    ids=["negative", "past the vocabulary", "twice", "offsets", "too short"],
)
def test_malformed_maps_are_refused(d2t, message, tmp_path, probe):
    """Cases A6 and A9: the scatter would write outside of the vocabulary."""
    path = craft(tmp_path / "draft.gguf", Vd=40, tensors={"d2t": np.array(d2t)}, **SHAPE)
    with pytest.raises(RuntimeError, match=f"DSPARK_ERROR_FORMAT: .*({message})"):
        probe.DraftProbe(str(path))


class Library:
    """scatter of the C API, which takes no part in the probe."""

    def __init__(self, path: str) -> None:
        self.lib = ctypes.CDLL(path)
        self.lib.dspark_last_error.restype = ctypes.c_char_p
        handles = (ctypes.c_void_p * 1)(llama_cpp.llama_cpp._lib._handle)
        self.check(self.lib.dspark_bind(handles, ctypes.c_size_t(1)))

    def check(self, status: int) -> None:
        if status != 0:
            raise ValueError(self.lib.dspark_last_error().decode())

    def scatter(self, path: Path, logits: np.ndarray, n_vocab: int, out: np.ndarray | None = None) -> np.ndarray:
        draft = ctypes.c_void_p()
        self.check(self.lib.dspark_draft_load(str(path).encode(), None, ctypes.byref(draft)))
        out = np.full(n_vocab, 7.0, np.float32) if out is None else out
        try:
            self.check(
                self.lib.dspark_draft_scatter_logits(
                    draft, logits.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p), n_vocab
                )
            )
        finally:
            self.lib.dspark_draft_free(draft)
        return out


@pytest.fixture(scope="module")
def library(probe) -> Library:
    """libdspark: in the installed package, or next to the probe in a build folder."""
    folders = [Path(probe.__file__).parent, *(Path(p) / "dspark_cpp" for p in sys.path)]
    for folder in folders:
        for name in ("libdspark.so", "libdspark.dylib"):
            if (folder / name).is_file():
                return Library(str(folder / name))
    pytest.fail(f"libdspark is in none of {[str(f) for f in folders]}")


def test_scatter_puts_draft_rows_at_their_target_ids(tmp_path, probe, library):
    d2t = np.random.default_rng(4).permutation(SHAPE["V"])[:40]
    path = craft(tmp_path / "draft.gguf", Vd=40, tensors={"d2t": d2t}, **SHAPE)
    out, _ = run(probe, path)
    for k, logits in enumerate(out["logits"]):
        wanted = np.full(SHAPE["V"], -np.inf, np.float32)
        wanted[d2t] = logits
        seen = library.scatter(path, np.ascontiguousarray(logits), SHAPE["V"])
        assert seen.tobytes() == wanted.tobytes(), f"slot {k}: they part at {np.flatnonzero(seen != wanted)[:5]}"
        assert int(seen.argmax()) == out["ids"][k]


def test_scatter_without_a_map_copies(tmp_path, library):
    path = craft(tmp_path / "draft.gguf", **SHAPE)
    logits = np.random.default_rng(1).standard_normal(SHAPE["V"]).astype(np.float32)
    assert_same_bits(library.scatter(path, logits, SHAPE["V"]), logits, "scatter")


@pytest.mark.parametrize("n_vocab", [-1, 0, 41, 95, 97])
def test_scatter_into_another_vocabulary_is_refused(n_vocab, tmp_path, library):
    path = craft(tmp_path / "draft.gguf", Vd=40, **SHAPE)
    out = np.full(200, 7.0, np.float32)
    with pytest.raises(ValueError, match=f"n_vocab is {n_vocab}, expected the target's 96"):
        library.scatter(path, np.zeros(40, np.float32), n_vocab, out)
    assert (out == 7.0).all(), "written to on an error"
