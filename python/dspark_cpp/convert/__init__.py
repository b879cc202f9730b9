"""Checkpoints of DSpark and DFlash drafts to GGUF, without torch: one schema file each, one normal form, one writer."""

from .api import ConvertReport, convert_checkpoint, describe_checkpoint

__all__ = ["ConvertReport", "convert_checkpoint", "describe_checkpoint"]
