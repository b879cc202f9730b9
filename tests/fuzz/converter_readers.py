"""The converter's readers as fuzz targets: bytes in; nothing may be raised but the package's own errors.

Each reader has a function of the input's bytes, which makes the file that is read, and seeds made on the spot.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import json
import shutil
import struct
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "python" / "convert"))

from convert_fixtures import DEEPSPEC, FIXTURES, backbone_config, deepspec_config, make_checkpoint, make_target  # noqa: E402
from dspark_cpp.convert.api import describe_checkpoint  # noqa: E402
from dspark_cpp.convert.config import Config  # noqa: E402
from dspark_cpp.convert.gguf_file import GGUFFile  # noqa: E402
from dspark_cpp.convert.hf_tokenizer import read_tokenizer  # noqa: E402
from dspark_cpp.convert.safetensors_file import SafetensorsFile  # noqa: E402
from dspark_cpp.convert.sentencepiece_model import read_pieces  # noqa: E402
from dspark_cpp.convert.target import open_target  # noqa: E402
from dspark_cpp.convert.torch_pickle import read_mask_embedding  # noqa: E402
from dspark_cpp.errors import DSparkError  # noqa: E402

__all__ = ["REGRESSIONS", "SEEDS", "run"]

REGRESSIONS = Path(__file__).parent / "regressions"
FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
atexit.register(shutil.rmtree, FOLDER, ignore_errors=True)


def safetensors(data: bytes) -> None:
    path = FOLDER / "any.safetensors"
    path.write_bytes(data)
    for weight in SafetensorsFile(path).tensors.values():
        for chunk in weight.byte_chunks():
            assert len(chunk) <= len(data)


def config(data: bytes) -> None:
    """A config.json beside the weights of a whole checkpoint, and the same read with a target."""
    folder = (
        make_checkpoint(FOLDER / "checkpoint", {}) if not (FOLDER / "checkpoint").is_dir() else FOLDER / "checkpoint"
    )
    target = make_target(FOLDER / "target") if not (FOLDER / "target").is_dir() else FOLDER / "target"
    (folder / "config.json").write_bytes(data)
    describe_checkpoint(folder, target)


def pickle(data: bytes) -> None:
    """An archive as it is (first byte even), or the pickle inside of one, which a checksum protects from mutation."""
    path = FOLDER / "mask_embedding.pt"
    if data[:1] and data[0] % 2:
        with zipfile.ZipFile(path, "w") as z:
            z.writestr("any/data.pkl", data[1:])
            z.writestr("any/byteorder", "little")
            z.writestr("any/data/0", bytes(32))
    else:
        path.write_bytes(data[1:])
    row = read_mask_embedding(FOLDER, 5, 8)
    assert row is not None and row.shape == (8,)


def sentencepiece(data: bytes) -> None:
    path = FOLDER / "any.model"
    path.write_bytes(data)
    assert read_pieces(path)


def tokenizer(data: bytes) -> None:
    folder = FOLDER / "tokenizer"
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_bytes(data)
    for model_type in ("qwen3", "gemma4"):
        read_tokenizer(folder, Config({"model_type": model_type}), 40)


def target_config(data: bytes) -> None:
    folder = make_target(FOLDER / "target2") if not (FOLDER / "target2").is_dir() else FOLDER / "target2"
    (folder / "config.json").write_bytes(data)
    open_target(folder)


def gguf(data: bytes) -> None:
    path = FOLDER / "any.gguf"
    path.write_bytes(data)
    with contextlib.suppress(DSparkError):
        open_target(path)
    for weight in GGUFFile(path).tensors.values():
        assert len(weight.raw()) <= len(data)
        for chunk in weight.chunks():
            assert chunk.size <= 256 * len(data)


READERS: dict[str, Callable[[bytes], None]] = {
    f.__name__: f for f in (safetensors, config, pickle, sentencepiece, tokenizer, target_config, gguf)
}


def run(reader: str, data: bytes) -> bool:
    """True if the reader took the bytes; anything but a refusal by the package's own errors is raised."""
    try:
        READERS[reader](data)
    except DSparkError as error:
        assert str(error), "an error has a sentence"
        return False
    return True


# --- seeds ------------------------------------------------------------------------------------------------------------


def _safetensors(tensors: dict[str, tuple[str, list[int], bytes]]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    blob = b""
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [len(blob), len(blob) + len(data)]}
        blob += data
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + blob


