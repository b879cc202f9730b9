"""The one GGUF writer: a draft in normal form becomes a file, a few rows at a time.

The keys are those of docs/FILE_FORMAT.md, in the order in which llama.cpp's converter writes the ones that it has too.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from gguf import GGMLQuantizationType, GGUFValueType, GGUFWriter, size_label

from ..errors import FileError, FormatError
from .gguf_file import GGUFValue, GGUFWeight
from .normal_form import Draft
from .outtype import FILE_TYPES, encode, encoded_size, storage_type
from .weights import ArrayWeight, Weight

__all__ = ["Tensor", "output_file", "write_draft", "write_gguf"]

ARCH = "dflash"
_ALIGNMENT = 32
_T = GGUFValueType


@dataclass(frozen=True)
class Tensor:
    """One tensor to be written: its GGUF name, its values and its stored type."""

    name: str
    weight: Weight
    kind: GGMLQuantizationType

    @property
    def n_bytes(self) -> int:
        """Size in the file, without padding."""
        return encoded_size(self.kind, self.weight.shape)


class _Metadata(dict[str, GGUFValue]):
    def number(self, key: str, value: int) -> None:
        self[key] = GGUFValue(_T.UINT32, None, value)

    def real(self, key: str, value: float | None) -> None:
        if value is not None:
            self[key] = GGUFValue(_T.FLOAT32, None, value)

    def text(self, key: str, value: str | None) -> None:
        if value is not None:
            self[key] = GGUFValue(_T.STRING, None, value.encode())

    def flag(self, key: str, value: bool) -> None:
        self[key] = GGUFValue(_T.BOOL, None, value)

    def integers(self, key: str, values: list[int]) -> None:
        self[key] = GGUFValue(_T.ARRAY, _T.INT32, values)

    def flags(self, key: str, values: list[bool]) -> None:
        self[key] = GGUFValue(_T.ARRAY, _T.BOOL, values)


def _metadata(draft: Draft, tensors: list[Tensor], name: str, outtype: str, uses_mrope: bool) -> _Metadata:
    m = _Metadata()
    a = f"{ARCH}.attention."
    m.text("general.type", "model")
    m.text("general.name", name)
    total = sum(t.weight.n_elements for t in tensors)
    m.text("general.size_label", size_label(total, 0, 0, 0))
    m.number(f"{ARCH}.block_count", draft.n_layer)
    m.number(f"{ARCH}.context_length", draft.context_length)
    m.number(f"{ARCH}.embedding_length", draft.n_embd)
    m.number(f"{ARCH}.feed_forward_length", draft.n_ff)
    m.number(a + "head_count", draft.n_head)
    m.number(a + "head_count_kv", draft.n_head_kv)
    _rope_metadata(m, draft)
    m.real(a + "layer_norm_rms_epsilon", draft.rms_eps)
    m.number(a + "key_length", draft.head_dim)
    m.number(a + "value_length", draft.head_dim)
    m.number("general.file_type", int(FILE_TYPES[outtype]))
    m.real(a + "value_scale", draft.value_scale)
    m.number(f"{ARCH}.block_size", draft.block_size)
    m.real(f"{ARCH}.logit_scale", draft.logit_scale)
    m.real(f"{ARCH}.final_logit_softcapping", draft.softcap)
    m.real(f"{ARCH}.embedding_scale", draft.embedding_scale)
    m.real(a + "scale", draft.attention_scale)
    m.integers(f"{ARCH}.target_layers", draft.layers.inputs)
    if draft.window is not None:
        m.number(a + "sliding_window", draft.window.size)
        m.flags(a + "sliding_window_pattern", draft.window.slides)
    # One flag for all layers is what llama.cpp knows; the pattern is ours.
    m.flag(a + "causal", all(draft.causal))
    if draft.window is not None or len(set(draft.causal)) > 1:
        m.flags(a + "causal_pattern", draft.causal)
    if draft.window is not None:
        m.text(a + "window_origin", draft.window.origin)
    if draft.value_norm:
        m.flag(a + "value_norm", True)
    if uses_mrope:
        # The target's positions have four parts; the draft's are one-dimensional and rotate by the first.
        m.integers(f"{ARCH}.rope.dimension_sections", [draft.head_dim // 2, 0, 0, 0])
    m.text(f"{ARCH}.hidden_activation", draft.hidden_activation)
    m.flag(f"{ARCH}.sample_from_anchor", draft.layout.sample_from_anchor)
    m.flag(f"{ARCH}.has_confidence_head", draft.confidence is not None)
    if draft.markov is not None and draft.markov.kind != "vanilla":
        m.text(f"{ARCH}.markov_head_type", draft.markov.kind)
    m.text(f"{ARCH}.verifier.name", draft.verifier)
    m.number(f"{ARCH}.tensor_count", len(tensors))
    m.number("general.quantization_version", 2)
    return m


def _rope_metadata(m: _Metadata, draft: Draft) -> None:
    rope, r = draft.rope, f"{ARCH}.rope."
    m.text(r + "scaling.type", rope.scaling)
    m.real(r + "scaling.factor", rope.factor)
    if rope.original_context is not None:
        m.number(r + "scaling.original_context_length", rope.original_context)
    for key, value in rope.yarn.items():
        m.real(f"{r}scaling.yarn_{key}", value)
    m.real(r + "freq_base", rope.base)
    if rope.n_rot is not None:
        m.number(r + "dimension_count", rope.n_rot)


def draft_tensors(draft: Draft, outtype: str) -> list[Tensor]:
    """The tensors of a draft's file, each with its stored type."""
    weights: dict[str, Weight] = {}
    if draft.rope.divisors is not None:
        weights["rope_freqs.weight"] = ArrayWeight("rope_freqs.weight", draft.rope.divisors)
    if draft.embeddings is not None:
        weights["token_embd.weight"] = draft.embeddings
    if draft.head is not None:
        weights["output.weight"] = draft.head
    weights.update(draft.weights)
    tensors = [Tensor(name, w, storage_type(name, w.shape, outtype)) for name, w in weights.items()]
    if draft.d2t is not None:
        tensors.append(Tensor("d2t", ArrayWeight("d2t", draft.d2t), GGMLQuantizationType.I64))
    return tensors


