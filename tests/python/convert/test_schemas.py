"""What each schema means by its config: backbones, rope, windows, scales, side files, and the families refused."""

from __future__ import annotations

import io
import json
import math
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from convert_fixtures import (
    HEAD_DIM,
    N_EMBD,
    N_FF,
    N_HEAD,
    N_VOCAB,
    RANK,
    backbone_config,
    deepspec_config,
    draft_tensors,
    make_checkpoint,
    make_target,
    metadata,
)
from dspark_cpp.convert import ConvertReport, convert_checkpoint, describe_checkpoint
from dspark_cpp.convert.gguf_file import GGUFFile
from dspark_cpp.errors import FileError, FormatError, MismatchError


def convert(
    tmp_path: Path, config: dict[str, Any], tensors: dict[str, Any] | None = None, **options: Any
) -> ConvertReport:
    target = make_target(tmp_path / "target", **options.pop("target_extra", {}))
    draft = make_checkpoint(tmp_path / "draft", config, tensors)
    return convert_checkpoint(draft, target, tmp_path / "o.gguf", **options)


def dflash_config(inner: dict[str, Any] | None = None, **extra: Any) -> dict[str, Any]:
    base = {"mask_token_id": 37, "target_layer_ids": [0, 2, 4], **(inner or {})}
    return {**backbone_config(), "architectures": ["DFlashDraftModel"], "block_size": 7, "dflash_config": base, **extra}


def dflash_tensors() -> dict[str, np.ndarray]:
    return draft_tensors(markov=False, confidence=False)


# --- Gemma 4 ----------------------------------------------------------------------------------------------------------

GLOBAL_DIM = 16


def gemma_config(**extra: Any) -> dict[str, Any]:
    config = {
        **deepspec_config(),
        "architectures": ["Gemma4DSparkModel"],
        "model_type": "gemma4_text",
        "hidden_act": None,
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_k_eq_v": True,
        "global_head_dim": GLOBAL_DIM,
        "num_global_key_value_heads": 1,
        "num_key_value_heads": 2,
        "enable_moe_block": False,
        "hidden_size_per_layer_input": 0,
        "layer_types": ["full_attention"] * 2,
        "sliding_window": 64,
        "rope_parameters": {
            "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        },
        **extra,
    }
    return {k: v for k, v in config.items() if v is not None}


def gemma_tensors(k_eq_v: bool = True) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    out = {n: t for n, t in draft_tensors().items() if not n.startswith("layers.")}
    n_head_kv = 1 if k_eq_v else 2
    q, kv = N_HEAD * GLOBAL_DIM, n_head_kv * GLOBAL_DIM
    shapes = {
        "input_layernorm.weight": (N_EMBD,),
        "post_attention_layernorm.weight": (N_EMBD,),
        "pre_feedforward_layernorm.weight": (N_EMBD,),
        "post_feedforward_layernorm.weight": (N_EMBD,),
        "layer_scalar": (1,),
        "self_attn.q_proj.weight": (q, N_EMBD),
        "self_attn.k_proj.weight": (kv, N_EMBD),
        "self_attn.o_proj.weight": (N_EMBD, q),
        "self_attn.q_norm.weight": (GLOBAL_DIM,),
        "self_attn.k_norm.weight": (GLOBAL_DIM,),
        "mlp.gate_proj.weight": (N_FF, N_EMBD),
        "mlp.up_proj.weight": (N_FF, N_EMBD),
        "mlp.down_proj.weight": (N_EMBD, N_FF),
    }
    if not k_eq_v:
        shapes["self_attn.v_proj.weight"] = (kv, N_EMBD)
    for i in range(2):
        out |= {f"layers.{i}.{n}": rng.standard_normal(s, dtype=np.float32) for n, s in shapes.items()}
    return out


def test_gemma4_norms_scalar_and_rope_keep_their_roles(tmp_path: Path) -> None:
    tensors = gemma_tensors()
    file = GGUFFile(convert(tmp_path, gemma_config(final_logit_softcapping=30.0), tensors).path)
    roles = {
        "input_layernorm.weight": "attn_norm.weight",
        "post_attention_layernorm.weight": "post_attention_norm.weight",
        "pre_feedforward_layernorm.weight": "ffn_norm.weight",
        "post_feedforward_layernorm.weight": "post_ffw_norm.weight",
        "layer_scalar": "layer_output_scale.weight",
    }
    for theirs, ours in roles.items():
        assert np.array_equal(file.tensors["blk.1." + ours].whole(), tensors["layers.1." + theirs])
    assert file.tensors["rope_freqs.weight"].whole().tolist() == [1.0, 1.0] + [np.float32(1e30)] * 6
    values = {k: v.value for k, v in file.metadata.items()}
    assert values["dflash.embedding_scale"] == math.sqrt(N_EMBD)
    assert values["dflash.attention.scale"] == 1.0
    assert values["dflash.final_logit_softcapping"] == 30.0
    assert values["dflash.rope.dimension_count"] == GLOBAL_DIM
    assert values["dflash.rope.freq_base"] == 1e6
    assert values["dflash.hidden_activation"] == b"gelu_pytorch_tanh"
    assert values["dflash.attention.head_count_kv"] == 1
    # V is the raw K here, so its norm needs no key.
    assert "dflash.attention.value_norm" not in values
    assert "blk.0.attn_v.weight" not in file.tensors


def test_gemma4_with_its_own_v_says_that_v_is_normed(tmp_path: Path) -> None:
    file = GGUFFile(convert(tmp_path, gemma_config(attention_k_eq_v=False), gemma_tensors(k_eq_v=False)).path)
    assert file.metadata["dflash.attention.value_norm"].value is True
    assert file.metadata["dflash.attention.head_count_kv"].value == 2
    assert file.tensors["blk.0.attn_v.weight"].shape == (2 * GLOBAL_DIM, N_EMBD)


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        ({"global_head_dim": None}, "global_head_dim is missing"),
        ({"num_global_key_value_heads": None}, "num_global_key_value_heads is missing"),
        ({"enable_moe_block": True}, "enable_moe_block is true, but false is needed"),
        ({"hidden_size_per_layer_input": 8}, "hidden_size_per_layer_input is 8, but 0 is needed"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "sliding_attention"),
        ({"final_logit_softcapping": -1.0}, "final_logit_softcapping is -1.0, but a positive number"),
        ({"hidden_activation": "relu2"}, 'hidden_activation is "relu2", but one of silu'),
    ],
)
def test_gemma4_parts_that_drafts_do_not_have_are_refused(tmp_path: Path, extra: dict[str, Any], error: str) -> None:
    with pytest.raises(FormatError, match=error):
        convert(tmp_path, gemma_config(**extra), gemma_tensors())


