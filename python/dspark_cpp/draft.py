"""A draft's weights, and one sequence of it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import errors
from ._native import check, ffi, lib, model_pointer, path_bytes, require_llama, text
from .params import context_params, devices, integer

__all__ = ["Draft", "DraftContext", "Proposal"]

_MARKOV = {
    lib.DSPARK_MARKOV_NONE: None,
    lib.DSPARK_MARKOV_VANILLA: "vanilla",
    lib.DSPARK_MARKOV_GATED: "gated",
    lib.DSPARK_MARKOV_RNN: "rnn",
}


def device_of_target(llm: Any) -> str:
    """The ggml device on which a llama_cpp.Llama keeps its layers: its main GPU if it offloads any, else the CPU."""
    require_llama(llm)
    gpus = [name for name, kind in devices() if kind in ("gpu", "igpu")]
    if gpus and llm.model_params.n_gpu_layers != 0:
        main_gpu = int(llm.model_params.main_gpu)
        return gpus[min(max(main_gpu, 0), len(gpus) - 1)]
    return "CPU"


class Draft:
    """The weights of a DSpark or DFlash draft, read from a GGUF file of architecture ``dflash``.

    Immutable once loaded; any number of sessions and threads may use it at once.

    Args:
        path: The GGUF file.
        device: Name of a ggml device ("CPU", "CUDA0"); default: the CPU, or the device of ``target``.
        target: A llama_cpp.Llama; the draft is then checked against it and put on its device.
        inspect: Only read and validate; such a draft has properties but cannot propose.

    Raises:
        FileError: The file is missing, unreadable or truncated.
        FormatError: It is not a draft that this version can run; the message names the key or tensor.
        MismatchError: It does not belong to ``target``.
        OutOfMemoryError: The weights do not fit on the device.
    """

    _ptr: Any = None

    def __init__(
        self, path: str | os.PathLike[str], *, device: str | None = None, target: Any = None, inspect: bool = False
    ) -> None:
        self.path = os.fspath(path)
        if device is None and target is not None:
            device = device_of_target(target)
        out = ffi.new("dspark_draft **")
        if inspect:
            check(lib.dspark_draft_inspect(path_bytes(path), out))
        else:
            params = ffi.new("dspark_draft_params *")
            lib.dspark_draft_params_init(params)
            if device is not None and not isinstance(device, str):
                raise errors.ArgumentError(f"device is {device!r}, expected the name of a ggml device")
            name = ffi.NULL if device is None else ffi.new("char[]", device.encode())
            params.device = name
            check(lib.dspark_draft_load(path_bytes(path), params, out))
        self._ptr = ffi.gc(out[0], lib.dspark_draft_free)
        info = ffi.new("dspark_draft_info *")
        info.struct_size = ffi.sizeof("dspark_draft_info")
        check(lib.dspark_draft_get_info(self._ptr, info))
        self._info = info
        layers = lib.dspark_draft_target_layers(self._ptr)
        self._target_layers = tuple(layers[i] for i in range(info.n_target_layers))
        temperature = lib.dspark_draft_confidence_temperature(self._ptr)
        self._temperature = tuple(ffi.unpack(temperature, info.n_draft_max)) if temperature != ffi.NULL else None
        #: what the file calls itself
        self.name = self.meta("general.name") or os.path.basename(self.path)
        if target is not None:
            self.check_target(target)

    def _handle(self) -> Any:
        if self._ptr is None:
            raise errors.StateError("the draft is closed")
        return self._ptr

    def check_target(self, target: Any) -> None:
        """Raises MismatchError, with both sides' values, unless the draft belongs to the target.

        ``target`` is a llama_cpp.Llama, or the path of a GGUF file, of which only the header is read.
        """
        if isinstance(target, (str, os.PathLike)):
            check(lib.dspark_draft_check_target_file(self._handle(), path_bytes(target)))
        else:
            check(lib.dspark_draft_check_target(self._handle(), model_pointer(target)))

    def meta(self, key: str) -> str | None:
        """A metadata string of the file ("general.name"), None if it has none of that name."""
        if not isinstance(key, str):
            raise errors.ArgumentError(f"key is {key!r}, expected a metadata key")
        pointer = lib.dspark_draft_meta(self._handle(), key.encode())
        return None if pointer == ffi.NULL else text(pointer)

    def scatter_logits(self, logits: npt.ArrayLike, n_vocab: int | None = None) -> npt.NDArray[np.float32]:
        """Logits of draft rows spread over the target's vocabulary.

        Shapes:
            logits: (n_vocab_draft,) or (n, n_vocab_draft) float32.
            Returns: (..., n_vocab) float32, -inf where the draft has no row.
        """
        rows = np.ascontiguousarray(logits, dtype=np.float32)
        width = self.n_vocab_draft or rows.shape[-1]
        if rows.ndim not in (1, 2) or rows.shape[-1] != width:
            raise errors.ArgumentError(f"logits has shape {rows.shape}, expected (..., {width})")
        n = n_vocab if n_vocab is not None else (self.n_vocab or width)
        out = np.empty((*rows.shape[:-1], n), dtype=np.float32)
        for row, spread in zip(rows.reshape(-1, width), out.reshape(-1, n), strict=True):
            check(
                lib.dspark_draft_scatter_logits(
                    self._handle(), ffi.cast("float *", row.ctypes.data), ffi.cast("float *", spread.ctypes.data), n
                )
            )
        return out

    @property
    def target_layers(self) -> tuple[int, ...]:
        """The tapped target layers, as inputs of layer i, in the order of the context fuse."""
        return self._target_layers

    @property
    def n_features(self) -> int:
        """Width of one row of target features: len(target_layers) * n_embd."""
        return len(self._target_layers) * self.n_embd

    @property
    def n_layer(self) -> int:
        return int(self._info.n_layer)

    @property
    def n_embd(self) -> int:
        return int(self._info.n_embd)

    @property
    def n_vocab(self) -> int:
        """Size of the target's vocabulary; 0 if the file does not say."""
        return int(self._info.n_vocab)

    @property
    def n_vocab_draft(self) -> int:
        """Rows of the draft's own head; 0 if it borrows the target's and the file does not say."""
        return int(self._info.n_vocab_draft)

    @property
    def block_size(self) -> int:
        """Slots of one block."""
        return int(self._info.block_size)

    @property
    def n_draft_max(self) -> int:
        """Tokens that one block proposes: block_size (anchor-first) or block_size - 1 (1+N)."""
        return int(self._info.n_draft_max)

    @property
    def sample_from_anchor(self) -> bool:
        """True: anchor-first layout. False: 1+N, slot 0 predicts nothing."""
        return bool(self._info.sample_from_anchor)

    @property
    def mask_token_id(self) -> int:
        return int(self._info.mask_token_id)

    @property
    def markov_type(self) -> str | None:
        return _MARKOV[self._info.markov_type]

    @property
    def has_confidence(self) -> bool:
        return bool(self._info.has_confidence)

    @property
    def confidence_temperature(self) -> tuple[float, ...] | None:
        """What the confidence head's logits are divided by, for each drafted token; None: nothing was calibrated."""
        return self._temperature

    @property
    def n_bytes(self) -> int:
        """Bytes of weights on the device."""
        return int(self._info.n_bytes)

    def describe(self) -> dict[str, Any]:
        """Everything that is known of the draft, as plain values."""
        info = self._info
        return {
            "path": self.path,
            "name": self.name,
            "architecture": "dflash",
            "kind": "DSpark" if info.markov_type or info.has_confidence else "DFlash",
            "layout": "anchor-first" if info.sample_from_anchor else "1+N",
            "block_size": self.block_size,
            "n_draft_max": self.n_draft_max,
            "target_layers": list(self.target_layers),
            "verifier": self.meta("dflash.verifier.name"),
            "n_layer": self.n_layer,
            "n_embd": self.n_embd,
            "n_head": int(info.n_head),
            "n_head_kv": int(info.n_head_kv),
            "n_embd_head": int(info.n_embd_head),
            "n_ff": int(info.n_ff),
            "n_ctx_train": int(info.n_ctx_train),
            "sliding_window": int(info.n_swa) or None,
            "n_vocab": self.n_vocab or None,
            "n_vocab_draft": self.n_vocab_draft or None,
            "mask_token_id": self.mask_token_id,
            "markov": self.markov_type,
            "markov_rank": int(info.markov_rank) or None,
            "confidence": self.has_confidence,
            "confidence_temperature": self._temperature and [round(t, 4) for t in self._temperature],
            "embedding": "own" if info.has_token_embd else "target's",
            "head": "own" if info.has_output else "target's",
            "n_params": int(info.n_params),
        }

    @property
    def closed(self) -> bool:
        return self._ptr is None

    def close(self) -> None:
        """Drops the weights unless a session still uses them. May be called more than once."""
        if self._ptr is not None:
            ffi.release(self._ptr)
            self._ptr = None

    def __enter__(self) -> Draft:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else f"{self.n_draft_max} drafts a round"
        return f"<Draft {self.name!r}: {state}>"


