"""One drafting step in NumPy and float64: fuse, inject, block, head, Markov chain, confidence.

Written from the formulas of the paper (arXiv 2607.05147) and of DeepSpec, not from the C++ code. Shapes are in NumPy
order: T context positions, S slots of the block, K drafted ones, n = position of the anchor = number of context rows
that the block may see; the other letters are those of docs/FILE_FORMAT.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from .draft_file import Array, Draft, Rope, load_draft

__all__ = ["MASK_KINDS", "Context", "Draft", "Round", "inject", "load_draft", "propose"]

# Rules for sliding layers, by who trains or runs so: (origin of the window, causal inside the block).
MASK_KINDS = {
    "speculators": ("anchor", True),
    "speculators_nc": ("anchor", False),
    "specforge": ("query", True),
    "llamacpp": ("query", False),
}


@dataclass
class Context:
    """K and V of positions 0..T-1, the draft's memory of the target."""

    fused: Array  # (T, H)
    k: list[Array]  # per layer (T, nkv, d)
    v: list[Array]  # per layer (T, nkv, d)


@dataclass
class Round:
    """What one proposal gives; `nodes` holds the intermediates under the names that the C++ graph uses."""

    block_ids: NDArray[np.int64]  # (S,)
    hidden: Array  # (S, H) after the final norm
    base_logits: Array  # (S, Vd)
    logits: Array  # (K, Vd) in draft rows
    ids: NDArray[np.int64]  # (K,) target ids
    confidence: Array | None  # (K,) logits
    nodes: dict[str, Array]


# --- parts -----------------------------------------------------------------------------------------------------------


def sigmoid(x: Array) -> Array:
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def rms_norm(x: Array, w: Array | None, eps: float) -> Array:
    """x / sqrt(mean(x^2) + eps) * w over the last axis."""
    y = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps)
    return y if w is None else y * w


def activate(x: Array, kind: str) -> Array:
    if kind == "silu":
        return x * sigmoid(x)
    if kind == "gelu":
        return 0.5 * x * (1.0 + np.vectorize(math.erf)(x / math.sqrt(2.0)))
    if kind == "gelu_pytorch_tanh":
        return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))
    raise ValueError(f"no activation {kind!r}")


