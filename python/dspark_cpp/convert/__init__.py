"""Checkpoints of DSpark and DFlash drafts to GGUF, without torch: one schema file each, one normal form, one writer."""

from .api import ConvertReport, convert_checkpoint, describe_checkpoint
from .quantize import QuantizeReport, quantize_gguf

__all__ = ["ConvertReport", "QuantizeReport", "convert_checkpoint", "describe_checkpoint", "quantize_gguf"]
