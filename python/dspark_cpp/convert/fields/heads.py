"""The Markov head and the confidence head: which there are, and of what kind."""

from __future__ import annotations

from ...errors import FormatError
from ..normal_form import Markov
from .source import Source

__all__ = ["read_heads"]


def read_heads(src: Source, n_embd: int) -> tuple[Markov | None, str | None]:
    """Which heads the draft has: the Markov head, and the confidence head's input ("hidden" or "hidden+markov").

    Raises: FormatError where config and tensors disagree.
    """
    cfg, tensors = src.config, src.tensors
    markov = _read_markov(src)
    enabled = cfg.flag(
        "enable_confidence_head", "dflash_config.enable_confidence_head", "dspark_config.enable_confidence_head"
    )
    proj = tensors.get("confidence_head.proj.weight") or tensors.get("confidence_proj.weight")
    if proj is None:
        if enabled:
            raise FormatError(
                f"{src.checkpoint.folder}: enable_confidence_head is true, "
                "but tensor confidence_head.proj.weight is missing"
            )
        return markov, None
    if enabled is False:
        src.warnings.append("enable_confidence_head is false, but the checkpoint has a confidence head; it is kept")
    width = proj.shape[1] if len(proj.shape) == 2 else -1
    widths = {n_embd: "hidden"}
    if markov is not None:
        widths[n_embd + markov.rank] = "hidden+markov"
    with_markov = cfg.flag(
        "confidence_head_with_markov",
        "dflash_config.confidence_head_with_markov",
        "dspark_config.confidence_head_with_markov",
    )
    if with_markov and markov is None:
        raise FormatError(f"{cfg.where}: confidence_head_with_markov is true, but there is no Markov head")
    if with_markov is not None:
        widths = {w: kind for w, kind in widths.items() if (kind == "hidden+markov") == with_markov}
    if width not in widths or proj.shape[0] != 1:
        wanted = " or ".join(f"[1, {w}]" for w in widths)
        raise FormatError(f"{proj.file.path}: tensor {proj.name} has shape {list(proj.shape)}, but {wanted} is needed")
    return markov, widths[width]


def _read_markov(src: Source) -> Markov | None:
    cfg = src.config
    found = cfg.find("markov_rank", "dflash_config.markov_rank", "dspark_config.markov_rank")
    w1 = src.tensors.get("markov_head.markov_w1.weight")
    if found is None:
        rank = w1.shape[1] if w1 is not None and len(w1.shape) == 2 else 0
    else:
        rank = cfg.integer(found[0], least=0)
    if rank == 0:
        return None
    if w1 is None:
        raise FormatError(
            f"{src.checkpoint.folder}: markov_rank is {rank}, but tensor markov_head.markov_w1.weight is missing"
        )
    if len(w1.shape) != 2 or w1.shape[1] != rank:
        raise FormatError(
            f"{w1.file.path}: tensor {w1.name} has shape {list(w1.shape)}, but markov_rank is {rank}; "
            f"{rank} columns are needed"
        )
    keys = ("markov_head_type", "dflash_config.markov_head_type", "dspark_config.markov_head_type")
    kind = cfg.text(*keys) or "vanilla"
    if kind not in ("vanilla", "gated", "rnn"):
        raise cfg.wrong((cfg.find(*keys) or keys)[0], kind, "one of vanilla, gated, rnn")
    return Markov(kind, rank)
