"""Draft families that are recognised and not converted, each with what it would take."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import FormatError
from ..checkpoint import Checkpoint

__all__ = ["refuse_other_families"]


def _has_tensor(checkpoint: Checkpoint, *parts: str) -> bool:
    return any(part in name for name in checkpoint.tensors for part in parts)


def _is_dsv4(c: Checkpoint) -> bool:
    keys = ("dspark_block_size", "dspark_target_layer_ids", "dspark_noise_token_id", "dspark_markov_rank")
    return any(c.config.has(k) for k in keys) or any(name.startswith("mtp.") for name in c.tensors)


def _is_eagle3(c: Checkpoint) -> bool:
    kind = c.config.get("speculators_model_type")
    return "eagle3" in (c.architecture or "").lower() or kind in ("eagle", "eagle3") or _has_tensor(c, "midlayer.")


def _is_dflash2(c: Checkpoint) -> bool:
    keys = ("dflash_config.conv_kernel_size", "dflash_config.selector_rank")
    named = (c.architecture or "").startswith("DFlash2") or any(c.config.has(k) for k in keys)
    return named or _has_tensor(c, "candidate_selector.")


def _nested(c: Checkpoint, key: str) -> object:
    return c.config.get(key) or c.config.get(f"transformer_layer_config.{key}")


def _is_mla(c: Checkpoint) -> bool:
    return bool(_nested(c, "kv_lora_rank") or _nested(c, "q_lora_rank")) or _has_tensor(c, "kv_a_proj")


def _is_moe(c: Checkpoint) -> bool:
    keys = ("num_experts", "n_routed_experts", "num_local_experts")
    return any(_nested(c, k) for k in keys) or _has_tensor(c, ".experts.")


_FAMILIES: tuple[tuple[Callable[[Checkpoint], bool], str, str], ...] = (
    (
        _is_dsv4,
        "a DeepSeek-V4 DSpark draft (dspark_* keys, weights under mtp.*)",
        "hyper-connections, latent attention and mixture-of-experts layers at run time; use llama.cpp's own converter",
    ),
    (_is_eagle3, "an EAGLE-3 draft", "the autoregressive EAGLE-3 loop; llama.cpp converts and runs it"),
    (_is_dflash2, "a DFlash2 draft", "its convolutions and candidate selector; llama.cpp converts and runs it"),
    (_is_mla, "a draft with latent attention (MLA)", "compressed keys and values in the draft's layers"),
    (_is_moe, "a draft with mixture-of-experts layers", "expert routing in the draft's layers"),
)


def refuse_other_families(checkpoint: Checkpoint) -> None:
    """Refuse drafts of a family that this converter does not do.

    Raises: FormatError naming the family and what it would need.
    """
    for matches, name, needs in _FAMILIES:
        if matches(checkpoint):
            raise FormatError(f"{checkpoint.folder}: this is {name}, which is not supported: it needs {needs}")
