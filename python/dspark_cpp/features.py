"""A target's features and likely next tokens, for whole sequences at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import errors
from ._native import check, context_pointer, ffi, lib, require_llama, text
from ._native import tokens as as_tokens
from .interrupts import interruptible
from .params import integer
from .session import SOURCES
from .target import feature_tap

__all__ = ["FeatureReader", "Features"]


class Features(NamedTuple):
    """What a target makes of a sequence of n tokens."""

    #: float32 (n, n_layers * n_embd): concatenated inputs of the layers, as a draft is given them
    features: npt.NDArray[np.float32]
    #: int32 (n - first_row, top_k): likeliest tokens to come after each row, likeliest first
    top_ids: npt.NDArray[np.int32]
    #: float32 (n - first_row, top_k): their probabilities at temperature 1 over the whole vocabulary
    top_probs: npt.NDArray[np.float32]


class FeatureReader:
    """Runs a target over sequences and hands out the inputs of some of its layers.

    It takes over sequence 0 of the target's context: while it is open, the target has no session. One call at a time.

    Args:
        target: An open llama_cpp.Llama. Its architecture needs layer-input taps, or open it with ``open_target()``.
        layers: Whose inputs are read, as in a draft's file; the number of layers stands for the last one's output.
        feature_source: "auto", "taps" (layer-input taps) or "eval" (evaluation callback).

    Raises:
        MismatchError: The target hands out no features or has no such layer.
        StateError: The target is closed, or has a session or a reader already.
    """

    _ptr: Any = None

    def __init__(self, target: Any, layers: Sequence[int], *, feature_source: str = "auto") -> None:
        if not isinstance(feature_source, str) or feature_source not in SOURCES:
            raise errors.ArgumentError(f"feature_source is {feature_source!r}, expected one of {', '.join(SOURCES)}")
        wanted = as_tokens(layers, "layers")
        context = context_pointer(target)
        out = ffi.new("dspark_feature_reader **")
        pointer = ffi.cast("int32_t *", wanted.ctypes.data)
        check(
            lib.dspark_feature_reader_create(
                context, pointer, len(wanted), SOURCES[feature_source], feature_tap(target), out
            )
        )
        self._ptr = out[0]
        self._target = target
        self.n_features = len(wanted) * target.n_embd()
        target._stack.callback(self.close)

    def _handle(self) -> Any:
        if self._ptr is None:
            raise errors.StateError("the feature reader is closed")
        require_llama(self._target)
        return self._ptr

    def read(self, tokens: Sequence[int], *, first_row: int = 0, top_k: int = 0) -> Features:
        """Decodes a sequence from its beginning. Logits are computed for the rows from first_row on, if top_k is not 0.

        Raises:
            ArgumentError: A token, first_row or top_k is out of range. ContextFullError: The sequence is too long.
        """
        ids = as_tokens(tokens)
        first, k = integer(first_row, "first_row"), integer(top_k, "top_k")
        if not 0 <= first <= len(ids) or k < 0:
            raise errors.ArgumentError(
                f"first_row is {first} and top_k {k}, expected 0 to the {len(ids)} tokens, and 0 or more"
            )
        features = np.empty((len(ids), self.n_features), np.float32)
        top_ids = np.empty((len(ids) - first, k), np.int32)
        top_probs = np.empty((len(ids) - first, k), np.float32)
        check(
            interruptible(
                lib.dspark_feature_reader_read,
                self._handle(),
                ffi.cast("int32_t *", ids.ctypes.data),
                len(ids),
                first,
                k,
                ffi.cast("float *", features.ctypes.data),
                ffi.cast("int32_t *", top_ids.ctypes.data),
                ffi.cast("float *", top_probs.ctypes.data),
            )
        )
        return Features(features, top_ids, top_probs)

    @property
    def feature_source(self) -> str:
        """Where the features come from: "layer taps" or "evaluation callback"."""
        return text(lib.dspark_feature_reader_source(self._handle()))

    def close(self) -> None:
        """Frees the reader; may be called more than once."""
        ptr = self._ptr
        if ptr is not None:
            check(lib.dspark_feature_reader_close(ptr))
            self._ptr = None
            lib.dspark_feature_reader_free(ptr)

    def __enter__(self) -> FeatureReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
