"""Own CPU kernels inside llama.cpp's thread pool: rows that do not depend on their neighbours, cheap small batches."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import Literal

from . import errors
from ._native import check, ffi, lib, text

__all__ = ["KernelState", "install", "state"]

log = logging.getLogger("dspark_cpp")

#: whether install() was called before
_chosen = False

_MODES = {"auto": lib.DSPARK_KERNELS_AUTO, "on": lib.DSPARK_KERNELS_ON, "off": lib.DSPARK_KERNELS_OFF}


@dataclass(frozen=True)
class KernelState:
    """What the kernels of this process do now."""

    #: whether matrix products and attention of plain weights run here
    active: bool
    #: whether models loaded from now on keep quantised weights in the kernels' layout
    packs_weights: bool
    #: why the kernels are not active, or what they cannot do; "" if nothing is missing
    reason: str
    #: instruction set: "avx512_bf16", "avx512", "avx_vnni", "avx2", "neon_i8mm", "neon"; "" before the first install
    isa: str
    #: operations computed by the kernels so far
    n_matmul: int
    n_attention: int
    #: bytes of weights in the kernels' layout, in all models of the process
    n_bytes: int
    #: kernels of llama.cpp that crash on this machine, and that it does without: "AMX"; "" if none do
    removed: str


def install(
    mode: Literal["auto", "on", "off"] = "auto", model_path: str | os.PathLike[str] | None = None
) -> KernelState:
    """Installs the kernels for every model of this process, or switches them off; returns their state.

    Quantised weights of models that are loaded from now on are kept in the kernels' layout, and computed by them
    whatever the mode is later.  F32, F16 and BF16 weights and attention follow the mode at any time.
    "auto" installs them where they can run and says in the state's `reason` why not; "off" is llama.cpp's own.
    The environment variable DSPARK_KERNELS (on, off) decides in place of "auto".
    model_path: the file to be loaded next, whose quantised weights will be copied into memory; "auto" leaves them to
    llama.cpp, which can map the file, where less memory is available than it has bytes.
    Must not run while another thread decodes on the CPU.

    Raises:
        ArgumentError: another mode.
        BindingError: mode "on" where the kernels cannot run.
    """
    what = "the mode of the kernels"
    if mode == "auto" and os.environ.get("DSPARK_KERNELS"):
        what, mode = "the environment variable DSPARK_KERNELS", os.environ["DSPARK_KERNELS"]  # type: ignore[assignment]
    if not isinstance(mode, str) or mode not in _MODES:
        raise errors.ArgumentError(f'{what} is {mode!r}, expected "auto", "on" or "off"')
    if model_path is not None and not isinstance(model_path, (str, os.PathLike)):
        raise errors.ArgumentError(f"model_path is {model_path!r}, expected a path")
    n_bytes = os.path.getsize(model_path) if model_path is not None and os.path.exists(model_path) else 0
    before = state()
    check(lib.dspark_kernels_install(_MODES[mode], n_bytes))
    now = state()
    global _chosen
    if _chosen and before.active != now.active:  # models that are open already round differently from now on
        switched = "switched on" if now.active else f"not in use any more ({now.reason})"
        log.warning("the kernels of dspark_cpp are %s, for every model of this process", switched)
    _chosen = True
    return now


def state() -> KernelState:
    """What the kernels of this process do now."""
    seen = ffi.new("dspark_kernels_state *")
    seen.struct_size = ffi.sizeof("dspark_kernels_state")
    check(lib.dspark_kernels_get_state(seen))
    return KernelState(
        active=bool(seen.active),
        packs_weights=bool(seen.packs_weights),
        reason=text(seen.reason),
        isa=text(seen.isa),
        n_matmul=int(seen.n_matmul),
        n_attention=int(seen.n_attention),
        n_bytes=int(seen.n_bytes),
        removed=text(seen.removed),
    )
