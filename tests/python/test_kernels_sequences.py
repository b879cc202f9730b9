"""With the kernels a sequence has the logits that it has alone, beside any others, each in a cache of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt
import pytest
from dspark_cpp import kernels

LENGTHS = [1, 2, 31, 32, 33, 64, 90, 7, 100, 127]


class Sequences:
    """Sequences that each have a cache (not unified); one more token of some of them."""

    def __init__(self, path: Path) -> None:
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.ids = np.random.default_rng(5).integers(5, min(self.n_vocab, 40000), (len(LENGTHS), max(LENGTHS) + 1))
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx, settings.n_seq_max, settings.kv_unified = 256 * len(LENGTHS), len(LENGTHS), False
        settings.flash_attn_type = 1
        self.ctx = llama_cpp.llama_init_from_model(self.model, settings)
        self.batch = llama_cpp.llama_batch_init(128, 0, 1)
        for seq, length in enumerate(LENGTHS):
            self.decode([(seq, pos) for pos in range(length)])

    def decode(self, tokens: list[tuple[int, int]]) -> None:
        b = self.batch
        b.n_tokens = len(tokens)
        for i, (seq, pos) in enumerate(tokens):
            b.token[i], b.pos[i], b.n_seq_id[i], b.logits[i] = int(self.ids[seq, pos]), pos, 1, True
            b.seq_id[i][0] = seq
        assert llama_cpp.llama_decode(self.ctx, b) == 0

    def next(self, seqs: list[int], n_threads: int) -> npt.NDArray[np.float32]:
        """Logits of the next token of each, which is forgotten again."""
        llama_cpp.llama_set_n_threads(self.ctx, n_threads, n_threads)
        self.decode([(seq, LENGTHS[seq]) for seq in seqs])
        rows = [llama_cpp.llama_get_logits_ith(self.ctx, i) for i in range(len(seqs))]
        out: list[npt.NDArray[Any]] = [np.ctypeslib.as_array(row, (self.n_vocab,)).copy() for row in rows]
        for seq in seqs:
            llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.ctx), seq, LENGTHS[seq], -1)
        return np.stack(out)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.ctx)
        llama_cpp.llama_model_free(self.model)


@pytest.fixture(params=["smollm_path", "gemma3_path"])
def sequences(request: pytest.FixtureRequest) -> Iterator[Sequences]:
    if not kernels.install("auto").active:
        pytest.skip(kernels.state().reason)
    made = Sequences(request.getfixturevalue(request.param))
    yield made
    made.close()
    kernels.install("off")


def test_a_sequence_has_the_logits_that_it_has_alone_beside_any_others(sequences: Sequences) -> None:
    alone = np.concatenate([sequences.next([seq], n_threads=1) for seq in range(len(LENGTHS))])
    for n_threads in (1, 2, 3):
        for seqs in ([0, 1], [3, 4, 5, 6], list(range(len(LENGTHS)))):
            together = sequences.next(seqs, n_threads)
            wrong = [seq for seq, row in zip(seqs, together, strict=True) if row.tobytes() != alone[seq].tobytes()]
            assert not wrong, f"{n_threads} threads, sequences {seqs}"
