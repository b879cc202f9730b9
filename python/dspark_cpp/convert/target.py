"""The target that a draft is made for: its sizes, its tokenizer, and its embedding and head where they are needed."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gguf import GGUFValueType

from ..errors import FileError, FormatError
from .checkpoint import open_tensors
from .config import Config, read_json
from .gguf_file import GGUFFile, GGUFValue
from .hf_tokenizer import read_tokenizer
from .weights import Weight

__all__ = ["Target", "open_target", "tokens_sha256"]

_TOKENS = "tokenizer.ggml.tokens"
_MASK = "tokenizer.ggml.mask_token_id"
_MAX_VOCAB = 1 << 22


@dataclass
class Target:
    """What the converter needs to know about a target.

    `n_layer` counts decoder layers without multi-token-prediction ones, `n_vocab` the entries of the token table.
    `tokenizer` holds GGUF metadata without the mask id, which is the draft's. `embeddings` (V, H) and `head` (V, H) are
    None where the weights are not at hand; a tied target has its embeddings as head.
    """

    path: Path
    architecture: str
    hidden_size: int
    n_layer: int
    n_vocab: int
    tokens: list[bytes]
    tokenizer: dict[str, GGUFValue]
    uses_mrope: bool
    embeddings: Weight | None = None
    head: Weight | None = None
    special_ids: dict[str, int] = field(default_factory=dict)


def tokens_sha256(tokens: list[bytes]) -> str:
    """SHA-256 of a token table: each token's bytes preceded by its length as u32, little endian."""
    digest = hashlib.sha256()
    for token in tokens:
        digest.update(struct.pack("<I", len(token)) + token)
    return digest.hexdigest()


def open_target(path: Path) -> Target:
    """Open a target given as a GGUF file or as a Hugging Face folder.

    Raises: FileError where it is missing or unreadable; FormatError where it lacks a tokenizer or a size.
    """
    if path.is_dir():
        return _open_folder(path)
    if not path.exists():
        raise FileError(
            f"{path}: no such target; a GGUF file or a folder with config.json and tokenizer.json is needed"
        )
    return _open_gguf(path)


def _special_ids(tokenizer: dict[str, GGUFValue]) -> dict[str, int]:
    names = {"eos": "eos_token_id", "pad": "padding_token_id", "bos": "bos_token_id"}
    ids = {short: tokenizer.get(f"tokenizer.ggml.{key}") for short, key in names.items()}
    return {short: found.value for short, found in ids.items() if found and isinstance(found.value, int)}


def _open_gguf(path: Path) -> Target:
    file = GGUFFile(path)
    arch = file.get_text("general.architecture")
    if not arch:
        raise FormatError(f"{path}: general.architecture is missing; this is not a model")
    if arch in ("dflash", "eagle3", "clip", "mmproj"):
        raise FormatError(f"{path}: architecture {arch} is not a target; pass the model that the draft is for")
    tokens = file.metadata.get(_TOKENS)
    if tokens is None or tokens.item_type is not GGUFValueType.STRING or not tokens.value:
        raise FormatError(f"{path}: {_TOKENS} is missing; the target's tokenizer is needed")
    sections = file.metadata.get(f"{arch}.rope.dimension_sections")
    tokenizer = {k: v for k, v in file.metadata.items() if k.startswith("tokenizer.") and k != _MASK}
    embeddings = file.tensors.get("token_embd.weight")
    return Target(
        path=path,
        architecture=arch,
        hidden_size=file.get_int(f"{arch}.embedding_length"),
        n_layer=file.get_int(f"{arch}.block_count") - file.get_int(f"{arch}.nextn_predict_layers", 0),
        n_vocab=len(tokens.value),
        tokens=tokens.value,
        tokenizer=tokenizer,
        uses_mrope=bool(sections and isinstance(sections.value, list) and any(sections.value)),
        embeddings=embeddings,
        head=file.tensors.get("output.weight") or embeddings,
        special_ids=_special_ids(tokenizer),
    )


def _open_folder(folder: Path) -> Target:
    whole = Config(read_json(folder / "config.json"), where=str(folder / "config.json"))
    # Multimodal targets keep the language model's sizes in text_config.
    config = Config(whole.table("text_config") or whole.values, where=whole.where)
    architectures = whole.strings("architectures")
    n_vocab = config.integer("vocab_size", least=1)
    if n_vocab > _MAX_VOCAB:  # the token table is filled up to it
        raise config.wrong("vocab_size", n_vocab, f"at most {_MAX_VOCAB}")
    tokenizer = read_tokenizer(folder, config, n_vocab)
    rope = config.table("rope_parameters") or config.table("rope_scaling") or {}
    tensors: Mapping[str, Weight] = open_tensors(folder) if any(folder.glob("*.safetensors")) else {}
    embeddings = _first(tensors, "embed_tokens.weight", "tok_embeddings.weight")
    head = _first(tensors, "lm_head.weight", "output.weight")
    return Target(
        path=folder,
        architecture=architectures[0] if architectures else config.text("model_type") or "unknown",
        hidden_size=config.integer("hidden_size", least=1),
        n_layer=config.integer("num_hidden_layers", least=1),
        n_vocab=len(tokenizer[_TOKENS].value),
        tokens=tokenizer[_TOKENS].value,
        tokenizer=tokenizer,
        uses_mrope="mrope_section" in rope,
        embeddings=embeddings,
        head=head or embeddings,
        special_ids=_special_ids(tokenizer),
    )


def _first(tensors: Mapping[str, Weight], *endings: str) -> Weight | None:
    for ending in endings:
        for name, weight in tensors.items():
            if (name == ending or name.endswith("." + ending)) and "mtp" not in name and "visual" not in name:
                return weight
    return None