def _zipped(pickled: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        z.writestr("a/data.pkl", pickled)
        z.writestr("a/data/0", np.arange(8, dtype="<f4").tobytes())
    return b"\0" + out.getvalue()


# what torch.save() writes of {"mask_token_id": 5, "embedding": torch.zeros(8)}
TORCH_PICKLE = bytes.fromhex(
    "80027d710028580d0000006d61736b5f746f6b656e5f696471014b055809000000656d62656464696e67710263746f7263682e5f"
    "7574696c730a5f72656275696c645f74656e736f725f76320a71032828580700000073746f72616765710463746f7263680a466c"
    "6f617453746f726167650a71055801000000307106580300000063707571074b08747108514b004b088571094b0185710a896363"
    "6f6c6c656374696f6e730a4f726465726564446963740a710b2952710c74710d52710e752e"
)


def _piece(text: bytes, score: float, kind: int) -> bytes:
    message = b"\x0a" + bytes([len(text)]) + text + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
    return b"\x0a" + bytes([len(message)]) + message


def _gguf(values: dict[str, bytes], tensors: dict[str, tuple[list[int], int, bytes]]) -> bytes:
    def text(t: str) -> bytes:
        return struct.pack("<Q", len(t)) + t.encode()

    out = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values))
    for key, value in values.items():
        out += text(key) + value
    data = b""
    for name, (ne, kind, raw) in tensors.items():
        out += text(name) + struct.pack("<I", len(ne)) + b"".join(struct.pack("<Q", n) for n in ne)
        out += struct.pack("<IQ", kind, len(data))
        data += raw + bytes(-len(raw) % 32)
    return out + bytes(-len(out) % 32) + data


def _gguf_seed() -> bytes:
    def text(t: str) -> bytes:
        return struct.pack("<Q", len(t)) + t.encode()

    u32 = struct.Struct("<II")
    tokens = b"".join(text(chr(97 + i)) for i in range(8))
    values = {
        "general.architecture": struct.pack("<I", 8) + text("llama"),
        "llama.embedding_length": u32.pack(4, 32),
        "llama.block_count": u32.pack(4, 2),
        "llama.rope.dimension_sections": struct.pack("<IIQ4i", 9, 5, 4, 1, 1, 0, 0),
        "tokenizer.ggml.tokens": struct.pack("<IIQ", 9, 8, 8) + tokens,
        "tokenizer.ggml.eos_token_id": u32.pack(4, 1),
        "any.flag": struct.pack("<I?", 7, True),
        "any.number": struct.pack("<Id", 12, 0.5),
    }
    tensors = {
        "token_embd.weight": ([32, 8], 2, bytes(8 * 18)),  # Q4_0
        "output.weight": ([32, 8], 1, bytes(8 * 64)),  # F16
        "norm.weight": ([32], 0, bytes(128)),
        "d2t": ([4], 27, bytes(32)),
    }
    return _gguf(values, tensors)


def _configs() -> list[bytes]:
    ours = [
        deepspec_config(),
        deepspec_config(markov_rank=0, markov_head_type=None, enable_confidence_head=False),
        {**deepspec_config(), "architectures": ["DFlashDraftModel"], "dflash_config": {"target_layer_ids": [0, 2, 4]}},
        {
            "architectures": ["DSparkDraftModel"],
            "speculators_model_type": "dspark",
            "transformer_layer_config": {**backbone_config(), "layer_types": ["full_attention"] * 2},
            **{k: v for k, v in DEEPSPEC.items() if k not in ("architectures", "target_layer_ids")},
            "aux_hidden_state_layer_ids": [0, 2, 4],
        },
    ]
    theirs = [p.read_bytes() for p in sorted((FIXTURES / "drafts").glob("*/config.json"))]
    return [json.dumps(c).encode() for c in ours] + theirs


_ENTRY = {"type": "ByteLevel", "use_regex": True}
_TOKENIZER = {
    "added_tokens": [{"id": 36, "content": "<|eos|>", "special": True}],
    "pre_tokenizer": _ENTRY,
    "model": {"type": "BPE", "vocab": {"A": 0, "B": 1, "<0x0A>": 2}, "merges": ["A B"]},
}

#: small inputs of each reader, the first of which is taken
SEEDS: dict[str, list[bytes]] = {
    "safetensors": [
        _safetensors({"a": ("F32", [2, 2], bytes(16)), "b": ("BF16", [3], bytes(6)), "c": ("I64", [], bytes(8))}),
        _safetensors({"a": ("F8_E4M3", [4], bytes(4)), "b": ("BOOL", [2], bytes(2)), "c": ("F16", [0, 3], b"")}),
    ],
    "config": _configs(),
    "pickle": [_zipped(TORCH_PICKLE), b"\1" + TORCH_PICKLE],
    "sentencepiece": [_piece(b"<unk>", 0, 2) + _piece(b"ab", -1.5, 1) + b"\x12\x02\x18\x02"],
    "tokenizer": [
        json.dumps(_TOKENIZER).encode(),
        json.dumps({**_TOKENIZER, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [_ENTRY]}}).encode(),
    ],
    "target_config": [
        json.dumps(
            {
                "architectures": ["Qwen3ForCausalLM"],
                "model_type": "qwen3",
                "hidden_size": 16,
                "num_hidden_layers": 2,
                "vocab_size": 40,
                "rope_parameters": {"mrope_section": [1, 1]},
            }
        ).encode()
    ],
    "gguf": [_gguf_seed()],
}
