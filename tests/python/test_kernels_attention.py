"""Attention by our kernels, as ggml-cpu runs it: right within rounding, each row independent of all it does not see."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import llama_cpp
import numpy as np
import pytest

probe = pytest.importorskip("dspark_probe", reason="built with -DDSPARK_PROBE=ON only")
probe.bind([llama_cpp.llama_cpp._lib._handle])

Array = np.ndarray[Any, np.dtype[Any]]
Shape = tuple[int, int, int, int]  # n_head, n_head_kv, n_dk, n_dv
MINUS_INF = np.float16(-np.inf)


@pytest.fixture(autouse=True)
def kernels() -> Iterator[None]:
    """Switches the kernels on, in the copy of the core that the probe holds."""
    try:
        probe.kernels(True)
    except RuntimeError as e:
        pytest.skip(str(e))
    yield
    probe.kernels(False)


def run(q: Array, k: Array, v: Array, mask: Array | None = None, **settings: Any) -> Array:
    before = probe.kernels(True)
    bits = None if mask is None else np.atleast_3d(mask.astype(np.float16).T).T.view(np.uint16)
    out: Array = probe.attention(q, k, v, bits, **settings)
    assert probe.kernels(True) == before + 1, "the operation was left to ggml"
    return out


def in_doubles(
    q: Array, k: Array, v: Array, mask: Array | None, sinks: Array | None, scale: float, max_bias: float, softcap: float
) -> Array:
    """The same in float64: softmax over the keys of softcap * tanh(scale * q k / softcap) + slope * mask, times v."""
    n_q, n_head, _ = q.shape
    n_kv, n_head_kv, n_dv = v.shape
    out = np.zeros((n_q, n_head, n_dv))
    mask = np.zeros((1, n_q, n_kv)) if mask is None else np.atleast_3d(mask.astype(np.float64).T).T
    whole = 2 ** int(np.log2(n_head))
    for h in range(n_head):
        kv = h // (n_head // n_head_kv)
        slope = 1.0
        if max_bias > 0:
            slope = (
                2.0 ** (-max_bias / whole * (h + 1))
                if h < whole
                else 2.0 ** (-max_bias / 2 / whole * (2 * (h - whole) + 1))
            )
        s = scale * q[:, h].astype(np.float64) @ k[:, kv].astype(np.float64).T
        s = softcap * np.tanh(s / softcap) if softcap else s
        s = s + slope * mask[h % len(mask)]
        top = s.max(axis=1, keepdims=True)
        if sinks is not None:
            top = np.maximum(top, sinks[h])
        top[np.isinf(top)] = 0
        p = np.exp(s - top)
        total = p.sum(axis=1, keepdims=True) + (0 if sinks is None else np.exp(sinks[h] - top))
        out[:, h] = p @ v[:, kv].astype(np.float64) / np.where(total == 0, 1, total)
    return out


def tensors(n_q: int, n_kv: int, shape: Shape, seed: int = 0) -> tuple[Array, Array, Array]:
    """Random q, k, v that F16 holds exactly."""
    n_head, n_head_kv, n_dk, n_dv = shape
    random = np.random.default_rng(seed)
    shapes = (n_q, n_head, n_dk), (n_kv, n_head_kv, n_dk), (n_kv, n_head_kv, n_dv)
    q, k, v = (random.standard_normal(shape).astype(np.float16).astype(np.float32) for shape in shapes)
    return q, k, v


def causal(n_q: int, n_kv: int, window: int = 0, hole: float = 0.0, seed: int = 0) -> Array:
    """A mask whose last row sees the last key; window: of this many keys; hole: this part of the keys seen by none."""
    at = np.arange(n_kv)[None] - (n_kv - n_q + np.arange(n_q))[:, None]
    seen = (at <= 0) & ((at > -window) | (window == 0))
    seen &= (np.random.default_rng(seed).random(n_kv) >= hole)[None] | (at == 0)
    return np.where(seen, np.float16(0), MINUS_INF)


def near(got: Array, wanted: Array, v: Array) -> None:
    np.testing.assert_allclose(got, wanted, atol=4e-6 * float(np.abs(v).max()), rtol=0)


@pytest.mark.parametrize("n_q", [*range(1, 18), 40])
@pytest.mark.parametrize(
    "shape",
    [(9, 3, 64, 64), (4, 1, 256, 256), (2, 2, 80, 80), (8, 1, 128, 96), (5, 1, 36, 20)],
)
def test_attention_is_the_softmax_of_the_scores_times_the_values(n_q: int, shape: Shape) -> None:
    n_kv = 57 + 41 * n_q
    q, k, v = tensors(n_q, n_kv, shape)
    mask = causal(n_q, n_kv, hole=0.2)
    near(run(q, k, v, mask, scale=shape[2] ** -0.5), in_doubles(q, k, v, mask, None, shape[2] ** -0.5, 0, 0), v)


@pytest.mark.parametrize("n_kv", [1, 2, 31, 32, 33, 63, 256, 1100])
@pytest.mark.parametrize(
    "settings",
    [{}, {"softcap": 3.0}, {"max_bias": 8.0}, {"sinks": True}, {"scale": 0.5, "softcap": 50.0, "sinks": True}],
)
def test_scale_soft_cap_alibi_and_sinks_are_those_of_ggml(n_kv: int, settings: dict[str, Any]) -> None:
    n_q = min(n_kv, 3)
    q, k, v = tensors(n_q, n_kv, (6, 2, 64, 64), seed=n_kv)
    mask = causal(n_q, n_kv, window=200)
    if "max_bias" in settings:
        mask = mask - np.arange(n_kv)[::-1].astype(np.float16)[None]
    all_settings = {"scale": 0.125, "max_bias": 0.0, "softcap": 0.0, **settings}
    all_settings["sinks"] = np.linspace(-2, 5, 6, dtype=np.float32) if settings.get("sinks") else None
    near(run(q, k, v, mask, **all_settings), in_doubles(q, k, v, mask, **all_settings), v)


def test_without_a_mask_every_key_is_seen() -> None:
    q, k, v = tensors(3, 77, (4, 2, 64, 64))
    near(run(q, k, v, scale=0.125), in_doubles(q, k, v, None, None, 0.125, 0, 0), v)


def test_heads_can_have_masks_of_their_own() -> None:
    q, k, v = tensors(3, 150, (4, 2, 64, 64))
    mask = np.stack([causal(3, 150, window=20), causal(3, 150)])
    near(run(q, k, v, mask, scale=0.125), in_doubles(q, k, v, mask, None, 0.125, 0, 0), v)


@pytest.mark.parametrize(
    ("type_k", "type_v", "tolerance"),
    [
        ("f32", "f32", 4e-6),
        ("bf16", "bf16", 2e-2),
        ("q8_0", "q8_0", 2e-2),
        ("q8_0", "f16", 2e-2),
        ("q4_0", "q4_0", 0.3),
    ],
)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_other_cache_types_are_read_too(type_k: str, type_v: str, tolerance: float, n_threads: int) -> None:
    q, k, v = tensors(4, 300, (6, 2, 64, 96))
    mask = causal(4, 300)
    got = run(q, k, v, mask, scale=0.125, type_k=type_k, type_v=type_v, n_threads=n_threads)
    wanted = in_doubles(q, k, v, mask, None, 0.125, 0, 0)
    assert np.abs(got - wanted).max() <= tolerance * np.abs(v).max()
    alone = run(q[2:3], k, v, mask[2:3], scale=0.125, type_k=type_k, type_v=type_v)
    assert alone.tobytes() == got[2:3].tobytes()


def test_a_row_that_sees_nothing_is_zero_and_its_neighbours_are_not() -> None:
    q, k, v = tensors(3, 70, (4, 2, 64, 64))
    mask = causal(3, 70)
    mask[1] = MINUS_INF
    got = run(q, k, v, mask, scale=0.125)
    assert not got[1].any()
    near(got, in_doubles(q, k, v, mask, None, 0.125, 0, 0), v)


SHAPES = [(9, 3, 64, 64), (4, 1, 256, 256), (3, 3, 80, 48)]


@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize("n_kv", [64, 600, 1100])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_the_same_bits_alone_and_beside_others_with_any_number_of_threads(
    shape: Shape, n_kv: int, window: int
) -> None:
    n_q = 64
    q, k, v = tensors(n_q, n_kv, shape)
    mask = causal(n_q, n_kv, window, hole=0.1)
    whole = run(q, k, v, mask, scale=shape[2] ** -0.5, n_threads=2)
    for n in (1, 2, 3, 5, 8, 16, 17, 40):
        for n_threads in (1, 2, 3, 7):
            first = (7 * n_threads) % (n_q - n + 1)
            part = slice(first, first + n)
            got = run(q[part], k, v, mask[part], scale=shape[2] ** -0.5, n_threads=n_threads)
            assert got.tobytes() == whole[part].tobytes(), (n, n_threads)


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_masked_changes_no_bit_wherever_and_whatever_it_is(shape: Shape) -> None:
    """Rollbacks leave holes, cells are padded to a multiple of 256, a rejected draft may have left infinities."""
    n_kv = 230
    q, k, v = tensors(5, n_kv, shape)
    mask = causal(5, n_kv)
    alone = run(q, k, v, mask, scale=shape[2] ** -0.5)
    random = np.random.default_rng(1)
    for n_cells, rubbish in ((256, 7.0), (512, np.nan), (777, np.inf)):
        cells = np.sort(random.choice(n_cells, n_kv, replace=False))
        wide_k = np.full((n_cells, *k.shape[1:]), rubbish, np.float32)
        wide_v = np.full((n_cells, *v.shape[1:]), rubbish, np.float32)
        wide_mask = np.full((5, n_cells), MINUS_INF)
        wide_k[cells], wide_v[cells], wide_mask[:, cells] = k, v, mask
        for n_threads in (1, 2):
            got = run(q, wide_k, wide_v, wide_mask, scale=shape[2] ** -0.5, n_threads=n_threads)
            assert got.tobytes() == alone.tobytes(), (n_cells, n_threads)


def test_a_later_row_whose_value_is_infinite_spoils_none_before_it() -> None:
    q, k, v = tensors(4, 100, (4, 2, 64, 64))
    mask = causal(4, 100)
    sound = run(q, k, v, mask, scale=0.125)
    v[98] = np.inf
    spoilt = run(q, k, v, mask, scale=0.125)
    assert spoilt[:2].tobytes() == sound[:2].tobytes()
    assert not np.isfinite(spoilt[2:]).any()
