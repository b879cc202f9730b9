"""The draft in torch, which is what is trained, against the reference and the C++ graph, which is what is run."""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_close, assert_same_ids
from goldens import feed
from reference import inject, load_draft, propose

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'dspark-cpp-python[train]')")

# all Markov kinds and none, both layouts, with a reduced vocabulary and without
NAMES = (
    "deepspec-qwen3-vanilla",
    "deepspec-qwen3-gated",
    "deepspec-qwen3-rnn",
    "specforge-dspark",
    "spk-dflash",
    "spk-dspark-bonus-dv96",
)
ATOL = 1e-4


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def model(name, converted, tiny_path, golden):
    from dspark_cpp.convert.gguf_file import GGUFFile
    from dspark_cpp.train.initial import draft_from_draft
    from dspark_cpp.train.shape import draft_shape

    file = GGUFFile(converted(name))
    return draft_from_draft(file, GGUFFile(tiny_path(golden(name).target)), draft_shape(file)).eval()


@pytest.fixture
def reference(name, golden, converted, tiny_path):
    """The reference with the target's tables, as the training has them."""
    return load_draft(converted(name), tiny_path(golden(name).target))


def blocks(model, g):
    """Blocks of all anchors of a golden in one pass, as the training computes them: hidden, and what is proposed."""
    anchors = torch.tensor(np.array(g.anchors)[None], dtype=torch.int64)
    ids = torch.tensor(g.tokens[list(g.anchors)].astype(np.int64))[None]
    with torch.no_grad():
        hidden = model.hidden(torch.tensor(g.features)[None], anchors, ids)[0]
        return hidden, model.propose(hidden[:, model.shape.first_slot :], ids[0])


def test_torch_equals_the_reference(name, model, reference, golden):
    g = golden(name)
    context = inject(reference, g.features)
    hidden, (tokens, logits, confidence) = blocks(model, g)
    for i, p in enumerate(g.anchors):
        want = propose(reference, context, p, int(g.tokens[p]))
        assert_close(hidden[i].numpy(), want.hidden, ATOL, f"{name}: position {p}, hidden")
        assert_close(logits[i].numpy(), want.logits, ATOL, f"{name}: position {p}, logits")
        assert_same_ids(tokens[i].numpy(), want.ids, f"{name}: position {p}, tokens")
        if want.confidence is not None:
            assert_close(confidence[i].numpy(), want.confidence, ATOL, f"{name}: position {p}, confidence")


def test_torch_equals_the_graph(name, model, golden, converted, probe, target):
    g = golden(name)
    _, (tokens, logits, _) = blocks(model, g)
    draft = probe.DraftProbe(str(converted(name)), target(g.target))
    for i, p in enumerate(g.anchors):
        feed(draft, g.features, p, probe.n_inject_rows)
        got = draft.propose(int(g.tokens[p]), with_logits=True)
        assert_close(got["logits"], logits[i].numpy(), ATOL, f"{name}: position {p}, logits")
        assert_same_ids(got["ids"], tokens[i].numpy(), f"{name}: position {p}, tokens")


def test_logits_of_the_loss_are_those_of_drafting_where_the_tokens_are_its_own(name, model, golden):
    """Training feeds the Markov head with the response's tokens; with the drafted ones it gives what drafting gives."""
    g = golden(name)
    hidden, (tokens, logits, confidence) = blocks(model, g)
    anchor_ids = torch.tensor(g.tokens[list(g.anchors)].astype(np.int64))
    previous = torch.cat([anchor_ids[:, None], tokens[:, :-1]], dim=1)
    with torch.no_grad():
        again, again_confidence = model.logits(hidden[:, model.shape.first_slot :], previous)
    assert_close(again.numpy(), logits.numpy(), ATOL, f"{name}: logits")
    if confidence is not None:
        assert_close(again_confidence.numpy(), confidence.numpy(), ATOL, f"{name}: confidence")


def test_a_draft_with_parts_that_are_not_trained_is_refused(converted):
    from dspark_cpp.convert.gguf_file import GGUFFile
    from dspark_cpp.errors import FormatError
    from dspark_cpp.train.shape import draft_shape

    for name, part in (("spk-dspark-swa", "sliding_window"), ("flat-dspark-bonus-dv112", "token_embd")):
        with pytest.raises(FormatError, match=part):
            draft_shape(GGUFFile(converted(name)))
