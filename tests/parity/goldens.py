"""The oracle drafts and their golden arrays (oracles/README.md tells what each array is)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DRAFTS = [
    "deepspec-gemma4",
    "deepspec-qwen3-gated",
    "deepspec-qwen3-rnn",
    "deepspec-qwen3-vanilla",
    "flat-dspark-bonus-dv112",
    "specforge-dspark",
    "spk-dflash",
    "spk-dspark-anchor-full",
    "spk-dspark-bonus-dv96",
    "spk-dspark-gemma4",
    "spk-dspark-swa",
]
SLIDING_DRAFT = "spk-dspark-swa"

ATOL = 1e-4  # f32 weights and cache
GELU_ATOL = 5e-3  # ggml's gelu_pytorch_tanh goes through a table of f16


def cpp_atol(name: str) -> float:
    """What the C++ graph of a draft may differ by, logits and hidden states alike."""
    return GELU_ATOL if name == "deepspec-gemma4" else ATOL


def feed(draft: Any, features: NDArray[np.float32], n: int, n_inject_rows: int) -> int:
    """Bring a C++ draft to n positions; returns how many rows the next round will inject itself, the newest ones."""
    n_waiting = min(n - draft.n_past, n_inject_rows)
    draft.append(features[draft.n_past : n - n_waiting])
    draft.flush()
    draft.append(features[n - n_waiting : n])
    return n_waiting


@dataclass(frozen=True)
class Golden:
    name: str
    folder: Path
    info: dict[str, Any]
    arrays: dict[str, NDArray[Any]]

    @property
    def target(self) -> str:
        return self.info["target"]

    @property
    def tokens(self) -> NDArray[np.int32]:
        return self.arrays["tokens"]

    @property
    def features(self) -> NDArray[np.float32]:
        return self.arrays["features"]

    @property
    def anchors(self) -> list[int]:
        return [int(p) for p in self.arrays["anchors"]]

    @property
    def first_slot(self) -> int:
        return self.info["draft_only"]["first_draft_slot"]

    def round(self, position: int, mask: str | None = None) -> dict[str, NDArray[Any]]:
        """The arrays of the full block at a position, by short name; empty if there are none under that mask."""
        prefix = f"p{position}.full." + (f"mask-{mask}." if mask else "")
        return {
            key.removeprefix(prefix): value
            for key, value in self.arrays.items()
            if key.startswith(prefix) and (mask or ".mask-" not in key)
        }