def output_file(path: str | os.PathLike[str]) -> Path:
    """Where a file of this name will be written: the end of its links.

    A device, pipe or socket would be replaced by a file, for everybody on the machine.
    Raises: FileError for the name of anything but a file.
    """
    out = Path(os.path.realpath(path))
    for name in (out, _partial(out)):
        if name.is_dir():
            raise FileError(f"{name}: is a folder; the name of a file is needed")
        if name.exists() and not name.is_file():
            raise FileError(f"{name}: is a device, pipe or socket; the name of a file is needed")
    return out


def _partial(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


def write_draft(
    draft: Draft,
    path: Path,
    *,
    outtype: str,
    tokenizer: dict[str, GGUFValue],
    uses_mrope: bool,
    name: str,
    provenance: dict[str, str],
    advance: Callable[[int], None] | None = None,
) -> None:
    """Write a draft to a file. On failure nothing is left at or beside `path`.

    Raises: FormatError for a value that cannot be stored; FileError where writing fails.
    """
    tensors = draft_tensors(draft, outtype)
    metadata = _metadata(draft, tensors, name, outtype, uses_mrope)
    metadata.update(tokenizer)
    metadata.number("tokenizer.ggml.mask_token_id", draft.mask_token_id)
    for key, value in provenance.items():
        metadata.text(f"{ARCH}.{key}", value)
    write_gguf(path, ARCH, metadata, tensors, advance)


def write_gguf(
    path: Path,
    arch: str,
    metadata: dict[str, GGUFValue],
    tensors: list[Tensor],
    advance: Callable[[int], None] | None = None,
) -> None:
    """Write one GGUF file: to a neighbour first, renamed when it is complete.

    Raises: FormatError for a value that cannot be stored; FileError where writing fails.
    """
    partial = _partial(path)
    try:
        _write_header(partial, arch, metadata, tensors)
        with open(partial, "r+b") as f:
            f.seek(0, os.SEEK_END)
            f.write(bytes(-f.tell() % _ALIGNMENT))
            for tensor in tensors:
                _write_data(f, tensor, advance)
        os.replace(partial, path)
    except OSError as e:
        if isinstance(e, FileError):
            raise
        raise FileError(f"{path}: cannot be written: {e.strerror or e}") from None
    finally:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            partial.unlink()


def _write_header(path: Path, arch: str, metadata: dict[str, GGUFValue], tensors: list[Tensor]) -> None:
    writer = GGUFWriter(path, arch)
    for key, value in metadata.items():
        if value.type is _T.ARRAY and not value.value:
            continue  # the format has no use for an empty array, and the gguf package refuses it
        writer.add_key_value(key, value.value, value.type, sub_type=value.item_type)
    for t in tensors:
        # The dtype argument is only looked at where raw_dtype is absent.
        writer.add_tensor_info(t.name, t.weight.shape, np.dtype(np.float32), t.n_bytes, raw_dtype=t.kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()


def _write_data(f: BinaryIO, tensor: Tensor, advance: Callable[[int], None] | None) -> None:
    written = 0
    if isinstance(tensor.weight, GGUFWeight) and tensor.weight.is_quantised and tensor.weight.type is tensor.kind:
        written = f.write(tensor.weight.raw())  # decoding and encoding blocks again could move values
    else:
        for chunk in tensor.weight.chunks():
            stored = encode(chunk, tensor.kind, tensor.weight.name)  # the checkpoint's own name, if it must be named
            f.write(np.ascontiguousarray(stored).view(np.uint8).data)
            written += stored.nbytes
            if advance:
                advance(chunk.nbytes)
    if written != tensor.n_bytes:
        raise FormatError(f"tensor {tensor.name}: {written} bytes were made, but its header says {tensor.n_bytes}")
    f.write(bytes(-written % _ALIGNMENT))
