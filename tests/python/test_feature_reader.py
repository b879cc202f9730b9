"""FeatureReader: the features are those that a session's draft is given, the likely tokens those of the logits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dspark_cpp
import llama_cpp
import numpy as np
import pytest
from dspark_cpp import ArgumentError, ContextFullError, MismatchError, Session, StateError
from dspark_cpp.features import FeatureReader
from scripted import PROMPT, Recorder


def test_features_are_those_of_the_reference_and_of_a_session(
    open_tiny: Callable[..., Any], oracles: Path, golden_json: Callable[[str], Any]
) -> None:
    golden = np.load(oracles / "drafts" / "deepspec-qwen3-vanilla" / "golden.npz")
    layers = golden_json("deepspec-qwen3-vanilla")["layer_inputs"]
    tokens = golden["tokens"][:-1]
    llm = open_tiny(type_k=0, type_v=0)  # f32, as the reference's
    with FeatureReader(llm, layers) as reader:
        read = reader.read(tokens)
        assert reader.feature_source == "layer taps"
    np.testing.assert_allclose(read.features, golden["features"], atol=2e-5)
    recorder = Recorder(lambda *_: [], target_layers=layers)
    with Session(llm, recorder) as session:
        session.append(tokens)
        session.next()
        np.testing.assert_array_equal(read.features, recorder.features())


def test_the_evaluation_callback_gives_the_same(open_tiny: Callable[..., Any]) -> None:
    llm = open_tiny(tap=True)
    found = []
    for source in ("taps", "eval"):
        with FeatureReader(llm, [0, 3, 5], feature_source=source) as reader:
            found.append(reader.read(PROMPT, top_k=4))
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("n_batch", [512, 9])
def test_likely_tokens_are_the_softmax_of_the_logits(open_tiny: Callable[..., Any], n_batch: int) -> None:
    llm = open_tiny(n_batch=n_batch, logits_all=True)
    llm.eval(PROMPT)
    logits = np.array(llm.scores[: len(PROMPT)], np.float64)
    llm.reset()
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    with FeatureReader(llm, [1]) as reader:
        for first in (0, 5, len(PROMPT) - 1, len(PROMPT)):
            read = reader.read(PROMPT, first_row=first, top_k=7)
            assert read.features.shape == (len(PROMPT), llm.n_embd())
            assert read.top_ids.shape == (len(PROMPT) - first, 7)
            order = np.argsort(-logits[first:], axis=1, kind="stable")[:, :7]
            np.testing.assert_array_equal(read.top_ids, order)
            wanted = np.take_along_axis(probs[first:], order, axis=1)
            np.testing.assert_allclose(read.top_probs, wanted, rtol=2e-5)


def test_the_whole_vocabulary_sums_to_one(open_tiny: Callable[..., Any]) -> None:
    with FeatureReader(open_tiny(), [1]) as reader:
        read = reader.read(PROMPT, top_k=320)
    np.testing.assert_allclose(read.top_probs.sum(1), 1, rtol=1e-5)
    assert (np.sort(read.top_ids, axis=1) == np.arange(320)).all()


def test_a_sequence_does_not_depend_on_the_one_before(open_tiny: Callable[..., Any]) -> None:
    with FeatureReader(open_tiny(), [2]) as reader:
        first = reader.read(PROMPT, top_k=2)
        reader.read([5, 6, 7], top_k=2)
        for a, b in zip(first, reader.read(PROMPT, top_k=2), strict=True):
            np.testing.assert_array_equal(a, b)


def test_wrong_calls_are_refused_in_a_sentence(open_tiny: Callable[..., Any]) -> None:
    llm = open_tiny(n_ctx=256)
    with pytest.raises(MismatchError, match="input of layer 99"):
        FeatureReader(llm, [99])
    with pytest.raises(ArgumentError, match="feature_source is"):
        FeatureReader(llm, [1], feature_source="other")
    with pytest.raises(ArgumentError, match="n_layers is 0"):
        FeatureReader(llm, [])
    with FeatureReader(llm, [1]) as reader:
        with pytest.raises(StateError, match="already has a session"):
            FeatureReader(llm, [1])
        with pytest.raises(StateError, match="already has a session"):
            Session(llm)
        with pytest.raises(ArgumentError, match="token 1 of the input is 999"):
            reader.read([1, 999])
        with pytest.raises(ArgumentError, match="expected 1 to 256"):
            reader.read([])
        with pytest.raises(ContextFullError, match="has 257 tokens"):
            reader.read([1] * 257)
        with pytest.raises(ArgumentError, match="first_row is 3"):
            reader.read([1, 2], first_row=3)
        with pytest.raises(ArgumentError, match="top_k is 321, expected 0 to 320"):
            reader.read([1, 2], top_k=321)
        assert reader.read([1, 2]).features.shape == (2, llm.n_embd())
    with pytest.raises(StateError, match="the feature reader is closed"):
        reader.read([1])
    reader.close()


def test_the_target_may_be_closed_first(tiny_path: Callable[[str], Path]) -> None:
    llm = llama_cpp.Llama(str(tiny_path("target-qwen3")), n_ctx=64, verbose=False)
    reader = FeatureReader(llm, [1])
    llm.close()
    with pytest.raises(StateError, match="closed"):
        reader.read([1])
    reader.close()


def test_gemma_needs_and_has_the_callback(open_tiny: Callable[..., Any]) -> None:
    llm = open_tiny("target-gemma4")
    tapped = dspark_cpp.open_target(llm.model_path, n_ctx=256, n_threads=1, verbose=False)
    with FeatureReader(tapped, [1, 2]) as reader:
        read = reader.read([2, 5, 9], first_row=2, top_k=3)
        assert read.features.shape == (3, 2 * llm.n_embd()) and np.isfinite(read.features).all()
    tapped.close()
