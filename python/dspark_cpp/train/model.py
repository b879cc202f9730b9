"""The draft in torch: what tests/reference computes one block at a time, for many blocks at once.

Parameter names are those of speculators' checkpoints. Blocks of one sequence share its context: keys and values are
made once for all its positions, and every block sees those before its anchor, and itself.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .shape import Shape

__all__ = ["Draft"]


class RMSNorm(nn.Module):
    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        x = x.float()
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def rope(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotates x (S, heads, n, d) at positions (S, n); pairs are (j, j + d/2)."""
    half = x.shape[-1] // 2
    frequencies = base ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = (positions[:, None, :, None] * frequencies).float()
    cos, sin = angle.cos(), angle.sin()
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        h, d = shape.n_embd, shape.head_dim
        self.q_proj = nn.Linear(h, shape.n_head * d, bias=False)
        self.k_proj = nn.Linear(h, shape.n_head_kv * d, bias=False)
        self.v_proj = nn.Linear(h, shape.n_head_kv * d, bias=False)
        self.o_proj = nn.Linear(shape.n_head * d, h, bias=False)
        self.q_norm = RMSNorm(d, shape.rms_eps)
        self.k_norm = RMSNorm(d, shape.rms_eps)

    def heads(self, x: Tensor, n: int) -> Tensor:
        """(S, n_rows, n * d) -> (S, n, n_rows, d)"""
        return x.unflatten(-1, (n, self.shape.head_dim)).transpose(1, 2)

    def keys_values(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """x (S, n, H) -> rotated K and V, both (S, nkv, n, d)"""
        k = self.k_norm(self.heads(self.k_proj(x), self.shape.n_head_kv))
        v = self.heads(self.v_proj(x), self.shape.n_head_kv)
        return rope(k, positions, self.shape.rope_base).to(v.dtype), v

    def forward(self, u: Tensor, positions: Tensor, context: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """u (S, n, H) attends to the context and to itself, as the mask (S, 1, n, T + n) allows."""
        k, v = self.keys_values(u, positions)
        q = rope(self.q_norm(self.heads(self.q_proj(u), self.shape.n_head)), positions, self.shape.rope_base)
        group = self.shape.n_head // self.shape.n_head_kv
        k = torch.cat([context[0], k], dim=2).repeat_interleave(group, dim=1)
        v = torch.cat([context[1], v], dim=2).repeat_interleave(group, dim=1)
        out = F.scaled_dot_product_attention(q.to(v.dtype), k, v, attn_mask=mask)
        return self.o_proj(out.transpose(1, 2).flatten(2))


class FeedForward(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.n_embd, shape.n_ff, bias=False)
        self.up_proj = nn.Linear(shape.n_embd, shape.n_ff, bias=False)
        self.down_proj = nn.Linear(shape.n_ff, shape.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(shape.n_embd, shape.rms_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = RMSNorm(shape.n_embd, shape.rms_eps)
        self.mlp = FeedForward(shape)

    def forward(self, x: Tensor, positions: Tensor, context: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), positions, context, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class MarkovHead(nn.Module):
    """bias(v) = W2[v] . f(W1[previous token]); W1 has a row per target token, W2 one per row of the draft's head."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        r = shape.markov_rank
        self.kind = shape.markov
        self.markov_w1 = nn.Embedding(shape.n_vocab, r)
        self.markov_w2 = nn.Linear(r, shape.n_vocab_draft, bias=False)
        nn.init.normal_(self.markov_w1.weight, std=0.01)
        if self.kind == "gated":
            self.gate_proj = nn.Linear(shape.n_embd + r, r)
        elif self.kind == "rnn":
            self.joint_proj = nn.Linear(2 * r + shape.n_embd, 3 * r)

    def step(self, e: Tensor, h: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """What W2 is applied to in one slot, (N, R), and the next state; e (N, R) is W1[previous token], h (N, H)."""
        if self.kind == "gated":
            return torch.sigmoid(self.gate_proj(torch.cat([h, e], dim=-1))) * e, state
        if self.kind == "rnn":
            gate, candidate, out = self.joint_proj(torch.cat([state, e, h], dim=-1)).chunk(3, dim=-1)
            gate = torch.sigmoid(gate)
            return torch.tanh(out), gate * state + (1.0 - gate) * torch.tanh(candidate)
        return e, state


class ConfidenceHead(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.proj = nn.Linear(shape.n_embd + shape.markov_rank, 1)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)


class Draft(nn.Module):
    """A draft; `embed_tokens` (V, H) and, without a head of its own, `lm_head` are the target's and stay as they are.

    `row_of` (V,) is the head's row of a target token, -1 without one; `token_of` (D,) the token of a row, ascending.
    """

    row_of: Tensor
    token_of: Tensor

    def __init__(self, shape: Shape, tokens: Tensor, embeddings: Tensor) -> None:
        super().__init__()
        self.shape = shape
        h = shape.n_embd
        self.fc = nn.Linear(len(shape.taps) * h, h, bias=False)
        self.hidden_norm = RMSNorm(h, shape.rms_eps)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.n_layer))
        self.norm = RMSNorm(h, shape.rms_eps)
        self.lm_head = nn.Linear(h, shape.n_vocab_draft, bias=False)
        self.lm_head.weight.requires_grad_(shape.own_head)
        self.markov_head = MarkovHead(shape) if shape.markov else None
        self.confidence_head = ConfidenceHead(shape) if shape.confidence else None
        self.embed_tokens = nn.Embedding.from_pretrained(embeddings, freeze=True)
        row_of = torch.full((shape.n_vocab,), -1, dtype=torch.int64)
        row_of[tokens] = torch.arange(len(tokens))
        self.register_buffer("token_of", tokens.clone(), persistent=False)
        self.register_buffer("row_of", row_of, persistent=False)

    def heads(self) -> list[nn.Parameter]:
        """The parameters after the backbone: of the head, if it is the draft's own, the Markov and confidence heads."""
        parts = [self.lm_head, self.markov_head, self.confidence_head]
        return [p for part in parts if part is not None for p in part.parameters() if p.requires_grad]

    def hidden(self, features: Tensor, anchors: Tensor, anchor_ids: Tensor) -> Tensor:
        """The blocks after the final norm, (S, A, B, H).

        features (S, T, taps * H) from position 0 on; anchors (S, A) positions of the anchors, of which a block sees
        the rows before; anchor_ids (S, A) their tokens.
        """
        s, t = features.shape[:2]
        a, b = anchors.shape[1], self.shape.block_size
        device = features.device
        fused = self.hidden_norm(self.fc(features))
        rows = torch.arange(t, device=device).expand(s, t)
        context = [layer.self_attn.keys_values(fused, rows) for layer in self.layers]

        ids = torch.full((s, a, b), self.shape.mask_token_id, device=device)
        ids[:, :, 0] = anchor_ids
        positions = (anchors[:, :, None] + torch.arange(b, device=device)).flatten(1)
        block = torch.arange(a, device=device).repeat_interleave(b)
        sees_context = rows[:, None, :] < anchors.repeat_interleave(b, dim=1)[:, :, None]
        sees_block = (block[:, None] == block[None, :]).expand(s, a * b, a * b)
        mask = torch.cat([sees_context, sees_block], dim=2)[:, None]

        x = self.embed_tokens(ids.flatten(1))
        for layer, kv in zip(self.layers, context, strict=True):
            x = layer(x, positions, kv, mask)
        return self.norm(x).unflatten(1, (a, b))

    def logits(self, hidden: Tensor, previous: Tensor) -> tuple[Tensor, Tensor | None]:
        """Logits (N, K, D) and confidence logits (N, K) of the K slots that predict.

        hidden (N, K, H) of those slots; previous (N, K) the tokens before the predicted ones, the anchor first.
        """
        n, k = previous.shape
        if self.markov_head is None:
            return self.lm_head(hidden), self._confidence(hidden, None)
        e = self.markov_head.markov_w1(previous)
        state = e.new_zeros(n, self.shape.markov_rank)
        factors = []
        for slot in range(k):
            factor, state = self.markov_head.step(e[:, slot], hidden[:, slot], state)
            factors.append(factor)
        # one product instead of two and a sum: the logits are by far the largest array here
        both = torch.cat([self.lm_head.weight, self.markov_head.markov_w2.weight], dim=1)
        logits = F.linear(torch.cat([hidden, torch.stack(factors, dim=1)], dim=-1), both)
        return logits, self._confidence(hidden, e)

    def propose(self, hidden: Tensor, anchor_ids: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """What greedy drafting gives: tokens (N, K), logits (N, K, D) and confidence logits (N, K).

        hidden (N, K, H) of the slots that predict; anchor_ids (N,).
        """
        base = self.lm_head(hidden)
        state = hidden.new_zeros(len(hidden), self.shape.markov_rank)
        previous, tokens, logits, embedded = anchor_ids, [], [], []
        for slot in range(hidden.shape[1]):
            row = base[:, slot]
            if self.markov_head is not None:
                e = self.markov_head.markov_w1(previous)
                factor, state = self.markov_head.step(e, hidden[:, slot], state)
                row = row + self.markov_head.markov_w2(factor)
                embedded.append(e)
            previous = self.token_of[row.argmax(dim=-1)]
            tokens.append(previous)
            logits.append(row)
        e = torch.stack(embedded, dim=1) if embedded else None
        return torch.stack(tokens, dim=1), torch.stack(logits, dim=1), self._confidence(hidden, e)

    def _confidence(self, hidden: Tensor, e: Tensor | None) -> Tensor | None:
        if self.confidence_head is None:
            return None
        return self.confidence_head.proj(hidden if e is None else torch.cat([hidden, e], dim=-1)).squeeze(-1)


def init_weights(model: Draft, seed: int) -> None:
    """Small random matrices, where nothing better is at hand."""
    generator = torch.Generator().manual_seed(seed)
    for name, p in model.named_parameters():
        if p.dim() > 1 and p.requires_grad and "confidence" not in name:
            std = 0.01 if "markov" in name else 1.0 / math.sqrt(p.shape[1])
            with torch.no_grad():
                p.copy_(torch.randn(p.shape, generator=generator) * std)
