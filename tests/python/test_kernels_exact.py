"""With the kernels a token's logits have the same bits alone, in a batch, and after a prompt cut in any way."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from dspark_cpp import kernels

pytestmark = pytest.mark.slow

FTYPES = {"Q4_0": 2, "Q8_0": 7, "Q4_K_M": 15, "BF16": 32}


@pytest.fixture(scope="module")
def quantised(smollm_f16_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Path]:
    """quantised(type): SmolLM2 in another type, made once in pytest's cache by llama.cpp."""

    @cache
    def make(kind: str) -> Path:
        out = request.config.cache.mkdir("smollm2-f16") / f"smollm2-{kind}-{smollm_f16_path.stat().st_size}.gguf"
        if not out.exists():
            params = llama_cpp.llama_model_quantize_default_params()
            params.ftype, params.nthread = FTYPES[kind], 2
            part = out.with_suffix(".part")
            assert (
                llama_cpp.llama_model_quantize(str(smollm_f16_path).encode(), str(part).encode(), ctypes.byref(params))
                == 0
            )
            part.rename(out)
        return out

    return make


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    if not kernels.install("auto").active:
        pytest.skip(kernels.state().reason)
    yield
    kernels.install("off")


class Decoder:
    """Logits of every token of a batch, by a Llama of its own."""

    def __init__(self, path: Path, flash: bool, n_threads: int = 2, n_ctx: int = 1024) -> None:
        self.llm = llama_cpp.Llama(
            str(path), n_ctx=n_ctx, n_threads=n_threads, n_threads_batch=n_threads, flash_attn=flash, verbose=False
        )
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)

    def __call__(self, ids: npt.NDArray[Any], pos: int) -> npt.NDArray[np.float32]:
        b = self.batch
        b.n_tokens = len(ids)
        for i, token in enumerate(ids):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = int(token), pos + i, 1, True
            b.seq_id[i][0] = 0
        assert llama_cpp.llama_decode(self.llm.ctx, b) == 0
        rows = [llama_cpp.llama_get_logits_ith(self.llm.ctx, i) for i in range(len(ids))]
        return np.stack([np.ctypeslib.as_array(row, (self.llm.n_vocab(),)).copy() for row in rows])

    def prompt(self, ids: npt.NDArray[Any], chunk: int) -> npt.NDArray[np.float32]:
        """Logits of the last token of a prompt decoded in chunks."""
        self.forget(0)
        for at in range(0, len(ids), chunk):
            last = self(ids[at : at + chunk], at)[-1]
        return last

    def forget(self, pos: int) -> None:
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.llm.ctx), 0, pos, -1)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        self.llm.close()


@pytest.mark.parametrize("flash", [False, True], ids=["", "flash"])
@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0", "Q4_0", "Q4_K_M", "F16", "BF16"])
def test_a_token_alone_has_the_logits_it_has_in_a_batch(
    kind: str, flash: bool, smollm_path: Path, smollm_f16_path: Path, quantised: Callable[[str], Path]
) -> None:
    decode = Decoder({"Q4_1": smollm_path, "F16": smollm_f16_path}.get(kind) or quantised(kind), flash)
    try:
        ids = np.random.default_rng(2).integers(5, decode.llm.n_vocab(), 560)
        before = kernels.state()
        for n_past in (90, 530):  # from 512 on llama.cpp's own attention depends on the number of threads
            decode.prompt(ids[:n_past], 512)
            alone = np.concatenate([decode(ids[n_past + i : n_past + i + 1], n_past + i) for i in range(16)])
            after = kernels.state()
            assert after.n_matmul > before.n_matmul
            if flash and after.n_attention == before.n_attention:
                pytest.skip("the kernels have no flash attention for this model")
            for n in (2, 3, 5, 8, 16):
                decode.forget(n_past)
                together = decode(ids[n_past : n_past + n], n_past)
                assert together.tobytes() == alone[:n].tobytes(), f"{n} tokens after {n_past}"
    finally:
        decode.close()


@pytest.mark.parametrize("flash", [False, True], ids=["", "flash"])
@pytest.mark.parametrize("kind", ["Q4_1", "F16"])
def test_a_prompt_cut_in_any_way_gives_the_same_logits(
    kind: str, flash: bool, smollm_path: Path, smollm_f16_path: Path
) -> None:
    decode = Decoder(smollm_path if kind == "Q4_1" else smollm_f16_path, flash)
    try:
        ids = np.random.default_rng(4).integers(5, decode.llm.n_vocab(), 150)
        before = kernels.state().n_attention
        whole = decode.prompt(ids, 512)
        if flash and kernels.state().n_attention == before:
            pytest.skip("the kernels have no flash attention for this model")
        for chunk in (1, 37, 64):
            assert decode.prompt(ids, chunk).tobytes() == whole.tobytes(), f"chunks of {chunk}"
    finally:
        decode.close()


def test_the_number_of_threads_changes_no_bit(smollm_path: Path) -> None:
    seen = []
    for n_threads in (1, 2, 3):
        decode = Decoder(smollm_path, flash=False, n_threads=n_threads)
        try:
            seen.append(decode.prompt(np.arange(100, 190), 64).tobytes())
        finally:
            decode.close()
    assert seen[0] == seen[1] == seen[2]


def test_packed_weights_write_what_stock_ones_write(smollm_path: Path) -> None:
    """Not the same bits: the columns are rounded to 8 bits with other scales. But the same text, but for near-ties."""
    logits = {}
    for mode in ("off", "on"):
        kernels.install(mode)
        decode = Decoder(smollm_path, flash=False)
        try:
            logits[mode] = decode(np.random.default_rng(6).integers(5, 20000, 200), 0)
        finally:
            decode.close()
    scale = logits["off"].std()
    assert np.sqrt(np.mean((logits["on"] - logits["off"]) ** 2)) < 0.15 * scale
    assert np.mean(logits["on"].argmax(1) == logits["off"].argmax(1)) > 0.9


def test_weights_are_stored_once_and_given_back(smollm_path: Path) -> None:
    before = kernels.state().n_bytes
    decode = Decoder(smollm_path, flash=False)
    held = kernels.state().n_bytes - before
    decode.close()
    assert 0.8 * smollm_path.stat().st_size < held < 1.05 * smollm_path.stat().st_size
    assert kernels.state().n_bytes == before