def test_gemma4_v_projections_beside_k_as_v_are_refused(tmp_path: Path) -> None:
    tensors = gemma_tensors() | {"layers.0.self_attn.v_proj.weight": np.zeros((GLOBAL_DIM, N_EMBD), np.float32)}
    with pytest.raises(FormatError, match="attention_k_eq_v is true.*v_proj"):
        convert(tmp_path, gemma_config(), tensors)


# --- rope -------------------------------------------------------------------------------------------------------------


def rope_values(report: ConvertReport) -> dict[str, Any]:
    return {k.removeprefix("dflash.rope."): v for k, v in metadata(report.path).items() if ".rope." in k}


def test_rope_yarn_is_written_with_its_factors(tmp_path: Path) -> None:
    rope = {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 4.0,
        "original_max_position_embeddings": 32768,
        "beta_fast": 32,
        "beta_slow": 1.0,
        "attention_factor": 0.1 * math.log(4.0) + 1,
    }
    assert rope_values(convert(tmp_path, deepspec_config(rope_parameters=rope))) == {
        "scaling.type": b"yarn",
        "scaling.factor": 4.0,
        "scaling.original_context_length": 32768,
        "scaling.yarn_beta_fast": 32.0,
        "scaling.yarn_beta_slow": 1.0,
        "freq_base": 1e6,
    }


def test_rope_may_stand_in_the_old_place(tmp_path: Path) -> None:
    config = deepspec_config(rope_parameters=None, rope_theta=5e5, rope_scaling={"type": "linear", "factor": 2.0})
    assert rope_values(convert(tmp_path, config)) == {
        "scaling.type": b"linear",
        "scaling.factor": 2.0,
        "freq_base": 5e5,
    }


def test_rope_partial_rotation_is_the_number_of_rotated_dimensions(tmp_path: Path) -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    assert rope_values(convert(tmp_path, deepspec_config(rope_parameters=rope)))["dimension_count"] == HEAD_DIM // 2


