"""What the draft is trained for.

Sources: DSpark, arXiv 2607.05147, section 3 (cross entropy, L1 to the target's distribution, weights that decay with
the slot, binary cross entropy for the confidence head); speculators 0.9.0, models/dspark/metrics.py. Two choices are
ours: labels of the cross entropy are partly the target's likeliest token, which is what greedy decoding accepts, and
the confidence head's label is whether the draft's likeliest token is that one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .recipe import Recipe

__all__ = ["Labels", "Losses", "draft_loss"]


@dataclass(frozen=True)
class Labels:
    """What N blocks of K slots should predict, by the target."""

    rows: Tensor  # (N, K, top_k) rows of the draft's head of its likeliest tokens, likeliest first; -1: has none
    probs: Tensor  # (N, K, top_k)
    valid: Tensor  # (N, K) bool: there is a token to predict


@dataclass(frozen=True)
class Losses:
    """Means over the valid slots, weighted by slot; `loss` is what is minimised."""

    loss: Tensor  # scalar, with its graph
    ce: Tensor
    overlap: Tensor  # sum over tokens of min(p, q): the share of samples that would be accepted
    hit: Tensor  # (K,) share of slots whose likeliest token is the target's
    confidence: Tensor


class _LabelLogProbs(torch.autograd.Function):
    """log softmax of logits (M, D) at a few columns, (M, k), and the largest logit, (M,).

    Of the whole distribution only its normaliser is needed, so the logits stay in their own type and are widened a few
    rows at a time: log_softmax would make three float32 arrays of their size, which takes longer than the product that
    made them.
    """

    ROWS = 64

    @staticmethod
    def forward(ctx: Any, logits: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
        highest, total = [], []
        for z in logits.split(_LabelLogProbs.ROWS):
            z = z.float()
            top = z.amax(dim=-1)
            highest.append(top)
            total.append(top + z.sub_(top[:, None]).exp_().sum(dim=-1).log())
        normaliser, best = torch.cat(total), torch.cat(highest)
        ctx.save_for_backward(logits, columns, normaliser)
        ctx.mark_non_differentiable(best)
        return logits.gather(-1, columns).float() - normaliser[:, None], best

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Any) -> tuple[Tensor, None]:
        logits, columns, normaliser = ctx.saved_tensors
        out = torch.empty_like(logits)
        n = _LabelLogProbs.ROWS
        for z, c, t, g, o in zip(*(x.split(n) for x in (logits, columns, normaliser, grad, out)), strict=True):
            q = z.float().sub_(t[:, None]).exp_()
            q.mul_(-g.sum(dim=-1, keepdim=True)).scatter_add_(-1, c, g)
            o.copy_(q)
        return out, None


def draft_loss(logits: Tensor, confidence: Tensor | None, labels: Labels, recipe: Recipe) -> Losses:
    """logits (N, K, D), confidence (N, K) logits."""
    k = logits.shape[1]
    valid = labels.valid.float()
    weight = valid * torch.exp(-torch.arange(k, device=valid.device) / recipe.decay)
    weight = weight / weight.sum().clamp_min(1e-8)

    known = labels.rows >= 0
    columns = labels.rows.clamp_min(0)
    log_q, best = _LabelLogProbs.apply(logits.flatten(0, 1), columns.flatten(0, 1))
    log_q, best = log_q.view(columns.shape), best.view(valid.shape)
    p = labels.probs * known
    soft = -(p * log_q).sum(-1) / p.sum(-1).clamp_min(1e-8)
    hard = -log_q[..., 0] * known[..., 0]
    ce = recipe.hard * hard + (1.0 - recipe.hard) * soft
    overlap = (torch.minimum(p, log_q.exp()) * known).sum(-1)

    with torch.no_grad():
        first = logits.gather(-1, columns[..., :1]).squeeze(-1)
        hit = (known[..., 0] & (first.float() >= best)).float()
    bce = torch.zeros_like(ce)
    if confidence is not None:
        bce = F.binary_cross_entropy_with_logits(confidence.float(), hit, reduction="none")
    # |p - q|_1 = 2 (1 - overlap)
    each = ce + recipe.l1 * 2.0 * (1.0 - overlap) + recipe.confidence_weight * bce
    return Losses(
        loss=(weight * each).sum(),
        ce=(weight * ce).sum().detach(),
        overlap=(weight * overlap).sum().detach(),
        hit=(valid * hit).sum(0) / valid.sum(0).clamp_min(1.0),
        confidence=(weight * bce).sum().detach(),
    )