@dataclass(frozen=True)
class Proposal:
    """One proposed block.

    Shapes:
        ids: (n,) int32 target ids. confidence: (n,) float32, P(accepted | all earlier accepted), or None.
        logits: (n, n_vocab_draft) float32 in draft rows, if asked for.
    """

    ids: npt.NDArray[np.int32]
    confidence: npt.NDArray[np.float32] | None
    logits: npt.NDArray[np.float32] | None

    def __len__(self) -> int:
        return len(self.ids)


def is_draft(path: str | os.PathLike[str]) -> bool:
    """Whether a file is a draft that this version can run; only its header is read."""
    try:
        Draft(path, inspect=True).close()
    except errors.DSparkError:
        return False
    return True


class DraftContext:
    """One sequence of a draft, for whoever drives the target himself. One thread at a time.

    Args:
        draft: A loaded Draft.
        target: The llama_cpp.Llama that lends embedding and head where the draft has none; kept alive.
        n_threads: Threads of the draft's graph; default: up to 4.
        type_k, type_v: ggml types of the draft's cache ("f32", "f16", "q8_0", ...).
        n_ctx: Longest sequence that is drafted for; None: no limit.
    """

    _ptr: Any = None

    def __init__(
        self,
        draft: Draft,
        target: Any = None,
        *,
        n_threads: int | None = None,
        type_k: str = "f16",
        type_v: str = "f16",
        n_ctx: int | None = None,
    ) -> None:
        params = context_params(n_threads=n_threads, type_k=type_k, type_v=type_v, n_ctx=n_ctx)
        out = ffi.new("dspark_draft_context **")
        model = ffi.NULL if target is None else model_pointer(target)
        check(lib.dspark_draft_context_create(draft._handle(), model, params, out))
        self._ptr = ffi.gc(out[0], lib.dspark_draft_context_free)
        self._closed = False
        self.draft = draft
        self._target = target

    def _handle(self) -> Any:
        if self.closed:
            raise errors.StateError("the draft context is closed")
        if self._target is not None:
            require_llama(self._target)
        return self._ptr

    def _state(self) -> Any:
        out = ffi.new("dspark_draft_context_state *")
        out.struct_size = ffi.sizeof("dspark_draft_context_state")
        check(lib.dspark_draft_context_get_state(self._handle(), out))
        return out

    @property
    def n_past(self) -> int:
        """Positions whose features the context holds."""
        return int(self._state().n_past)

    @property
    def kv_size(self) -> int:
        """Bytes of the K/V cache as it is now."""
        return int(self._state().kv_size)

    def append(self, features: npt.ArrayLike) -> None:
        """Adds the features of the next positions.

        Shapes:
            features: (n, draft.n_features) float32, a row being the concatenated inputs of draft.target_layers.
        """
        rows = np.ascontiguousarray(features, dtype=np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.draft.n_features:
            raise errors.ArgumentError(f"features has shape {rows.shape}, expected (n, {self.draft.n_features})")
        if len(rows):
            pointer = ffi.cast("float *", rows.ctypes.data)
            check(lib.dspark_draft_context_append(self._handle(), pointer, len(rows)))

    def rewind(self, n_past: int) -> None:
        """Drops the positions from n_past on."""
        check(lib.dspark_draft_context_rewind(self._handle(), integer(n_past, "n_past")))

    def propose(self, anchor: int, n_max: int | None = None, *, logits: bool = False) -> Proposal:
        """Proposes up to n_max tokens to follow anchor, the token at position n_past.

        The block is always run at its full trained size; a smaller n_max gives a prefix. Empty when the block does not
        fit below n_ctx.

        Raises:
            ArgumentError: anchor or n_max is out of range. StateError: no features were appended yet.
        """
        out = ffi.new("dspark_proposal *")
        n_max = self.draft.n_draft_max if n_max is None else integer(n_max, "n_max")
        anchor = integer(anchor, "anchor")
        rows = (
            np.empty((min(max(n_max, 0), self.draft.n_draft_max), self._state().n_logits), np.float32)
            if logits
            else None
        )
        pointer = ffi.NULL if rows is None else ffi.cast("float *", rows.ctypes.data)
        check(lib.dspark_draft_context_propose(self._handle(), anchor, n_max, pointer, out))
        n = out.n

        def copy(values: Any, dtype: Any) -> Any:
            return np.frombuffer(ffi.buffer(values), dtype=dtype)[:n].copy()

        return Proposal(
            ids=copy(out.ids, np.int32),
            confidence=1 / (1 + np.exp(-copy(out.confidence_logits, np.float32))) if out.has_confidence else None,
            logits=None if rows is None else rows[:n],
        )

    @property
    def closed(self) -> bool:
        return self._ptr is None or self._closed

    def close(self) -> None:
        """Frees the cache. May be called more than once."""
        if self._ptr is not None:
            check(lib.dspark_draft_context_close(self._ptr))
            self._closed = True

    def __enter__(self) -> DraftContext:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
