"""Python objects as drafters: the bridge between a session's C callbacks and a Drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from . import errors
from ._native import ffi, lib, require_llama
from .params import integer

__all__ = ["Drafter"]


@runtime_checkable
class Drafter(Protocol):
    """Whoever proposes tokens to a session. A Draft file is one; any object with these members is another.

    Optional members: ``target_layers`` (layer inputs wanted as features), ``append(features, position)`` with features
    (n, n_layers * n_embd) float32 valid during the call only, and ``rewind(n_past)``.
    """

    #: the longest proposal it ever makes
    n_draft_max: int

    def propose(self, anchor: int, position: int, n_max: int) -> Sequence[int]:
        """At most n_max tokens to follow anchor, which stands at position."""
        ...


class Bridge:
    """Keeps a Drafter and the C table that points to it; holds an exception until the session can raise it."""

    def __init__(self, drafter: Drafter, target: Any) -> None:
        self.drafter = drafter
        self._target = target
        self.exception: BaseException | None = None
        layers = [integer(layer, "a target layer") for layer in getattr(drafter, "target_layers", ())]
        self.n_features = len(layers) * target.n_embd()
        self._handle = ffi.new_handle(self)
        self._layers = ffi.new("int32_t[]", layers or [0])
        table = ffi.new("dspark_drafter *")
        table.struct_size = ffi.sizeof("dspark_drafter")
        table.user_data = self._handle
        table.n_draft_max = integer(drafter.n_draft_max, "the drafter's n_draft_max")
        table.n_target_layers = len(layers)
        table.target_layers = self._layers
        table.append = lib.dspark_py_append if hasattr(drafter, "append") else ffi.NULL
        table.rewind = lib.dspark_py_rewind if hasattr(drafter, "rewind") else ffi.NULL
        table.propose = lib.dspark_py_propose
        self.table = table

    def require_target(self) -> None:
        """Called after the drafter's code: the session must not go on with a target that it has closed."""
        require_llama(self._target)

    def raise_pending(self) -> None:
        """Raises what a callback raised, if it did."""
        exception, self.exception = self.exception, None
        if exception is not None:
            raise exception


def _keep(exception: Any, value: BaseException, traceback: Any) -> None:
    """Called by cffi for whatever a callback raises, KeyboardInterrupt included: it must not be lost in C."""
    bridge: Bridge = ffi.from_handle(traceback.tb_frame.f_locals["user_data"])
    bridge.exception = value


@ffi.def_extern(error=1, onerror=_keep)  # type: ignore[untyped-decorator, unused-ignore]
def dspark_py_append(user_data: Any, features: Any, position: int, n_rows: int) -> int:
    bridge: Bridge = ffi.from_handle(user_data)
    rows: npt.NDArray[np.float32] = np.empty((n_rows, 0), np.float32)
    if bridge.n_features:
        buffer = ffi.buffer(features, n_rows * bridge.n_features * 4)
        rows = np.frombuffer(buffer, np.float32).reshape(n_rows, bridge.n_features)
    bridge.drafter.append(rows, position)  # type: ignore[attr-defined]
    bridge.require_target()
    return 0


@ffi.def_extern(error=1, onerror=_keep)  # type: ignore[untyped-decorator, unused-ignore]
def dspark_py_rewind(user_data: Any, n_past: int) -> int:
    bridge: Bridge = ffi.from_handle(user_data)
    bridge.drafter.rewind(n_past)  # type: ignore[attr-defined]
    bridge.require_target()
    return 0


@ffi.def_extern(error=1, onerror=_keep)  # type: ignore[untyped-decorator, unused-ignore]
def dspark_py_propose(user_data: Any, anchor: int, position: int, n_max: int, out_ids: Any, out_n: Any) -> int:
    bridge: Bridge = ffi.from_handle(user_data)
    ids = [integer(token, "a drafted token") for token in bridge.drafter.propose(anchor, position, n_max)]
    bridge.require_target()
    if len(ids) > n_max:
        raise errors.ArgumentError(f"the drafter proposed {len(ids)} tokens, expected at most {n_max}")
    for i, token in enumerate(ids):
        out_ids[i] = token
    out_n[0] = len(ids)
    return 0
