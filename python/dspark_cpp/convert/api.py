"""Converting a checkpoint: from a folder and a target to a GGUF file, with a report of what was decided."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import ArgumentError, MismatchError
from .checkpoint import Checkpoint
from .fields.slots import INPUT_IDS, OUTPUT_IDS
from .normal_form import Draft
from .outtype import resolve_outtype
from .schemas import find_schema, read_draft
from .sharing import decide_sharing
from .target import Target, open_target, tokens_sha256
from .writer import draft_tensors, output_file, write_draft

__all__ = ["ConvertReport", "Progress", "convert_checkpoint", "describe_checkpoint"]

PathLike = str | os.PathLike[str]
Progress = Callable[[str, int, int], None]
"""Called as progress(what, bytes_done, bytes_in_all)."""


@dataclass
class ConvertReport:
    """What a conversion decided and why. `layer_inputs` are ids of layer inputs, `layer_outputs` the same minus 1."""

    path: Path
    schema: str
    family: str
    sample_from_anchor: bool
    layout_reason: str
    block_size: int
    max_draft: int
    layer_inputs: list[int]
    layer_outputs: list[int]
    layer_ids_key: str
    n_vocab: int
    n_vocab_draft: int
    markov: str | None
    markov_rank: int
    confidence: str | None
    hidden_activation: str
    mask_token_id: int
    target_architecture: str
    verifier: str | None
    outtype: str
    n_tensors: int
    n_parameters: int
    n_bytes: int
    tokens_sha256: str
    source_sha256: str
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    @property
    def layout(self) -> str:
        """ "anchor" or "bonus"."""
        return "anchor" if self.sample_from_anchor else "bonus"

    def lines(self) -> list[str]:
        """The report as lines for people."""
        layout = "anchor-first" if self.sample_from_anchor else "1+N"
        vocabulary = f"{self.n_vocab_draft} of {self.n_vocab}" if self.n_vocab_draft < self.n_vocab else "the target's"
        markov = f"{self.markov}, rank {self.markov_rank}" if self.markov else "none"
        inputs = {"hidden": "hidden state", "hidden+markov": "hidden state and Markov embedding"}
        confidence = f"from {inputs[self.confidence]}" if self.confidence else "none"
        verifier = f" (made for {self.verifier})" if self.verifier else ""
        return [
            f"schema:      {self.schema}, a {self.family} draft",
            f"target:      {self.target_architecture}{verifier}",
            f"layout:      {layout}: block of {self.block_size}, drafts up to {self.max_draft} ({self.layout_reason})",
            f"layers:      inputs {self.layer_inputs} = outputs {self.layer_outputs} (from {self.layer_ids_key})",
            f"vocabulary:  {vocabulary}; mask token {self.mask_token_id}",
            f"markov:      {markov}",
            f"confidence:  {confidence}",
            f"activation:  {self.hidden_activation}",
            *(f"note:        {note}" for note in self.notes),
            *(f"warning:     {warning}" for warning in self.warnings),
            f"wrote:       {self.path}: {self.outtype}, {self.n_tensors} tensors, "
            f"{self.n_parameters / 1e6:.1f} M parameters, {self.n_bytes / 2**20:.1f} MiB",
        ]


def convert_checkpoint(
    checkpoint_dir: PathLike,
    target: PathLike,
    out_path: PathLike,
    *,
    outtype: str = "auto",
    self_contained: bool = False,
    layout: str | None = None,
    progress: Progress | None = None,
) -> ConvertReport:
    """Convert a DSpark or DFlash checkpoint to a GGUF file.

    `target` is the model that the draft is for: a GGUF file, or a folder with config.json and tokenizer.json.
    `outtype` is one of f32, f16, bf16, q8_0, q4_0, auto (auto: the checkpoint's own type). `self_contained` writes the
    embedding and the head even where the target's can be borrowed. `layout` ("anchor" or "bonus") overrides the config.

    Raises: FileError, FormatError, MismatchError or ArgumentError; nothing is written then.
    """
    if checkpoint_dir is None or target is None:
        raise ArgumentError(
            "a checkpoint folder and a target are needed: the draft takes its tokenizer from the target"
        )
    if layout not in (None, "anchor", "bonus"):
        raise ArgumentError(f"layout is {layout!r}, but 'anchor' or 'bonus' is needed")
    out = output_file(out_path)
    checkpoint = Checkpoint(Path(checkpoint_dir))
    outtype = resolve_outtype(outtype, checkpoint.tensors.values())
    find_schema(checkpoint)  # a foreign draft is refused for what it is, not for what its target lacks
    opened = open_target(Path(target))
    draft = read_draft(checkpoint, opened, layout)
    _compare_verifier(draft, checkpoint, opened)
    decide_sharing(draft, opened, self_contained)

    tensors = draft_tensors(draft, outtype)
    n_hash = sum(w.n_bytes for w in checkpoint.tensors.values())
    n_data = sum(t.weight.n_elements * t.weight.dtype.itemsize for t in tensors)
    source_hash = checkpoint.sha256(_advance(progress, "hashing", n_hash))
    token_hash = tokens_sha256(opened.tokens)
    write_draft(
        draft,
        out,
        outtype=outtype,
        tokenizer=opened.tokenizer,
        uses_mrope=opened.uses_mrope,
        name=checkpoint.folder.resolve().name,
        provenance={
            "tokens_sha256": token_hash,
            "source.format": draft.schema,
            "source.sha256": source_hash,
            "source.converter": f"dspark-cpp {__version__}",
        },
        advance=_advance(progress, "writing", n_data),
    )
    return ConvertReport(
        path=out,
        schema=draft.schema,
        family=draft.family,
        sample_from_anchor=draft.layout.sample_from_anchor,
        layout_reason=draft.layout.reason,
        block_size=draft.block_size,
        max_draft=draft.layout.max_draft(draft.block_size),
        layer_inputs=draft.layers.inputs,
        layer_outputs=[i - 1 for i in draft.layers.inputs],
        layer_ids_key=draft.layers.key,
        n_vocab=draft.n_vocab,
        n_vocab_draft=draft.n_vocab_draft,
        markov=draft.markov.kind if draft.markov else None,
        markov_rank=draft.markov.rank if draft.markov else 0,
        confidence=draft.confidence,
        hidden_activation=draft.hidden_activation,
        mask_token_id=draft.mask_token_id,
        target_architecture=opened.architecture,
        verifier=draft.verifier,
        outtype=outtype,
        n_tensors=len(tensors),
        n_parameters=sum(t.weight.n_elements for t in tensors),
        n_bytes=out.stat().st_size,
        tokens_sha256=token_hash,
        source_sha256=source_hash,
        notes=draft.notes,
        warnings=draft.warnings,
    )


def _advance(progress: Progress | None, what: str, total: int) -> Callable[[int], None] | None:
    if progress is None:
        return None
    report, done = progress, 0

    def advance(n: int) -> None:
        nonlocal done
        done += n
        report(what, done, total)

    return advance


def _family_name(architecture: str) -> str:
    for ending in ("ForCausalLM", "ForConditionalGeneration"):
        architecture = architecture.removesuffix(ending)
    return architecture.lower().replace("_", "")


def _compare_verifier(draft: Draft, checkpoint: Checkpoint, target: Target) -> None:
    """Warn where the checkpoint names a verifier of another architecture than the target's."""
    names = checkpoint.config.get("speculators_config.verifier.architectures")
    if not isinstance(names, list) or not names or not isinstance(names[0], str):
        return
    wanted, seen = _family_name(names[0]), _family_name(target.architecture)
    if not wanted.startswith(seen) and not seen.startswith(wanted):
        draft.warnings.append(f"the checkpoint was made for {names[0]}, but the target is {target.architecture}")


def describe_checkpoint(checkpoint_dir: PathLike, target: PathLike | None = None) -> dict[str, Any]:
    """What a checkpoint folder holds, read by the converter's own rules but without converting it.

    With a target, `fits` says whether the draft belongs to it, and `misfit` why not; else both are absent.

    Raises: FileError, FormatError or MismatchError where it cannot be read, is of no known schema or contradicts
    itself.
    """
    checkpoint = Checkpoint(Path(checkpoint_dir))
    find_schema(checkpoint)
    draft = read_draft(checkpoint, _presumed_target(checkpoint))
    types = sorted({w.dtype_name for w in checkpoint.tensors.values()})
    facts: dict[str, Any] = {
        "path": str(checkpoint_dir),
        "name": checkpoint.folder.resolve().name,
        "architecture": checkpoint.architecture,
        "kind": "DSpark" if draft.markov or draft.confidence else "DFlash",
        "schema": draft.schema,
        "verifier": draft.verifier,
        "layout": "anchor-first" if draft.layout.sample_from_anchor else "1+N",
        "layout_reason": draft.layout.reason,
        "block_size": draft.block_size,
        "n_draft_max": draft.layout.max_draft(draft.block_size),
        "target_layers": draft.layers.inputs,
        "target_layer_outputs": [i - 1 for i in draft.layers.inputs],
        "layer_ids_key": draft.layers.key,
        "n_layer": draft.n_layer,
        "n_embd": draft.n_embd,
        "n_head": draft.n_head,
        "n_head_kv": draft.n_head_kv,
        "n_embd_head": draft.head_dim,
        "n_ff": draft.n_ff,
        "n_ctx_train": draft.context_length,
        "sliding_window": draft.window.size if draft.window else None,
        "hidden_activation": draft.hidden_activation,
        "n_vocab": draft.n_vocab,
        "n_vocab_draft": draft.n_vocab_draft,
        "mask_token_id": draft.mask_token_id,
        "markov": draft.markov.kind if draft.markov else None,
        "markov_rank": draft.markov.rank if draft.markov else None,
        "confidence": draft.confidence is not None,
        "confidence_input": draft.confidence,
        "embedding": "in the checkpoint" if draft.embeddings is not None else "target's",
        "head": "in the checkpoint" if draft.head is not None else "target's",
        "n_tensors": len(checkpoint.tensors),
        "n_params": sum(w.n_elements for w in checkpoint.tensors.values()),
        "n_bytes": sum(w.n_bytes for w in checkpoint.tensors.values()),
        "types": types,
    }
    if target is not None:
        opened = open_target(Path(target))
        try:
            draft = read_draft(checkpoint, opened)
            _compare_verifier(draft, checkpoint, opened)
            decide_sharing(draft, opened, self_contained=False)
            facts |= {"fits": True, "misfit": None}
        except MismatchError as e:
            facts |= {"fits": False, "misfit": str(e)}
    return facts | {"notes": draft.notes, "warnings": draft.warnings}


def _presumed_target(checkpoint: Checkpoint) -> Target:
    """The target that a checkpoint speaks of, so that it can be read by the same rules when the real one is not there.

    Sizes that are not numbers are left to the reader, which refuses them by name.
    """

    def number(key: str) -> int:
        for prefix in ("transformer_layer_config.", ""):
            value = checkpoint.config.get(prefix + key)
            if type(value) is int:
                return value
        return 0

    ids = [checkpoint.config.get(key) for key in (*OUTPUT_IDS, *INPUT_IDS)]
    taps = [i for found in ids if isinstance(found, list) for i in found if type(i) is int]
    return Target(
        path=Path("that the config describes"),  # reads well in "the target {path} has"
        architecture="unknown",
        hidden_size=number("hidden_size"),
        n_layer=number("num_target_layers") or max(taps, default=0) + 2,
        n_vocab=number("vocab_size"),
        tokens=[],
        tokenizer={},
        uses_mrope=False,
    )
