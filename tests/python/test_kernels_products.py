"""Products of every weight type: against float64, the same bits alone or in a batch and with any number of threads."""

from __future__ import annotations

from collections.abc import Iterator

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from dspark_cpp import kernels
from ggml_products import TYPES, product, stored

PACKED = [kind for kind in TYPES if kind[0] == "Q"]
PLAIN = ["F32", "F16", "BF16"]


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    if not kernels.install("auto").active:
        pytest.skip(kernels.state().reason)
    yield
    kernels.install("off")


def weights_of(kind: str, n_rows: int, n_k: int) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.float64]]:
    rows = stored(kind, np.random.default_rng(n_k).normal(size=(n_rows, n_k)).astype(np.float32))
    numbers = gguf.quants.dequantize(rows.reshape(n_rows, -1), gguf.GGMLQuantizationType[kind])
    return rows, numbers.astype(np.float64)


def exact_columns(n: int, n_k: int) -> npt.NDArray[np.float32]:
    """Integers up to 127, which occurs in each 32 of them: neither 8 bits nor BF16 round them."""
    x = np.random.default_rng(n).integers(-127, 128, (n, n_k)).astype(np.float32)
    x[:, ::32] = 127
    return x


@pytest.mark.parametrize("n_rows", [1, 40, 67])
@pytest.mark.parametrize("kind", TYPES)
def test_a_product_of_any_width_is_that_of_float64(kind: str, n_rows: int) -> None:
    n_k = 512 if kind in PACKED else 211
    rows, weights = weights_of(kind, n_rows, n_k)
    before = kernels.state().n_matmul
    for n in [*range(1, 18), 33]:
        x = exact_columns(n, n_k)
        y = product(kind, rows, (n_rows, n_k), x, n_threads=1 + n % 3, packed=kind in PACKED)
        size = np.abs(x.astype(np.float64)) @ np.abs(weights).T
        assert np.all(np.abs(y[0, 0] - x.astype(np.float64) @ weights.T) <= 1e-5 * size), f"{n} columns"
    assert kernels.state().n_matmul == before + 18


@pytest.mark.parametrize("kind", TYPES)
def test_rounding_of_the_columns_costs_less_than_a_percent(kind: str) -> None:
    rows, weights = weights_of(kind, 64, 1024)
    x = np.random.default_rng(5).normal(size=(9, 1024)).astype(np.float32)
    want = x.astype(np.float64) @ weights.T
    got = product(kind, rows, (64, 1024), x, packed=kind in PACKED)[0, 0]
    assert np.sqrt(np.mean((got - want) ** 2)) < 0.01 * np.sqrt(np.mean(want**2))


@pytest.mark.parametrize("kind", TYPES)
def test_a_column_has_the_same_bits_alone_and_beside_others_with_any_threads(kind: str) -> None:
    n_rows, n_k = 83, 768
    rows, _ = weights_of(kind, n_rows, n_k)
    x = np.random.default_rng(3).normal(size=(33, n_k)).astype(np.float32)
    alone = np.concatenate(
        [product(kind, rows, (n_rows, n_k), x[i : i + 1], packed=kind in PACKED)[0, 0] for i in range(33)]
    )
    for n in (2, 3, 5, 8, 9, 16, 17, 33):
        for n_threads in (1, 2, 3):
            y = product(kind, rows, (n_rows, n_k), x[:n], n_threads, packed=kind in PACKED)[0, 0]
            assert y.tobytes() == alone[:n].tobytes(), f"{n} columns, {n_threads} threads"


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kind", PLAIN)
def test_products_of_heads_are_those_of_float64_however_they_are_stored(kind: str, swapped: bool) -> None:
    """As attention without flash attention makes them: 3 heads of K or V, each for 3 heads of queries."""
    n_rows, n_k, heads, queries = 70, 40, 3, 9
    rng = np.random.default_rng(8)
    whole = rng.normal(size=(heads, n_rows, n_k)).astype(np.float32)
    as_stored = np.ascontiguousarray(whole.transpose(1, 0, 2)) if swapped else whole
    rows = stored(kind, as_stored)
    numbers = gguf.quants.dequantize(rows.reshape(heads * n_rows, -1), gguf.GGMLQuantizationType[kind])
    weights = numbers.reshape(as_stored.shape).astype(np.float64)
    weights = weights.transpose(1, 0, 2) if swapped else weights
    before = kernels.state().n_matmul
    for n in (1, 2, 7):
        x = exact_columns(queries * n, n_k).reshape(queries, n, n_k)
        y = product(kind, rows, (heads, n_rows, n_k), x, 2, swapped=swapped)[0]
        for q in range(queries):
            want = x[q].astype(np.float64) @ weights[q // 3].T
            size = np.abs(x[q].astype(np.float64)) @ np.abs(weights[q // 3]).T
            assert np.all(np.abs(y[q] - want) <= 1e-5 * size), f"{n} columns, head {q}"
    assert kernels.state().n_matmul == before + 3


def test_switched_off_plain_weights_are_llama_cpps_and_packed_ones_stay_ours() -> None:
    kernels.install("off")
    before = kernels.state().n_matmul
    for kind, n_here in (("F16", 0), ("Q8_0", 1)):
        rows, weights = weights_of(kind, 32, 256)
        x = exact_columns(2, 256)
        y = product(kind, rows, (32, 256), x, packed=kind in PACKED)[0, 0]
        assert np.allclose(y, x @ weights.T, rtol=1e-2, atol=5)
        assert kernels.state().n_matmul == before + n_here


def test_bytes_of_packed_weights_are_counted_while_they_live() -> None:
    before = kernels.state().n_bytes
    rows, _ = weights_of("Q4_1", 64, 256)
    product("Q4_1", rows, (64, 256), exact_columns(1, 256), packed=True)
    assert kernels.state().n_bytes == before
