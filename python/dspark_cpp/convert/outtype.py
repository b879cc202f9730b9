"""Element types of the file: which tensor is stored as what, and the conversion itself.

Norms, biases, sinks and scales are F32 and d2t is I64 always. Of the matrices, the Markov and confidence heads stay in
f16 when the rest is quantised: W1 is a lookup whose rows are used singly, W2's product is added to logits, and the
confidence head is one row.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, LlamaFileType
from gguf.quants import quantize

from ..errors import ArgumentError, FormatError
from .weights import BF16, AnyArray, Weight, as_f32, is_finite

__all__ = ["OUTTYPES", "FILE_TYPES", "resolve_outtype", "storage_type", "encode", "encoded_size"]

Q = GGMLQuantizationType

OUTTYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "auto")
_TYPES = {"f32": Q.F32, "f16": Q.F16, "bf16": Q.BF16, "q8_0": Q.Q8_0, "q4_0": Q.Q4_0}
FILE_TYPES = {
    "f32": LlamaFileType.ALL_F32,
    "f16": LlamaFileType.MOSTLY_F16,
    "bf16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
    "q4_0": LlamaFileType.MOSTLY_Q4_0,
}
_QUANTISED = (Q.Q8_0, Q.Q4_0)
_KEPT_F16 = ("markov_w1.weight", "markov_w2.weight", "markov_gate.weight", "markov_joint.weight", "conf_proj.weight")
# Tables of token rows: errors here go straight into logits and inputs, and 4 bits cost more there than elsewhere.
_KEPT_Q8 = ("output.weight", "token_embd.weight")


def resolve_outtype(outtype: str, weights: Iterable[Weight]) -> str:
    """The type that "auto" stands for: the one that most of the checkpoint's matrix elements have.

    bf16 stays bf16, which is exact; f16 would lose small values.

    Raises: ArgumentError for an unknown name.
    """
    if outtype not in OUTTYPES:
        raise ArgumentError(f"outtype is {outtype!r}, but one of {', '.join(OUTTYPES)} is needed")
    if outtype != "auto":
        return outtype
    count: Counter[np.dtype] = Counter()
    for weight in weights:
        if len(weight.shape) > 1:
            count[weight.dtype] += weight.n_elements
    names = {np.dtype(np.float16): "f16", BF16: "bf16"}
    return names.get(count.most_common(1)[0][0], "f32") if count else "f32"


def storage_type(name: str, shape: tuple[int, ...], outtype: str, quantize_heads: bool = False) -> GGMLQuantizationType:
    """The type that one tensor is stored as. Shapes: NumPy order."""
    if len(shape) < 2 or not name.endswith(".weight") or name.endswith("_norm.weight"):
        return Q.F32
    kind = _TYPES[outtype]
    if kind in _QUANTISED:
        if name in _KEPT_F16 and not quantize_heads:
            return Q.F16
        if name in _KEPT_Q8:
            kind = Q.Q8_0
        if shape[-1] % GGML_QUANT_SIZES[kind][0]:
            return Q.F16  # ggml's blocks lie within a row
    return kind


def encoded_size(kind: GGMLQuantizationType, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor of this type and shape."""
    block, size = GGML_QUANT_SIZES[kind]
    return math.prod(shape) // int(block) * int(size)


def encode(values: AnyArray, kind: GGMLQuantizationType, name: str) -> AnyArray:
    """Some rows of a tensor, as they are stored.

    Raises: FormatError where a value is NaN or infinite, or does not fit in the type.
    """
    if not is_finite(values):
        bad = np.argwhere(~np.isfinite(as_f32(values)))[0]
        raise FormatError(
            f"tensor {name}: {as_f32(values)[tuple(bad)]} among its values, but finite numbers are needed"
        )
    if kind is Q.I64:
        return values.astype("<i8", copy=False)
    if kind is Q.BF16:
        return values if values.dtype == BF16 else as_f32(values).astype(BF16)
    if kind is Q.F16 and values.dtype == np.float16:
        return values
    wide = as_f32(values)
    if kind is Q.F32:
        return _checked(wide, values, kind, name)
    if kind is Q.F16:
        with np.errstate(over="ignore"):
            return _checked(wide.astype(np.float16), values, kind, name)
    packed: AnyArray = quantize(wide, kind)
    # The block's scale is an f16: a large value overflows it and the whole block becomes infinite.
    block, _ = GGML_QUANT_SIZES[kind]
    limit = 65504.0 * (127 if kind is Q.Q8_0 else 8)
    if np.abs(wide).max(initial=0.0) > limit:
        raise _too_large(wide, kind, name)
    return packed


def _checked(out: AnyArray, values: AnyArray, kind: GGMLQuantizationType, name: str) -> AnyArray:
    if not is_finite(out):
        raise _too_large(values, kind, name)
    return out


def _too_large(values: AnyArray, kind: GGMLQuantizationType, name: str) -> FormatError:
    largest = float(np.abs(values.astype(np.float64)).max())
    return FormatError(
        f"tensor {name}: a value of magnitude {largest:.6g} does not fit in {kind.name}; use bf16 or f32"
    )
