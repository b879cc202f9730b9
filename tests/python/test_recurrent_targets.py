"""Targets whose memory cannot give single tokens back: decoded plainly, rewound by decoding again, and they say so."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import BackendError, Llama, Session
from gguf import GGUFValueType, GGUFWriter
from gguf_edit import copy_tokenizer
from scripted import PROMPT, constant


def write_hybrid(tokenizer: Path, out: Path) -> Path:
    """A random LFM2 of 320 tokens: a convolution layer, an attention layer, a convolution layer."""
    H, F, n_head, n_kv, taps, V = 64, 96, 4, 2, 3, 320
    rng = np.random.default_rng(0)
    w = GGUFWriter(out, "lfm2")
    copy_tokenizer(tokenizer, w)
    w.add_block_count(3)
    w.add_context_length(512)
    w.add_embedding_length(H)
    w.add_feed_forward_length(F)
    w.add_head_count(n_head)
    w.add_head_count_kv([0, n_kv, 0])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(1e6)
    w.add_vocab_size(V)
    w.add_key_value("lfm2.shortconv.l_cache", taps, GGUFValueType.UINT32)

    def matrix(name: str, rows: int, columns: int) -> None:
        w.add_tensor(f"{name}.weight", (2 * rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32))

    def norm(name: str, n: int) -> None:
        w.add_tensor(f"{name}.weight", (1 + 0.2 * rng.standard_normal(n)).astype(np.float32))

    matrix("token_embd", V, H)
    norm("token_embd_norm", H)
    for i in range(3):
        p = f"blk.{i}."
        norm(p + "attn_norm", H)
        norm(p + "ffn_norm", H)
        matrix(p + "ffn_gate", F, H)
        matrix(p + "ffn_up", F, H)
        matrix(p + "ffn_down", H, F)
        if i == 1:
            norm(p + "attn_q_norm", H // n_head)
            norm(p + "attn_k_norm", H // n_head)
            matrix(p + "attn_q", H, H)
            matrix(p + "attn_k", H // n_head * n_kv, H)
            matrix(p + "attn_v", H // n_head * n_kv, H)
            matrix(p + "attn_output", H, H)
        else:
            matrix(p + "shortconv.conv", H, taps)
            matrix(p + "shortconv.in_proj", 3 * H, H)
            matrix(p + "shortconv.out_proj", H, H)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return out


@pytest.fixture(scope="module")
def hybrid_path(tiny_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tiny_path("target-qwen3"), tmp_path_factory.mktemp("hybrid") / "lfm2.gguf")


@pytest.fixture
def hybrid(hybrid_path: Path) -> Iterator[llama_cpp.Llama]:
    llm = llama_cpp.Llama(str(hybrid_path), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    yield llm
    llm.close()


@pytest.fixture(scope="module")
def text(hybrid_path: Path, plain_tokens: Callable[..., list[int]]) -> list[int]:
    llm = llama_cpp.Llama(str(hybrid_path), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    try:
        return plain_tokens(llm, PROMPT, 60)
    finally:
        llm.close()


def test_a_partly_recurrent_target_is_decoded_plainly_and_says_why(hybrid: llama_cpp.Llama, text: list[int]) -> None:
    assert len(set(text)) > 5, "the target says something"
    drafter = constant(text[5])
    with Session(hybrid, drafter) as session:
        assert session.disabled_reason is not None and "recurrent" in session.disabled_reason
        assert list(session.generate(PROMPT, max_tokens=60, stop_at_eog=False)) == text
        assert session.stats.draft_n == 0 and drafter.proposed == []


def test_rewinding_a_recurrent_target_decodes_the_kept_tokens_again(hybrid: llama_cpp.Llama, text: list[int]) -> None:
    """llama.cpp refuses to remove a tail; it has to be noticed, or the state would be that of the dropped tokens."""
    with Session(hybrid, constant(7, target_layers=[1, 2])) as session:
        session.append([*PROMPT, *text[:20], 1, 2, 3])
        session.rewind(len(PROMPT) + 20)
        assert session.tokens == [*PROMPT, *text[:20]]
        session.append(text[20:21])
        assert [session.next() for _ in range(30)] == text[21:51]


@pytest.mark.parametrize("n_shared", [1, 10, 30, 34])
def test_prefix_reuse_on_a_recurrent_target_equals_a_cold_run(
    n_shared: int, hybrid: llama_cpp.Llama, text: list[int]
) -> None:
    with Session(hybrid) as session:
        other: Any = [*PROMPT[:n_shared], 1, 2, 3, 4]
        list(session.generate(other, max_tokens=10, stop_at_eog=False))
        assert list(session.generate(PROMPT, max_tokens=60, stop_at_eog=False)) == text


def test_closing_early_on_a_recurrent_target_goes_on_where_it_stopped(hybrid: llama_cpp.Llama, text: list[int]) -> None:
    with Session(hybrid, constant(7)) as session:
        generator = session.generate(PROMPT, max_tokens=60, stop_at_eog=False)
        got = [next(generator) for _ in range(7)]
        generator.close()
        got += [session.next() for _ in range(30)]
    assert got == text[:37]


def test_a_context_whose_batches_are_too_small_for_its_snapshots_is_refused(hybrid_path: Path) -> None:
    """llama.cpp would end the process at the first decode."""
    original = llama_cpp.llama_cpp.llama_context_default_params

    def with_snapshots() -> Any:
        params = original()
        params.n_rs_seq = 7
        return params

    llama_cpp.llama_context_default_params = llama_cpp.llama_cpp.llama_context_default_params = with_snapshots
    try:
        llm = llama_cpp.Llama(str(hybrid_path), n_ctx=256, n_batch=8, verbose=False)
    finally:
        llama_cpp.llama_context_default_params = llama_cpp.llama_cpp.llama_context_default_params = original
    with pytest.raises(ValueError, match="n_rs_seq 7 and n_ubatch 8, but llama.cpp needs an n_ubatch of 9"):
        Session(llm, constant(7))
    llm.close()


def aborting_at(node: int) -> Any:
    """llama.cpp's abort callback: gives up the batch at one node of its graphs."""
    left = [node]

    @llama_cpp.ggml_abort_callback
    def stop(_: Any) -> bool:
        left[0] -= 1
        return left[0] < 0 and left[0] == -1

    return stop


@pytest.mark.parametrize("snapshots", [0, 6])
def test_a_batch_that_is_given_up_leaves_no_half_state_of_a_recurrent_target(
    snapshots: int, hybrid_path: Path, text: list[int]
) -> None:
    """The layers before the node had taken the tokens in: decoding went on from a state that belonged to none."""
    draft: Any = constant(7) if snapshots else None
    settings: Any = {"n_ctx": 512, "n_batch": 16, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
    llm = Llama(str(hybrid_path), draft=draft, draft_n_max=snapshots or None, kernels="off", **settings)
    session = llm._engine.session if snapshots else Session(llm)
    for node in (0, 7, 20, 33, 60):
        session.reset()
        session.append(PROMPT[:20])
        stop = aborting_at(node)
        llama_cpp.llama_set_abort_callback(llm.ctx, stop, None)
        with pytest.raises(BackendError, match="aborted by the caller"):
            session.append(PROMPT[20:])
        assert session.tokens == PROMPT[:20]
        session.append(PROMPT[20:])
        got = [session.next() for _ in range(10)]
        stop = aborting_at(node)
        llama_cpp.llama_set_abort_callback(llm.ctx, stop, None)
        while len(got) < 40:
            with contextlib.suppress(BackendError):
                got.append(session.next())
        assert got == text[:40]
    session.close()
    llm.close()
