"""The checkpoint schemas, one file each. A new one is a new file and a line in SCHEMAS."""

from __future__ import annotations

from types import ModuleType

from ...errors import FormatError
from ..checkpoint import Checkpoint
from ..fields.source import Source
from ..normal_form import Draft
from ..target import Target
from . import deepspec_gemma4, deepspec_qwen3, dflash, flat_aux, specforge, speculators
from .refused import refuse_other_families

__all__ = ["SCHEMAS", "find_schema", "read_draft"]

# In order of testing. Class names do not settle it: "DSparkDraftModel" is written by SpecForge (anchor-first) and by
# speculators (either layout) alike, so the shape of the config goes first.
SCHEMAS: tuple[ModuleType, ...] = (speculators, deepspec_gemma4, flat_aux, specforge, deepspec_qwen3, dflash)

ARCHITECTURES = tuple(dict.fromkeys(name for schema in SCHEMAS for name in getattr(schema, "ARCHITECTURES", ())))


def find_schema(checkpoint: Checkpoint) -> ModuleType:
    """The schema that a checkpoint is written in.

    Raises: FormatError for a family that is not supported or a class that is not known.
    """
    refuse_other_families(checkpoint)
    name = checkpoint.architecture
    tagged = checkpoint.config.get("speculators_model_type") in ("dspark", "dflash")
    if name not in ARCHITECTURES and not (name is None and tagged):
        raise FormatError(
            f"{checkpoint.config.where}: architectures is {[name] if name else 'missing'}, but one of "
            f"{', '.join(ARCHITECTURES)} is needed"
        )
    for schema in SCHEMAS:
        if schema.matches(checkpoint):
            return schema
    raise FormatError(f"{checkpoint.config.where}: the config fits none of the known schemas")


def read_draft(checkpoint: Checkpoint, target: Target, layout: str | None = None) -> Draft:
    """Read a checkpoint of any known schema into the normal form.

    Raises: FormatError or MismatchError where it cannot be.
    """
    schema = find_schema(checkpoint)
    draft: Draft = schema.read(Source(checkpoint, checkpoint.config, target, layout))
    return draft
