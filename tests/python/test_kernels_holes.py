"""With the kernels a token's logits depend neither on its batch nor on cells of the cache that it does not see."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from dspark_cpp import kernels

pytestmark = pytest.mark.slow


class TwoSequences:
    """Two sequences that share the cells of one cache; logits of every token of a batch."""

    def __init__(self, path: Path, flash: bool) -> None:
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max, settings.kv_unified, settings.flash_attn_type = 512, 2, True, int(flash)
        self.ctx = llama_cpp.llama_init_from_model(self.model, settings)
        self.memory = llama_cpp.llama_get_memory(self.ctx)
        self.batch = llama_cpp.llama_batch_init(512, 0, 1)

    def __call__(self, ids: npt.NDArray[Any], pos: int, seq: int = 0, n_threads: int = 2) -> npt.NDArray[np.float32]:
        llama_cpp.llama_set_n_threads(self.ctx, n_threads, n_threads)
        b = self.batch
        b.n_tokens = len(ids)
        for i, token in enumerate(ids):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = int(token), pos + i, 1, True
            b.seq_id[i][0] = seq
        assert llama_cpp.llama_decode(self.ctx, b) == 0
        rows = [llama_cpp.llama_get_logits_ith(self.ctx, i) for i in range(len(ids))]
        return np.stack([np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows])

    def forget(self, pos: int, seq: int = 0) -> None:
        llama_cpp.llama_memory_seq_rm(self.memory, seq, pos, -1)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)


@pytest.fixture(params=["smollm_path", "smollm_f16_path", "gemma3_path"])
def path(request: pytest.FixtureRequest) -> Path:
    return Path(request.getfixturevalue(request.param))


@pytest.fixture(params=[False, True], ids=["", "flash"])
def decode(path: Path, request: pytest.FixtureRequest) -> Iterator[TwoSequences]:
    if not kernels.install("auto").active:
        pytest.skip(kernels.state().reason)
    decoder = TwoSequences(path, request.param)
    yield decoder
    decoder.close()
    kernels.install("off")


def assert_alone_as_together(decode: TwoSequences, ids: npt.NDArray[Any], n_past: int) -> None:
    """From n_past on, whose cells are left as they were found."""
    alone = np.concatenate([decode(ids[i : i + 1], n_past + i, n_threads=1) for i in range(16)])
    for n_threads in (1, 2, 3):
        for n in (2, 5, 8, 16):
            decode.forget(n_past)
            together = decode(ids[:n], n_past, n_threads=n_threads)
            assert together.tobytes() == alone[:n].tobytes(), f"{n} tokens after {n_past}, {n_threads} threads"
    decode.forget(n_past)


def test_what_a_removed_sequence_left_in_its_cells_changes_no_bit(decode: TwoSequences) -> None:
    rng = np.random.default_rng(8)
    ids = rng.integers(5, 30000, 200)
    seen = []
    for _ in range(2):
        decode.forget(0)
        decode(ids[:40], 0)
        decode(rng.integers(5, 30000, 70), 0, seq=1)
        decode(ids[40:100], 40)
        decode.forget(0, seq=1)
        assert_alone_as_together(decode, ids[100:], 100)  # in the cells that have become free
        decode(ids[100:110], 100)
        decode.forget(103)
        assert_alone_as_together(decode, ids[103:], 103)
        seen.append(decode(ids[103:107], 103))
    assert seen[0].tobytes() == seen[1].tobytes()


@pytest.mark.parametrize("decode", [True], ids=["flash"], indirect=True)
def test_with_flash_attention_another_sequence_between_the_cells_changes_no_bit(decode: TwoSequences) -> None:
    rng = np.random.default_rng(9)
    ids = rng.integers(5, 30000, 120)
    seen = []
    for others in (0, 70):
        decode.forget(0)
        decode.forget(0, seq=1)
        decode(ids[:37], 0)
        if others:
            decode(rng.integers(5, 30000, others), 0, seq=1)
        decode(ids[37:100], 37)
        seen.append(decode(ids[100:104], 100))
    assert seen[0].tobytes() == seen[1].tobytes()
