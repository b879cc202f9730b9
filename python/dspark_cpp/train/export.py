"""A trained draft as a checkpoint of the speculators package: config.json and model.safetensors.

The converter makes the GGUF file of it, as of anybody's checkpoint.
"""

from __future__ import annotations

import json
from pathlib import Path

import safetensors.torch
import torch

from ..convert.gguf_file import GGUFFile
from ..errors import FileError
from .atomic import write_atomically
from .model import Draft
from .shape import speculators_config

__all__ = ["save_speculators"]


def save_speculators(model: Draft, folder: Path, target: GGUFFile, verifier: str | None = None) -> None:
    """Write the checkpoint, in bf16. The embeddings, and a head that is the target's, are not in it.

    `verifier` names the target for readers; default: the name in the target's file.

    Raises: FileError: The folder cannot be written; a checkpoint that was there stays.
    """
    shape = model.shape
    architecture = target.get_text("general.architecture") or "unknown"
    name = verifier or target.get_text("general.name") or target.path.stem
    config = speculators_config(shape, name, f"{architecture.capitalize()}ForCausalLM")
    shared = {"embed_tokens.weight"} if shape.own_head else {"embed_tokens.weight", "lm_head.weight"}
    tensors = {
        key: value.detach().cpu().to(torch.bfloat16).contiguous()
        for key, value in model.state_dict().items()
        if key not in shared
    }
    if shape.own_head:
        tokens = model.token_of.cpu()
        tensors["d2t"] = tokens - torch.arange(len(tokens))
        tensors["t2d"] = model.row_of.cpu() >= 0
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise FileError(f"{folder}: cannot be made: {e.strerror}") from None
    data = safetensors.torch.save(tensors, metadata={"format": "pt"})
    write_atomically(folder / "model.safetensors", data, "the draft")
    write_atomically(folder / "config.json", (json.dumps(config, indent=1) + "\n").encode(), "the draft's config")
