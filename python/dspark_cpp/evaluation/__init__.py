"""dspark-cpp evaluate: how many of a draft's tokens stand, and whether its confidence head says so truly."""

from .report import evaluate

__all__ = ["evaluate"]