def test_rope_llama3_becomes_divisors(tmp_path: Path) -> None:
    rope = {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    divisors = (
        GGUFFile(convert(tmp_path, deepspec_config(rope_parameters=rope)).path).tensors["rope_freqs.weight"].whole()
    )
    # Wavelengths 2 pi 5e5^(2j/8): 6.3 is under 64/4 and stays, 167 and up are over 64 and are slowed by the factor.
    assert divisors.tolist() == [1.0, 8.0, 8.0, 8.0]
    rope["original_max_position_embeddings"] = 400
    divisors = (
        GGUFFile(convert(tmp_path, deepspec_config(rope_parameters=rope)).path).tensors["rope_freqs.weight"].whole()
    )
    wavelength = 2 * math.pi * 5e5 ** (2 / 8)
    smooth = (400 / wavelength - 1) / 3
    assert divisors[1] == pytest.approx(1 / ((1 - smooth) / 8 + smooth))


def test_rope_of_an_m_rope_target_gets_one_section(tmp_path: Path) -> None:
    extra = {"rope_parameters": {"mrope_section": [2, 1, 1], "rope_theta": 1e6}}
    assert rope_values(convert(tmp_path, deepspec_config(), target_extra=extra))["dimension_sections"] == [4, 0, 0, 0]


@pytest.mark.parametrize(
    ("rope", "error"),
    [
        ({"rope_type": "default"}, "rope_theta is missing"),
        ({"rope_type": "dynamic", "rope_theta": 1e4}, 'rope_type is "dynamic", but one of default'),
        ({"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}, "original_max_position_embeddings is missing"),
        ({"rope_type": "linear", "rope_theta": 1e4}, "factor is missing"),
        ({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 1.5}, r"1.5, but a number in \(0, 1\]"),
        ({"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.3}, "2.4 rotated dimensions"),
        (
            {"full_attention": {"rope_theta": 1.0}, "sliding_attention": {"rope_theta": 2.0}},
            "one setting for all layers",
        ),
        (
            {
                "rope_type": "yarn",
                "rope_theta": 1e4,
                "factor": 4.0,
                "original_max_position_embeddings": 9,
                "attention_factor": 2,
            },
            "attention_factor is 2",
        ),
    ],
)
def test_rope_that_cannot_be_said_exactly_is_refused(tmp_path: Path, rope: dict[str, Any], error: str) -> None:
    with pytest.raises(FormatError, match=error):
        convert(tmp_path, deepspec_config(rope_parameters=rope))


def test_rope_at_two_places_must_agree(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="rope_theta.*must agree"):
        convert(tmp_path, deepspec_config(rope_theta=5e5))


# --- windows and causality --------------------------------------------------------------------------------------------


def window_values(report: ConvertReport) -> dict[str, Any]:
    keys = ("causal", "causal_pattern", "window_origin", "sliding_window", "sliding_window_pattern")
    return {k: v for k in keys if (v := metadata(report.path).get(f"dflash.attention.{k}")) is not None}


SLIDING = {"layer_types": ["sliding_attention", "full_attention"], "use_sliding_window": True, "sliding_window": 16}


def test_window_of_specforge_is_counted_from_the_query(tmp_path: Path) -> None:
    inner = {"mask_token_id": 37, "target_layer_ids": [0, 2, 4], "markov_rank": RANK}
    config = {
        **backbone_config(**SLIDING),
        "architectures": ["DSparkDraftModel"],
        "block_size": 7,
        "dflash_config": inner,
    }
    assert window_values(convert(tmp_path, config)) == {
        "causal": False,
        "causal_pattern": [True, False],
        "window_origin": b"query",
        "sliding_window": 16,
        "sliding_window_pattern": [True, False],
    }


@pytest.mark.parametrize("non_causal", [True, False])
def test_window_of_speculators_is_counted_from_the_anchor(tmp_path: Path, non_causal: bool) -> None:
    config = {
        **deepspec_config(target_layer_ids=None, aux_hidden_state_layer_ids=[1, 3, 5], **SLIDING),
        "sliding_window_non_causal": non_causal,
    }
    values = window_values(convert(tmp_path, config))
    assert values["window_origin"] == b"anchor"
    assert values["causal_pattern"] == [not non_causal, False]


def test_window_of_zlab_covers_all_layers(tmp_path: Path) -> None:
    inner = {"use_swa": True, "swa_window_size": 8}
    values = window_values(convert(tmp_path, dflash_config(inner), dflash_tensors()))
    assert values["sliding_window_pattern"] == [True, True]
    assert values["sliding_window"] == 8
    assert values["causal_pattern"] == [True, True]
    values = window_values(convert(tmp_path, dflash_config({**inner, "causal": False}), dflash_tensors()))
    assert values["causal_pattern"] == [False, False]


def test_causal_drafts_say_so_without_a_pattern(tmp_path: Path) -> None:
    assert window_values(convert(tmp_path, deepspec_config(is_causal=True))) == {"causal": True}
    assert window_values(convert(tmp_path, deepspec_config())) == {"causal": False}


@pytest.mark.parametrize(
    ("extra", "error"),
    [
        ({**SLIDING, "use_sliding_window": False}, "layer_types has sliding layers, but use_sliding_window is false"),
        ({**SLIDING, "sliding_window": None}, "sliding_window is missing"),
        (
            {**SLIDING, "layer_types": ["sliding_attention"] * 3},
            "layer_types has 3 entries, but num_hidden_layers is 2",
        ),
        (SLIDING, "full_attention in a DeepSpec draft"),
    ],
)
def test_windows_that_do_not_fit_are_refused(tmp_path: Path, extra: dict[str, Any], error: str) -> None:
    with pytest.raises(FormatError, match=error):
        convert(tmp_path, deepspec_config(**extra))


def test_an_inherited_window_without_sliding_layers_is_inert(tmp_path: Path) -> None:
    config = deepspec_config(layer_types=["full_attention"] * 2, sliding_window=4096, use_sliding_window=True)
    assert window_values(convert(tmp_path, config)) == {"causal": False}


# --- z-lab and Nemotron -----------------------------------------------------------------------------------------------


def test_zlab_scales_and_sinks_are_written(tmp_path: Path) -> None:
    sinks = {f"layers.{i}.self_attn.attention_sink_bias": np.full(N_HEAD, float(i), np.float32) for i in range(2)}
    inner = {
        "attention_value_scale": 0.5,
        "input_embedding_scale": 2.0,
        "output_multiplier": 0.25,
        "final_logit_softcapping": 15.0,
        "attention_sink_bias": True,
    }
    file = GGUFFile(convert(tmp_path, dflash_config(inner), dflash_tensors() | sinks).path)
    values = {k: v.value for k, v in file.metadata.items()}
    assert values["dflash.attention.value_scale"] == 0.5
    assert values["dflash.embedding_scale"] == 2.0
    assert values["dflash.logit_scale"] == 0.25
    assert values["dflash.final_logit_softcapping"] == 15.0
    assert values["dflash.sample_from_anchor"] is False
    assert file.tensors["blk.1.attn_sinks.weight"].whole().tolist() == [1.0] * N_HEAD


def test_nemotron_sinks_are_found_under_their_other_name(tmp_path: Path) -> None:
    sinks = {f"model.layers.{i}.self_attn.sinks": np.full(N_HEAD, float(i), np.float32) for i in range(2)}
    tensors = {"model." + n: t for n, t in draft_tensors().items()} | sinks
    config = deepspec_config(architectures=["DSparkDraftModel"])
    file = GGUFFile(convert(tmp_path, config, tensors).path)
    assert file.tensors["blk.1.attn_sinks.weight"].type.name == "F32"


def test_promised_sinks_that_are_missing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="attention_sink_bias is true, but a tensor"):
        convert(tmp_path, dflash_config({"attention_sink_bias": True}), dflash_tensors())


# torch.save's layout, written here without torch: a persistent id stands for the storage.
class _Storage:
    def __init__(self, kind: str, key: str, n: int) -> None:
        self.pid = ("storage", kind, key, "cpu", n)


def _saved(value: Any) -> bytes:
    """A pickle as torch writes it, with the module names of its tensors."""

    class Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
        def persistent_id(self, obj: Any) -> Any:
            return obj.pid if isinstance(obj, _Storage) else None

        def save_global(self, obj: Any, name: str | None = None) -> None:
            module, _, attribute = obj.__name__.rpartition(".")
            self.write(b"c" + module.encode() + b"\n" + attribute.encode() + b"\n")
            self.memoize(obj)

        dispatch = {**pickle._Pickler.dispatch, type: save_global, type(_saved_marker): save_global}  # type: ignore[attr-defined]

    out = io.BytesIO()
    Pickler(out, 2).dump(value)
    return out.getvalue()


def _saved_marker() -> None: ...


def _named(name: str) -> Any:
    def f(*args: Any) -> None: ...

    f.__name__ = name
    return f


class _Reduced:
    def __init__(self, function: Any, args: tuple[Any, ...]) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> Any:
        return self.function, self.args


class _FloatStorageName:
    """Pickled as the class torch.FloatStorage."""


_FloatStorageName.__name__ = "torch.FloatStorage"


def write_mask_embedding(
    path: Path, token: int, row: np.ndarray, function: str = "torch._utils._rebuild_tensor_v2"
) -> None:
    storage = _Storage("kind", "0", row.size)
    storage.pid = ("storage", _FloatStorageName, "0", "cpu", row.size)
    tensor = _Reduced(
        _named(function), (storage, 0, row.shape, (1,), False, _Reduced(_named("collections.OrderedDict"), ()))
    )
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("mask_embedding/data.pkl", _saved({"mask_token_id": token, "embedding": tensor}))
        z.writestr("mask_embedding/byteorder", "little")
        z.writestr("mask_embedding/data/0", row.astype("<f4").tobytes())


def test_mask_embedding_replaces_one_input_row_and_leaves_the_head(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target")
    draft = make_checkpoint(tmp_path / "draft", dflash_config(), dflash_tensors())
    row = np.arange(N_EMBD, dtype=np.float32)
    write_mask_embedding(draft / "mask_embedding.pt", 37, row)
    file = GGUFFile(convert_checkpoint(draft, target, tmp_path / "o.gguf", outtype="f32").path)
    rng = np.random.default_rng(1)
    embeddings = rng.standard_normal((N_VOCAB, N_EMBD), dtype=np.float32)
    head = rng.standard_normal((N_VOCAB, N_EMBD), dtype=np.float32)
    embeddings[37] = row
    assert np.array_equal(file.tensors["token_embd.weight"].whole(), embeddings)
    assert np.array_equal(file.tensors["output.weight"].whole(), head)


def test_mask_embedding_of_another_token_or_size_is_refused(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target")
    draft = make_checkpoint(tmp_path / "draft", dflash_config(), dflash_tensors())
    write_mask_embedding(draft / "mask_embedding.pt", 5, np.zeros(N_EMBD, np.float32))
    with pytest.raises(FormatError, match="mask_token_id is 5, but the config says 37"):
        convert_checkpoint(draft, target, tmp_path / "o.gguf")
    write_mask_embedding(draft / "mask_embedding.pt", 37, np.zeros(N_EMBD + 1, np.float32))
    with pytest.raises(FormatError, match=r"embedding has shape \[17\], but \[16\] is needed"):
        convert_checkpoint(draft, target, tmp_path / "o.gguf")


def test_mask_embedding_never_runs_its_pickle(tmp_path: Path) -> None:
    target = make_target(tmp_path / "target")
    draft = make_checkpoint(tmp_path / "draft", dflash_config(), dflash_tensors())
    witness = tmp_path / "ran"
    with zipfile.ZipFile(draft / "mask_embedding.pt", "w") as z:
        z.writestr("m/data.pkl", pickle.dumps(_Reduced(Path.touch, (witness,)), 2))
    with pytest.raises(FileError, match="a call of .* is not one that a dictionary of tensors needs"):
        convert_checkpoint(draft, target, tmp_path / "o.gguf")
    assert not witness.exists()
    pickle.loads(pickle.dumps(_Reduced(Path.touch, (witness,)), 2))
    assert witness.exists()  # the same pickle does act where it is run
    write_mask_embedding(draft / "mask_embedding.pt", 37, np.zeros(N_EMBD, np.float32), function="os.system")
    with pytest.raises(FileError, match="os system"):
        convert_checkpoint(draft, target, tmp_path / "o.gguf")


# --- families refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "tensor", "error"),
    [
        ({"dspark_block_size": 5}, None, "DeepSeek-V4 DSpark draft.*hyper-connections"),
        ({}, "mtp.0.attn_norm.weight", "DeepSeek-V4 DSpark draft"),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, None, "EAGLE-3 draft.*autoregressive"),
        ({"architectures": ["DFlash2DraftModel"]}, None, "DFlash2 draft.*selector"),
        ({}, "candidate_selector.predecessor_codebook", "DFlash2 draft"),
        ({"architectures": ["Glm5DSparkForCausalLM"], "kv_lora_rank": 512}, None, "latent attention"),
        ({"num_experts": 8}, None, "mixture-of-experts"),
        ({"quantization_config": {"quant_method": "fp8"}}, None, "quantised by fp8"),
        ({"attention_bias": True}, None, "attention_bias is true, but false"),
        ({}, "layers.0.self_attn.q_proj.bias", "attention biases are not supported"),
        ({}, "layers.2.mlp.up_proj.weight", "num_hidden_layers is 2"),
        ({}, "layers.0.mlp.up_proj.weight_scale", "quantised checkpoint"),
        ({"architectures": None}, None, "architectures is missing, but one of"),
    ],
)
def test_other_families_are_refused_for_what_they_are(
    tmp_path: Path, extra: dict[str, Any], tensor: str | None, error: str
) -> None:
    tensors = draft_tensors() | ({tensor: np.zeros(4, np.float32)} if tensor else {})
    with pytest.raises(FormatError, match=error):
        convert(tmp_path, deepspec_config(**extra), tensors)


def test_fp8_weights_are_refused_by_type(tmp_path: Path) -> None:
    tensors: dict[str, Any] = draft_tensors()
    weight = tensors["fc.weight"]
    tensors["fc.weight"] = ("F8_E4M3", np.zeros(weight.shape, np.uint8))
    with pytest.raises(FormatError, match="fc.weight is F8_E4M3, but F32, F16 or BF16"):
        convert(tmp_path, deepspec_config(), tensors)


def test_a_draft_for_another_number_of_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MismatchError, match="num_target_layers is 9, but the target .* has 8"):
        convert(tmp_path, deepspec_config(num_target_layers=9))


# --- shards and descriptions ------------------------------------------------------------------------------------------


def shard(folder: Path, names: list[str] | None = None) -> None:
    from convert_fixtures import write_safetensors

    tensors = draft_tensors()
    names = names or sorted(tensors)
    half = len(names) // 2
    parts = {"a.safetensors": names[:half], "b.safetensors": names[half:]}
    for file, part in parts.items():
        write_safetensors(folder / file, {n: tensors[n] for n in part})
    weight_map = {n: file for file, part in parts.items() for n in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


def test_shards_give_the_file_that_one_file_gives(tmp_path: Path) -> None:
    whole = convert(tmp_path, deepspec_config(), outtype="f32").path.read_bytes()
    (tmp_path / "draft" / "model.safetensors").unlink()
    shard(tmp_path / "draft")
    report = convert_checkpoint(tmp_path / "draft", tmp_path / "target", tmp_path / "p.gguf", outtype="f32")
    assert report.path.read_bytes() == whole


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    convert(tmp_path, deepspec_config())
    (tmp_path / "draft" / "model.safetensors").unlink()
    shard(tmp_path / "draft")
    (tmp_path / "draft" / "b.safetensors").unlink()
    with pytest.raises(FileError, match="lists b.safetensors, which is not in the folder"):
        convert_checkpoint(tmp_path / "draft", tmp_path / "target", tmp_path / "p.gguf")


def test_an_index_may_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    convert(tmp_path, deepspec_config())
    index = {"weight_map": {"fc.weight": "../draft/model.safetensors"}}
    (tmp_path / "draft" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(FileError, match="is not the name of a file in the folder"):
        convert_checkpoint(tmp_path / "draft", tmp_path / "target", tmp_path / "p.gguf")


def test_a_checkpoint_describes_itself_without_a_target(tmp_path: Path) -> None:
    draft = make_checkpoint(tmp_path / "draft", dflash_config(), dflash_tensors())
    facts = describe_checkpoint(draft)
    assert facts["schema"] == "dflash"
    assert (facts["layout"], facts["layout_reason"]) == (
        "1+N",
        "no sample_from_anchor in the config: DFlash drafts are 1+N",
    )
    assert (facts["target_layers"], facts["target_layer_outputs"]) == ([1, 3, 5], [0, 2, 4])
    assert facts["confidence"] is False
    assert facts["types"] == ["F32"]
