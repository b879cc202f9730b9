"""Whether a draft's file carries an embedding and a head, or borrows the target's.

They go together: a file with an embedding and no head makes llama.cpp use the embedding as head, which is wrong for an
untied target. A reduced head is the draft's own and always written.
"""

from __future__ import annotations

import numpy as np

from ..errors import MismatchError
from .gguf_file import GGUFWeight
from .normal_form import Draft
from .target import Target
from .weights import PatchedWeight, Weight, as_f32

__all__ = ["decide_sharing"]

_SAMPLED_ROWS = 64
# Relative distance of sampled rows up to which two tables count as the same one: rounding to bf16 gives about 0.002,
# rounding to 4 or 5 bits about 0.1; different tables are near 1.
_SAME_FLOAT, _SAME_QUANTISED = 0.02, 0.25


def _distance(mine: Weight, theirs: Weight) -> float:
    rows = np.unique(np.linspace(0, mine.shape[0] - 1, _SAMPLED_ROWS).astype(int))
    difference = size = 0.0
    with np.errstate(invalid="ignore", over="ignore"):
        for row in rows:
            a, b = as_f32(mine.rows(row, row + 1)), as_f32(theirs.rows(row, row + 1))
            difference += float(np.square(a - b, dtype=np.float64).sum())
            size += float(np.square(b, dtype=np.float64).sum())
    return float(np.sqrt(difference / size)) if size > 0 else float(difference > 0)


def _is_same(mine: Weight | None, theirs: Weight | None) -> bool | None:
    """Whether two tables are copies of each other; None where one is not at hand."""
    if mine is None or theirs is None:
        return None
    limit = _SAME_QUANTISED if isinstance(theirs, GGUFWeight) and theirs.is_quantised else _SAME_FLOAT
    # A NaN makes the comparison false: such a table is not a copy, and the writer then refuses it by name.
    return mine.shape == theirs.shape and _distance(mine, theirs) <= limit


def decide_sharing(draft: Draft, target: Target, self_contained: bool) -> None:
    """Set the draft's `embeddings` and `head` to what its file is to carry, and note why.

    Raises: MismatchError where the target's table, which is needed, is not at hand or of another size.
    """
    reduced = draft.n_vocab_draft < draft.n_vocab
    shipped = [name for name, w in (("embedding", draft.embeddings), ("head", draft.head)) if w is not None]
    if draft.mask_row is not None:
        _fill(draft, target)
        assert draft.embeddings is not None
        draft.embeddings = PatchedWeight(draft.embeddings, draft.mask_token_id, draft.mask_row)
        draft.notes.append("embedding and head: written, since mask_embedding.pt replaces the mask token's input row")
    elif self_contained:
        own = f"{' and '.join(shipped)} of the checkpoint" if shipped else "nothing in the checkpoint"
        _fill(draft, target)
        draft.notes.append(f"embedding and head: written, as asked for ({own}, the rest from the target)")
    elif reduced:
        draft.notes.append(
            f"head: written ({draft.n_vocab_draft} rows of its own); embedding: "
            + ("written, as shipped" if draft.embeddings is not None else "the target's")
        )
    elif not shipped:
        draft.notes.append("embedding and head: the target's (the checkpoint ships neither)")
    else:
        verdicts = [_is_same(draft.embeddings, target.embeddings), _is_same(draft.head, target.head)]
        if False in verdicts:
            _fill(draft, target)
            draft.notes.append("embedding and head: written, since the checkpoint's differ from the target's")
        else:
            compared = "copies of the target's" if None not in verdicts else "taken to be copies of the target's"
            draft.embeddings = draft.head = None
            draft.notes.append(
                f"embedding and head: the target's ({' and '.join(shipped)} in the checkpoint: {compared})"
            )


def _fill(draft: Draft, target: Target) -> None:
    """Take from the target what the checkpoint does not ship."""
    for attribute, what in (("embeddings", "embedding"), ("head", "head")):
        if getattr(draft, attribute) is not None:
            continue
        theirs: Weight | None = getattr(target, attribute)
        if theirs is None:
            raise MismatchError(f"{target.path}: the target's {what} is needed, but its weights are not there")
        if theirs.shape != (draft.n_vocab, draft.n_embd):
            raise MismatchError(
                f"{target.path}: the target's {what} has shape {list(theirs.shape)}, "
                f"but {[draft.n_vocab, draft.n_embd]} is needed"
            )
        setattr(draft, attribute, theirs)
