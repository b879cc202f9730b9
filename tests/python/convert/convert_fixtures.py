"""Where the oracle pack is, and small checkpoints and targets made on the spot."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_cpp.convert.gguf_file import GGUFFile

ROOT = Path(__file__).resolve().parents[3]
SHARED = ROOT.parent / "shared"
ORACLES = SHARED / "oracles"
FIXTURES = ROOT / "tests" / "fixtures" / "oracles"


def golden_of(oracles: Path, draft: str) -> dict[str, Any]:
    """What the oracle pack says of a draft; the test is skipped where only the part without it is there."""
    path = oracles / "drafts" / draft / "golden.json"
    if not path.is_file():
        pytest.skip(f"drafts/{draft} is in the full oracle pack only")
    golden: dict[str, Any] = json.loads(path.read_text())
    return golden


def target_of(oracles: Path, draft: str) -> Path:
    """The GGUF of the target that an oracle draft is for."""
    name = golden_of(oracles, draft)["target"]
    return oracles / name / f"{name}-f32.gguf"


def metadata(path: Path) -> dict[str, Any]:
    """All metadata of a GGUF file as plain values."""
    return {k: v.value for k, v in GGUFFile(path).metadata.items()}


def write_safetensors(path: Path, tensors: dict[str, np.ndarray | tuple[str, np.ndarray]]) -> None:
    """Write a safetensors file; a tuple gives the element type's name."""
    names = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "uint8": "BOOL", "float64": "F64"}
    header: dict[str, Any] = {}
    blob = b""
    for name, value in tensors.items():
        kind, array = value if isinstance(value, tuple) else (names[value.dtype.name], value)
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {"dtype": kind, "shape": list(array.shape), "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + blob)


N_VOCAB, N_EMBD, N_FF, N_HEAD, N_HEAD_KV, HEAD_DIM, RANK = 40, 16, 24, 2, 1, 8, 4


def make_target(folder: Path, n_layer: int = 8, **extra: Any) -> Path:
    """A Hugging Face target folder of byte-level tokens, with untied float32 embedding and head."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": N_EMBD,
        "num_hidden_layers": n_layer,
        "vocab_size": N_VOCAB,
        **extra,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = {
        "added_tokens": [
            {"id": 36, "content": "<|eos|>", "special": True},
            {"id": 37, "content": "<|mask|>", "special": True},
        ],
        "pre_tokenizer": {"type": "ByteLevel", "use_regex": True},
        "model": {"type": "BPE", "vocab": {chr(65 + i): i for i in range(35)}, "merges": ["A B"]},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eos|>"}))
    rng = np.random.default_rng(1)
    write_safetensors(
        folder / "model.safetensors",
        {
            "model.embed_tokens.weight": rng.standard_normal((N_VOCAB, N_EMBD), dtype=np.float32),
            "lm_head.weight": rng.standard_normal((N_VOCAB, N_EMBD), dtype=np.float32),
        },
    )
    return folder


def backbone_config(**extra: Any) -> dict[str, Any]:
    """The Qwen3 keys of a two-layer draft for `make_target`."""
    return {
        "model_type": "qwen3",
        "hidden_size": N_EMBD,
        "intermediate_size": N_FF,
        "num_hidden_layers": 2,
        "num_attention_heads": N_HEAD,
        "num_key_value_heads": N_HEAD_KV,
        "head_dim": HEAD_DIM,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "max_position_embeddings": 128,
        "vocab_size": N_VOCAB,
        **extra,
    }


def draft_tensors(
    n_taps: int = 3, markov: bool = True, confidence: bool = True, n_layer: int = 2
) -> dict[str, np.ndarray]:
    """Random tensors of a draft for `make_target`, under DeepSpec's names, without embedding and head."""
    rng = np.random.default_rng(2)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape, dtype=np.float32)

    q, kv = N_HEAD * HEAD_DIM, N_HEAD_KV * HEAD_DIM
    out = {
        "fc.weight": normal(N_EMBD, n_taps * N_EMBD),
        "hidden_norm.weight": normal(N_EMBD),
        "norm.weight": normal(N_EMBD),
    }
    for i in range(n_layer):
        p = f"layers.{i}."
        out |= {
            p + "input_layernorm.weight": normal(N_EMBD),
            p + "post_attention_layernorm.weight": normal(N_EMBD),
            p + "self_attn.q_proj.weight": normal(q, N_EMBD),
            p + "self_attn.k_proj.weight": normal(kv, N_EMBD),
            p + "self_attn.v_proj.weight": normal(kv, N_EMBD),
            p + "self_attn.o_proj.weight": normal(N_EMBD, q),
            p + "self_attn.q_norm.weight": normal(HEAD_DIM),
            p + "self_attn.k_norm.weight": normal(HEAD_DIM),
            p + "mlp.gate_proj.weight": normal(N_FF, N_EMBD),
            p + "mlp.up_proj.weight": normal(N_FF, N_EMBD),
            p + "mlp.down_proj.weight": normal(N_EMBD, N_FF),
        }
    if markov:
        out["markov_head.markov_w1.weight"] = normal(N_VOCAB, RANK)
        out["markov_head.markov_w2.weight"] = normal(N_VOCAB, RANK)
    if confidence:
        out["confidence_head.proj.weight"] = normal(1, N_EMBD + (RANK if markov else 0))
        out["confidence_head.proj.bias"] = normal(1)
    return out


def make_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, Any] | None = None) -> Path:
    """Write a checkpoint folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    write_safetensors(folder / "model.safetensors", draft_tensors() if tensors is None else tensors)
    return folder


DEEPSPEC = {
    "architectures": ["Qwen3DSparkModel"],
    "target_layer_ids": [0, 2, 4],
    "block_size": 7,
    "mask_token_id": 37,
    "markov_rank": RANK,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}


def deepspec_config(**extra: Any) -> dict[str, Any]:
    """A DeepSpec config for `make_target`; a value of None drops the key."""
    config = {**backbone_config(), **DEEPSPEC, **extra}
    return {k: v for k, v in config.items() if v is not None}
