"""The state of a training run in one safetensors file, written beside the old one and renamed.

Nothing random is in it: what a step sees is a function of the seed and the step's number.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from ..errors import FormatError, MismatchError
from .atomic import write_atomically
from .model import Draft

__all__ = ["load_checkpoint", "save_checkpoint"]


def _trained(model: Draft) -> dict[str, Tensor]:
    return {name: p for name, p in model.named_parameters() if name != "embed_tokens.weight"}


def save_checkpoint(path: Path, model: Draft, optimizer: torch.optim.Optimizer, progress: dict[str, Any]) -> None:
    """`progress` is what else the run needs to go on: JSON values.

    Raises: FileError: It cannot be written; the checkpoint before stays.
    """
    tensors = {f"model.{name}": p.detach().cpu().contiguous() for name, p in _trained(model).items()}
    for i, state in optimizer.state_dict()["state"].items():
        for key, value in state.items():
            tensors[f"optimizer.{i}.{key}"] = value.detach().cpu().contiguous()
    data = safetensors.torch.save(tensors, metadata={"progress": json.dumps(progress)})
    write_atomically(path, data, "the checkpoint")


def load_checkpoint(path: Path, model: Draft, optimizer: torch.optim.Optimizer | None) -> dict[str, Any]:
    """Puts weights and the optimizer's state back; returns `progress`.

    Raises: FormatError: The file is damaged. MismatchError: It is of a draft of another shape.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            progress: dict[str, Any] = json.loads(file.metadata()["progress"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (OSError, ValueError, KeyError, TypeError, safetensors.SafetensorError) as e:
        raise FormatError(f"{path}: the checkpoint is damaged: {e}; remove it to begin again") from None
    with torch.no_grad():
        for name, p in _trained(model).items():
            stored = tensors.get(f"model.{name}")
            if stored is None or stored.shape != p.shape:
                raise MismatchError(f"{path}: the checkpoint is of a draft with another {name}; use another folder")
            p.copy_(stored)
    if optimizer is not None:
        state: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if name.startswith("optimizer."):
                _, i, key = name.split(".", 2)
                state.setdefault(int(i), {})[key] = value
        whole = optimizer.state_dict()
        whole["state"] = state
        optimizer.load_state_dict(whole)
    return progress
