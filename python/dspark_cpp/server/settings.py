"""llama_cpp.server's settings, and those of a model's draft. Each is a flag, a key of a config file, and a variable."""

from __future__ import annotations

# ruff: noqa: UP045 - llama_cpp.server makes flags of Optional fields, not of `X | None`
from typing import Any, Literal, Optional

from llama_cpp.server import settings as base
from llama_cpp.server.settings import ServerSettings
from pydantic import Field, model_validator

__all__ = ["ConfigFileSettings", "ModelSettings", "ServerSettings", "Settings", "draft_arguments"]

_LOOKUP = "prompt-lookup-decoding"
#: fields that are keywords of dspark_cpp.Llama
_KEYWORDS = (
    "draft",
    "draft_n_max",
    "draft_n_gpu_layers",
    "draft_n_threads",
    "draft_n_ctx",
    "draft_type_k",
    "draft_type_v",
    "draft_verify",
    "confidence_min",
    "kernels",
)


class ModelSettings(base.ModelSettings):  # type: ignore[misc, unused-ignore]
    """A model and its draft."""

    draft: Optional[str] = Field(
        default=None,
        description="Path of the draft's GGUF file; with draft_hf_repo_id, the name of a file of that repository.",
    )
    draft_hf_repo_id: Optional[str] = Field(
        default=None, description="Hugging Face repository of the draft; for a model that comes from one too."
    )
    draft_n_max: Optional[int] = Field(
        default=None,
        ge=0,
        description="Most drafted tokens a round. Without it chosen automatically; 0: none.",
    )
    draft_n_gpu_layers: Optional[int] = Field(
        default=None,
        ge=-1,
        description="0 keeps the draft on the CPU, any other number puts it on the GPU. Without it: as the model.",
    )
    draft_n_threads: Optional[int] = Field(
        default=None, ge=1, description="Threads of the draft. Without it: as the model's n_threads."
    )
    draft_n_ctx: Optional[int] = Field(
        default=None, ge=1, description="Longest sequence that is drafted for. Without it there is no limit."
    )
    draft_type_k: str = Field(default="f16", description="Type of the draft's key cache, for example f16 or q8_0.")
    draft_type_v: str = Field(default="f16", description="Type of the draft's value cache.")
    draft_verify: Literal["match", "rejection"] = Field(
        default="match",
        description="How drafts are verified when sampling: match keeps seeds, rejection accepts more.",
    )
    confidence_min: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="A proposal ends before the first token whose confidence is lower. 0 is off.",
    )
    kernels: Literal["auto", "on", "off"] = Field(
        default="auto", description="Whether this package's CPU kernels compute the model; auto: where they can."
    )
    flash_attn: Optional[bool] = Field(
        default=None, description="Whether to use flash attention. Without it: where this package's kernels are."
    )
    # the base's default, True, keeps n_ctx rows of logits in memory: 20 GB at 32768 tokens and 150 000 words
    logits_all: bool = Field(
        default=False, description="Whether to keep the logits of all tokens, which requests with logprobs need."
    )
    draft_model: Optional[str] = Field(
        default=None, description=f"{_LOOKUP}: drafts with text of the prompt. For a draft's file use draft."
    )

    @model_validator(mode="after")
    def _one_kind_of_draft(self) -> ModelSettings:
        if self.draft_model not in (None, _LOOKUP):
            raise ValueError(
                f"draft_model is {self.draft_model!r}, expected {_LOOKUP}; the path of a draft is given as draft"
            )
        if self.draft_model is not None and self.draft is not None:
            raise ValueError("draft and draft_model are both given; a model has one way of drafting")
        if self.draft_hf_repo_id is not None and (self.draft is None or self.hf_model_repo_id is None):
            raise ValueError("draft_hf_repo_id needs draft, the name of a file, and a model with hf_model_repo_id")
        return self


class Settings(ServerSettings, ModelSettings):  # type: ignore[misc, unused-ignore]
    """A server with one model."""


class ConfigFileSettings(ServerSettings):  # type: ignore[misc, unused-ignore]
    """A config file: the server's settings, and ``models``, each with a draft of its own."""

    models: list[ModelSettings] = Field(default=[], description="Model configs")


def draft_arguments(settings: Any) -> dict[str, Any]:
    """The keywords that dspark_cpp.Llama takes beside the base's; none for the base's own settings."""
    if not isinstance(settings, ModelSettings):
        return {}
    arguments = {name: getattr(settings, name) for name in _KEYWORDS}
    if settings.draft_hf_repo_id is not None:
        arguments["draft_repo_id"] = settings.draft_hf_repo_id
        arguments["draft_filename"] = arguments.pop("draft")
    if settings.draft is None:  # draft_n_gpu_layers of nothing is an error elsewhere
        arguments.pop("draft_n_gpu_layers")
    return arguments