def rope_frequencies(r: Rope) -> tuple[Array, float]:
    """Angle per position of each pair, (n_rot/2,), and the factor on cos and sin. YaRN as in transformers."""
    j = np.arange(r.n_rot // 2)
    freq = r.base ** (-2.0 * j / r.n_rot)
    freq = freq if r.divisors is None else freq / r.divisors[: len(freq)]
    if r.scaling == "none":
        return freq, 1.0
    if r.scaling == "linear":
        return freq / r.factor, 1.0

    def pair_of(n_turns: float) -> float:
        """The (fractional) pair that turns so often within the original context."""
        return r.n_rot * math.log(r.n_ctx_orig / (n_turns * 2.0 * math.pi)) / (2.0 * math.log(r.base))

    low = max(math.floor(pair_of(r.beta_fast)), 0)
    high = min(math.ceil(pair_of(r.beta_slow)), r.n_rot - 1)
    ramp = np.clip((j - low) / max(high - low, 0.001), 0.0, 1.0)  # 0: fast pairs, kept; 1: slow pairs, stretched
    kept = r.ext_factor * (1.0 - ramp)
    attn_factor = 0.1 * math.log(r.factor) + 1.0 if r.attn_factor is None else r.attn_factor
    return freq * kept + freq / r.factor * (1.0 - kept), attn_factor


def rope(x: Array, pos: NDArray[np.int64], r: Rope) -> Array:
    """Rotates x (n, heads, d) at absolute positions pos (n,); dimensions from n_rot on pass unchanged."""
    freq, factor = rope_frequencies(r)
    angle = pos[:, None, None] * freq  # (n, 1, n_rot/2)
    cos, sin = factor * np.cos(angle), factor * np.sin(angle)
    half = r.n_rot // 2
    a, b, rest = x[..., :half], x[..., half : r.n_rot], x[..., r.n_rot :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)


# --- context ---------------------------------------------------------------------------------------------------------


def fuse(draft: Draft, features: Array) -> Array:
    """(T, m*H) -> (T, H): hidden_norm(fc features). The norm comes after fc."""
    return rms_norm(features @ draft.weight("fc").T, draft.weight("enc.output_norm"), draft.eps)


def keys_values(draft: Draft, layer: int, x: Array, pos: NDArray[np.int64]) -> tuple[Array, Array]:
    """(n, H) -> K = rope(norm(Wk x)) and V = Wv x, both (n, nkv, d); V is the raw Wk x where there is no Wv."""
    heads = (len(x), draft.n_head_kv, draft.d)
    raw = (x @ draft.weight("attn_k", layer).T).reshape(heads)
    wv = draft.weight("attn_v", layer)
    v = raw if wv is None else (x @ wv.T).reshape(heads)
    k = rope(rms_norm(raw, draft.weight("attn_k_norm", layer), draft.eps), pos, draft.rope)
    return k, rms_norm(v, None, draft.eps) if draft.value_norm else v


def inject(draft: Draft, features: Array) -> Context:
    """All context rows, (T, m*H), into K/V. The layers' own input norm is not applied to the fused context."""
    fused = fuse(draft, np.asarray(features, dtype=np.float64))
    kv = [keys_values(draft, il, fused, np.arange(len(fused))) for il in range(draft.n_layer)]
    return Context(fused, [k for k, _ in kv], [v for _, v in kv])


# --- block -----------------------------------------------------------------------------------------------------------


def visible(draft: Draft, layer: int, n: int) -> NDArray[np.bool_]:
    """(S, n + S): which keys (context 0..n-1, then the block) each slot, at position n + s, attends to."""
    query = n + np.arange(draft.block_size)[:, None]
    key = np.arange(n + draft.block_size)[None, :]
    mask = np.ones((draft.block_size, n + draft.block_size), dtype=bool)
    if draft.window and draft.slides[layer]:
        mask &= key >= n - draft.window if draft.window_origin == "anchor" else key > query - draft.window
    if draft.causal[layer]:
        mask &= key <= query
    return mask


def with_mask(draft: Draft, kind: str | None) -> Draft:
    """The draft under another rule for its sliding layers; None: the file's own, "full": no window at all."""
    if kind is None:
        return draft
    if kind == "full":
        return replace(draft, window=0, causal=(False,) * draft.n_layer)
    origin, causal = MASK_KINDS[kind]
    return replace(draft, window_origin=origin, causal=tuple(causal and slides for slides in draft.slides))


def attention(draft: Draft, layer: int, q: Array, k: Array, v: Array, mask: NDArray[np.bool_]) -> Array:
    """q (S, nq, d) over k, v (C, nkv, d) -> (S, nq*d). A sink is one more score whose value is zero."""
    group = draft.n_head // draft.n_head_kv
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scores = np.einsum("shd,chd->shc", q, k) * draft.attn_scale
    scores = np.where(mask[:, None, :], scores, -np.inf)
    sinks = draft.weight("attn_sinks", layer)
    sinks = np.full(draft.n_head, -np.inf) if sinks is None else sinks
    top = np.maximum(scores.max(axis=-1), sinks)  # (S, nq)
    e = np.exp(scores - top[..., None])
    p = e / (e.sum(axis=-1) + np.exp(sinks - top))[..., None]
    return np.einsum("shc,chd->shd", p, v).reshape(len(q), -1)


def layer_forward(draft: Draft, layer: int, x: Array, context: Context, n: int, nodes: dict[str, Array]) -> Array:
    """x (S, H) -> (S, H): x += post_norm(attention); x += post_norm(ffn); x *= layer scale."""
    s, pos = len(x), n + np.arange(len(x))

    def post(name: str, y: Array) -> Array:
        w = draft.weight(name, layer)
        return y if w is None else rms_norm(y, w, draft.eps)

    u = rms_norm(x, draft.weight("attn_norm", layer), draft.eps)
    q = (u @ draft.weight("attn_q", layer).T).reshape(s, draft.n_head, draft.d)
    q = rope(rms_norm(q, draft.weight("attn_q_norm", layer), draft.eps), pos, draft.rope)
    k, v = keys_values(draft, layer, u, pos)
    attn = attention(draft, layer, q, np.concatenate([context.k[layer][:n], k]),
                     np.concatenate([context.v[layer][:n], v]), visible(draft, layer, n))  # fmt: skip
    attn = attn @ draft.weight("attn_output", layer).T * draft.value_scale
    x = x + post("post_attention_norm", attn)

    u = rms_norm(x, draft.weight("ffn_norm", layer), draft.eps)
    gate = activate(u @ draft.weight("ffn_gate", layer).T, draft.activation)
    x = x + post("post_ffw_norm", (gate * (u @ draft.weight("ffn_up", layer).T)) @ draft.weight("ffn_down", layer).T)

    scale = draft.weight("layer_output_scale", layer)
    x = x if scale is None else x * scale
    for name, value in (("q", q), ("k_block", k), ("v_block", v), ("attn_out", attn), ("layer_out", x)):
        nodes[f"{name}.{layer}"] = value
    return x


def block_forward(draft: Draft, context: Context, n: int, ids: NDArray[np.int64], nodes: dict[str, Array]) -> Array:
    """The slots ids (S,) at positions n.. through all layers and the final norm: (S, H)."""
    x = nodes["block_embd"] = draft.weight("token_embd")[ids] * draft.embedding_scale
    for layer in range(draft.n_layer):
        x = layer_forward(draft, layer, x, context, n, nodes)
    return rms_norm(x, draft.weight("output_norm"), draft.eps)


# --- heads -----------------------------------------------------------------------------------------------------------


def head(draft: Draft, hidden: Array) -> Array:
    """(S, H) -> (S, Vd). The cap comes before the Markov bias, which is not capped (DeepSpec)."""
    u = hidden @ draft.weight("output").T * draft.logit_scale
    return draft.softcap * np.tanh(u / draft.softcap) if draft.softcap else u


def markov_bias(draft: Draft, e: Array, h: Array, state: Array) -> tuple[Array, Array]:
    """Bias in draft rows (Vd,) and the next state (R,), from e = W1[previous target id] (R,) and h (H,)."""
    f = e
    if draft.markov == "gated":
        z = draft.weight("markov_gate") @ np.concatenate([h, e]) + draft.weight("markov_gate.bias")
        f = sigmoid(z) * e
    elif draft.markov == "rnn":
        z = draft.weight("markov_joint") @ np.concatenate([state, e, h]) + draft.weight("markov_joint.bias")
        gate, candidate, out = np.split(z, 3)
        state = sigmoid(gate) * state + (1.0 - sigmoid(gate)) * np.tanh(candidate)
        f = np.tanh(out)
    return draft.weight("markov_w2") @ f, state


def confidence(draft: Draft, hidden: Array, prev_embd: Array) -> Array | None:
    """(K, H), (K, R) -> logits (K,): (w [h; e] + b) / T_k, or of w h + b where w is only H wide."""
    w, b = draft.weight("conf_proj"), draft.weight("conf_proj.bias")
    if w is None:
        return None
    x = np.concatenate([hidden, prev_embd], axis=1)[:, : w.size]
    t = 1.0 if draft.confidence_temperature is None else draft.confidence_temperature
    return (x @ w.reshape(-1) + (0.0 if b is None else b[0])) / t


def propose(draft: Draft, context: Context, n: int, anchor: int, mask: str | None = None) -> Round:
    """The full block after n context rows. Greedy; of equal logits the lowest row is taken."""
    draft = with_mask(draft, mask)
    block_ids = np.full(draft.block_size, draft.mask_token, dtype=np.int64)
    block_ids[0] = anchor
    nodes: dict[str, Array] = {}
    hidden = block_forward(draft, context, n, block_ids, nodes)
    base = head(draft, hidden)
    drafted, first = hidden[draft.first_slot :], draft.first_slot

    rank = draft.weight("markov_w1").shape[1] if draft.markov else 0
    state, prev, logits, ids, prev_embd = np.zeros(rank), anchor, [], [], []
    for k, h in enumerate(drafted):
        row = base[first + k]
        prev_embd.append(draft.weight("markov_w1")[prev] if draft.markov else np.zeros(0))
        if draft.markov:
            nodes[f"markov_bias.{k}"], state = markov_bias(draft, prev_embd[-1], h, state)
            row = row + nodes[f"markov_bias.{k}"]
        chosen = int(np.argmax(row))
        prev = chosen if draft.d2t is None else int(draft.d2t[chosen])
        logits.append(row)
        ids.append(prev)
    conf = confidence(draft, drafted, np.array(prev_embd))
    nodes.update(block_out=hidden, base_logits=base[first:])
    if conf is not None:
        nodes["confidence"] = conf
    return Round(block_ids, hidden, base, np.array(logits), np.array(ids), conf, nodes)
