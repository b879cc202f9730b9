"""Weights of every ggml type against the reference, which computes with the dequantised weights in float64.

ggml rounds the activations to the partner of the weight's type (f16, bf16, 8-bit blocks) before it multiplies, so the
difference is measured in the spread of what is compared: max-abs <= budget * rms.
"""

from __future__ import annotations

import numpy as np
import pytest
from compare import assert_close, assert_same_bits, assert_same_chain
from crafted import craft, features
from gguf import GGMLQuantizationType as T
from goldens import DRAFTS
from reference import inject, load_draft, propose
from reference.draft_file import read_tensors

# rows of 256 numbers everywhere: the largest block
SHAPE = {"H": 256, "F": 256, "nq": 4, "nkv": 2, "d": 64, "V": 160, "Vd": 96, "R": 256, "S": 5, "m": 1}
ROWS = features(20, SHAPE["H"])
ANCHOR = 11
BLOCK_BUDGET = 0.25
# fmt: off
BLOCK_TYPES = [
    "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "TQ1_0", "TQ2_0", "MXFP4", "NVFP4",
    "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
]
# fmt: on
BUDGETS = {T.F32: 1e-5, T.F16: 8e-3, T.BF16: 5e-2} | {T[name]: BLOCK_BUDGET for name in BLOCK_TYPES if hasattr(T, name)}


def compare_with(reference, path, budget, record_property, probe) -> None:
    context = inject(reference, ROWS)
    wanted = propose(reference, context, len(ROWS), ANCHOR)
    draft = probe.DraftProbe(str(path))
    draft.append(ROWS)
    out = draft.propose(ANCHOR, with_logits=True)

    def check(what, seen, value):
        rms = float(np.sqrt(np.mean(value * value)))
        diff = assert_close(np.asarray(seen).reshape(value.shape), value, budget * rms, what)
        record_property(what, diff / rms)

    for il in range(reference.n_layer):
        for v, value in ((False, context.k[il]), (True, context.v[il])):
            cells = np.frombuffer(draft.cache_rows(il, v), np.float32)
            check(f"{'V' if v else 'K'} of layer {il}", cells, value)
    for node in ("block_embd", "block_out", "base_logits", "markov_bias.0"):
        check(node, draft.node(node), wanted.nodes[node])
    # the confidence reads the same hidden states; its own spread over a few slots says little
    assert_close(out["confidence_logits"][0], wanted.confidence[0], 3 * budget, "first confidence")
    rms = float(np.sqrt(np.mean(wanted.logits**2)))
    assert_same_chain(out, wanted.logits, wanted.ids, budget * rms, path.stem)


@pytest.mark.parametrize("kind", BUDGETS, ids=lambda t: t.name.lower())
def test_weights_of_every_type_equal_the_reference(kind, tmp_path, probe, record_property):
    path = craft(tmp_path / f"{kind.name}.gguf", weight_type=kind, **SHAPE)
    compare_with(load_draft(path), path, BUDGETS[kind], record_property, probe)


@pytest.mark.parametrize("markov", ["gated", "rnn"])
@pytest.mark.parametrize("kind", [T.F16, T.BF16, T.Q8_0, T.Q4_0, T.Q6_K], ids=lambda t: t.name.lower())
def test_rounded_gates_and_states_equal_the_reference(kind, markov, tmp_path, probe, record_property):
    path = craft(tmp_path / f"{kind.name}.gguf", weight_type=kind, markov=markov, **SHAPE)
    compare_with(load_draft(path), path, BUDGETS[kind], record_property, probe)


@pytest.mark.skipif(not hasattr(T, "Q1_0"), reason="this gguf-py does not know Q1_0")
def test_one_bit_weights_equal_the_reference(tmp_path, probe, record_property):
    """gguf-py cannot read Q1_0: the weights are chosen such that the type holds them exactly."""
    plain = craft(tmp_path / "plain.gguf", **SHAPE)
    signs = {
        name: np.where(w < 0, -1.0, 1.0) * float(np.float16(np.abs(w).mean()))
        for name, w in read_tensors(plain).items()
        if w.ndim == 2
    }
    reference = load_draft(craft(tmp_path / "signs.gguf", tensors=signs, **SHAPE))
    path = craft(tmp_path / "Q1_0.gguf", weight_type=T.Q1_0, tensors=signs, **SHAPE)
    compare_with(reference, path, BLOCK_BUDGET, record_property, probe)


@pytest.mark.parametrize("kind", [T.I8, T.I16, T.I32, T.F64], ids=lambda t: t.name.lower())
def test_weights_of_other_types_are_refused(kind, tmp_path, probe):
    from gguf import GGUFReader, GGUFWriter

    source = craft(tmp_path / "plain.gguf")
    reader = GGUFReader(source)
    writer = GGUFWriter(tmp_path / "draft.gguf", "dflash")
    for name, f in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, f.contents(), f.types[0], f.types[1] if len(f.types) > 1 else None)
    numpy_type = {T.I8: np.int8, T.I16: np.int16, T.I32: np.int32, T.F64: np.float64}[kind]
    for t in reader.tensors:
        writer.add_tensor(t.name, t.data.astype(numpy_type) if t.name == "fc.weight" else np.asarray(t.data))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(RuntimeError, match=f"DSPARK_ERROR_FORMAT: .*fc.weight has type {kind.name.lower()}"):
        probe.DraftProbe(str(tmp_path / "draft.gguf"))


@pytest.mark.parametrize("outtype, agreement", [("bf16", 0.99), ("f16", 0.99), ("q8_0", 0.99)])
def test_rounded_oracle_drafts_propose_the_same(
    outtype, agreement, golden, tiny_path, tmp_path, probe, converted, record_property
):
    """Case A26: first-slot agreement with f32 over every position of every oracle draft."""
    from dspark_cpp.convert import convert_checkpoint

    n_same = n_seen = 0
    for name in DRAFTS:
        g = golden(name)
        path = tmp_path / f"{name}.gguf"
        convert_checkpoint(g.folder, tiny_path(g.target), path, outtype=outtype, self_contained=True)
        drafts = [probe.DraftProbe(str(p)) for p in (path, converted(name, True))]
        for p in range(1, len(g.tokens)):
            first = []
            for draft in drafts:
                draft.append(g.features[p - 1 : p])
                first.append(draft.propose(int(g.tokens[p]))["ids"][0])
            n_same += first[0] == first[1]
            n_seen += 1
    record_property("agreement", n_same / n_seen)
    assert n_same / n_seen >= agreement, f"{outtype}: {n_same} of {n_seen} first tokens as with f32"


def test_loading_twice_gives_the_same_bits(tmp_path, probe):
    outs = []
    for _ in range(2):
        draft = probe.DraftProbe(str(craft(tmp_path / "draft.gguf", weight_type=T.Q4_K, **SHAPE)))
        draft.append(ROWS)
        outs.append(draft.propose(ANCHOR, with_logits=True))
    assert_same_bits(outs[1], outs[0], "loaded again")


@pytest.mark.parametrize("name", ["spk-dspark-bonus-dv96", "deepspec-qwen3-vanilla"])
def test_a26_a_round_gathers_one_markov_row_a_slot(name, probe, golden, converted, target):
    """The whole table was once copied over for each lookup elsewhere: at most rank x block x 4 bytes a round here."""
    g = golden(name)
    draft = probe.DraftProbe(str(converted(name)), target(g.info["target"]))
    draft.append(g.features[:20])
    draft.propose(int(g.tokens[20]))
    gathered = draft.gathered_bytes("markov_w1.weight")
    assert 0 < gathered <= g.info["markov_rank"] * g.info["block_size"] * 4
