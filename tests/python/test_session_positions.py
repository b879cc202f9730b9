"""What the drafter is told, and what both caches hold: positions, rows, limits and ends of generation."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import ContextFullError, Draft, DraftContext, MismatchError, Session, StateError
from gguf_edit import edit
from scripted import PROMPT, constant, copying, scripted

TEXT = [256, *(b"The lighthouse at the end of the stone pier had two keepers, an old one and a young one. " * 3)]
F32 = 0  # ggml_type


def last_position(llm: llama_cpp.Llama) -> int:
    return int(llama_cpp.llama_memory_seq_pos_max(llama_cpp.llama_get_memory(llm.ctx), 0))


# --- what the drafter is told ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_prompt", [1, 2, 31, 200])
def test_b1_anchor_is_the_last_emitted_token_and_context_is_all_before_it(
    n_prompt: int, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    prompt = TEXT[:n_prompt]
    text = continuation("target-qwen3", prompt, 70)
    drafter = scripted([*prompt, *text], [0, 3, 7], target_layers=[2])
    with Session(open_tiny(), drafter) as session:
        session.append(prompt)
        emitted: list[int] = []
        for _ in range(60):
            n_calls = len(drafter.proposed)
            emitted.append(session.next())
            for call in drafter.proposed[n_calls:]:
                sequence = prompt + emitted[:-1]
                assert (call.position, call.anchor) == (len(sequence) - 1, sequence[-1])
                assert call.n_context == call.position, "the features of 0 .. anchor - 1, and no others"
    accepted = {n for n in (0, 3, 7) if n in accepted_runs(drafter.proposed)}
    assert accepted == {0, 3, 7}
    assert emitted == text[:60]


def accepted_runs(proposed: list[Any]) -> set[int]:
    """How many drafts each round took, from the positions of the next one."""
    return {b.position - a.position - 1 for a, b in zip(proposed, proposed[1:], strict=False)}


@pytest.mark.parametrize("n_prompt", [1, 2, 40, 130])
@pytest.mark.parametrize("n_batch", [512, 40, 20, 7, 1])
def test_b3_every_prompt_token_gives_one_row(n_prompt: int, n_batch: int, open_tiny: Callable[..., Any]) -> None:
    drafter = constant(7, target_layers=[1, 3])
    with Session(open_tiny(n_batch=n_batch), drafter) as session:
        session.append(TEXT[:n_prompt])
        assert len(drafter.rows) == session.n_draft_past == session.n_tokens == n_prompt
        assert drafter.features().shape == (n_prompt, 2 * 64)
        assert np.isfinite(drafter.features()).all() and np.abs(drafter.features()).max(axis=1).min() > 0
        assert session.stats.n_prompt == n_prompt


def test_b3_a_draft_without_features_refuses_to_propose(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    llm = open_tiny()
    with Draft(converted("deepspec-qwen3-vanilla")) as draft:
        with DraftContext(draft, llm) as context, pytest.raises(StateError, match="no target features"):
            context.propose(65)
        with pytest.raises(MismatchError, match="no target was given"):
            DraftContext(draft)


def test_b5_prompts_in_chunks_give_the_rows_and_proposals_of_the_whole(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    prompt = TEXT[:40]
    llm = open_tiny(type_k=F32, type_v=F32)
    with Draft(converted("deepspec-qwen3-vanilla"), target=llm) as draft:
        rows, drafted = {}, {}
        for chunk in [512, 20, 7, 1]:
            recorder = constant(7, target_layers=draft.target_layers)
            for drafter in (recorder, draft):
                with Session(llm, drafter, n_threads=1, type_k="f32", type_v="f32") as session:
                    for at in range(0, 40, chunk):
                        session.append(prompt[at : at + chunk])
                    session.next(), session.next()
                    assert session.last_round is not None
                    drafted[chunk] = session.last_round.drafted
            rows[chunk] = recorder.features()[:40]
    for chunk in [20, 7, 1]:
        assert np.abs(rows[chunk] - rows[512]).max() < 1e-5
        assert drafted[chunk] == drafted[512]


@pytest.mark.parametrize("n_batch", [40, 20, 7, 2, 1])
def test_b5_small_target_batches_cut_proposals_and_change_nothing(
    n_batch: int,
    open_tiny: Callable[..., Any],
    converted: Callable[..., Path],
    continuation: Callable[..., list[int]],
) -> None:
    """Anchor and drafts go in one batch, so that n_batch 7 leaves 6 drafts and n_batch 1 none."""
    prompt = TEXT[:40]
    path = converted("deepspec-qwen3-vanilla")
    with Session(open_tiny(), path, n_threads=1) as session:
        session.append(prompt)
        session.next(), session.next()
        assert session.last_round is not None
        whole = session.last_round.drafted
    with Session(open_tiny(n_batch=n_batch), path, n_threads=1) as session:
        session.append(prompt)
        session.next(), session.next()
        assert session.last_round is not None
        assert session.last_round.drafted == whole[: n_batch - 1]
        got = list(session.generate(prompt, max_tokens=100, stop_at_eog=False))
    assert got == continuation("target-qwen3", prompt, 100)


# --- how far ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drafter", ["copying", "wrong", "draft", None])
@pytest.mark.parametrize("where", ["the session's n_ctx", "the target's n_ctx"])
def test_b16_a_full_context_ends_where_plain_decoding_ends(
    where: str,
    drafter: str | None,
    open_tiny: Callable[..., Any],
    converted: Callable[..., Path],
    continuation: Callable[..., list[int]],
) -> None:
    n_ctx = 64 if where == "the session's n_ctx" else 256
    prompt = TEXT[: n_ctx - 4]
    text = continuation("target-qwen3", prompt, 12)
    llm = open_tiny(n_ctx=512 if n_ctx == 64 else 256)
    drafters = {
        "copying": copying([*prompt, *text]),
        "wrong": constant(7),
        "draft": converted("deepspec-qwen3-vanilla"),
        None: None,
    }
    with Session(llm, drafters[drafter], n_ctx=n_ctx if n_ctx == 64 else None, n_threads=1) as session:
        assert session.n_ctx == n_ctx
        highest = []
        got = []
        for token in session.generate(prompt, stop_at_eog=False):
            got.append(token)
            highest.append(last_position(llm))
        assert got == text[:4]
        assert session.finish_reason == "length"
        assert max(highest) < n_ctx and last_position(llm) == n_ctx - 2
        assert session.n_draft_past <= n_ctx
        # and token by token, until there is no position left
        session.reset()
        session.append(prompt)
        emitted = [session.next() for _ in range(5)]
        assert emitted[:4] == text[:4], "the fifth is chosen from the last position's logits"
        assert last_position(llm) == n_ctx - 1
        with pytest.raises(ContextFullError, match=f"{n_ctx} tokens is full"):
            session.next()
        assert session.n_tokens == n_ctx


def test_b16_prompts_at_the_edge_of_the_context(open_tiny: Callable[..., Any]) -> None:
    with Session(open_tiny(), constant(7), n_ctx=64) as session:
        assert list(session.generate(TEXT[:64])) == []
        assert session.finish_reason == "length"
        assert len(list(session.generate(TEXT[:63], stop_at_eog=False))) == 1
        with pytest.raises(ContextFullError, match="65 tokens, the context holds 64"):
            session.generate(TEXT[:65])
        with pytest.raises(ContextFullError, match="65 more tokens after 0"):
            session.reset()
            session.append(TEXT[:65])
        assert session.n_tokens == 0


@pytest.mark.parametrize("budget", range(10))
def test_token_budget_ends_generation_and_drafts_are_cut_to_it(
    budget: int, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-qwen3", PROMPT, 16)
    drafter = copying([*PROMPT, *text])
    with Session(open_tiny(), drafter) as session:
        assert list(session.generate(PROMPT, max_tokens=budget)) == text[:budget]
        assert session.finish_reason == "length"
        for call in drafter.proposed:
            assert call.position + 1 + len(call.ids) <= len(PROMPT) + budget, "no draft past the budget"


def test_b8_draft_memory_follows_the_sequence_not_the_targets_context(
    open_tiny: Callable[..., Any], converted: Callable[..., Path]
) -> None:
    sizes = []
    for n_ctx in [256, 4096]:
        llm = open_tiny(n_ctx=n_ctx)
        with (
            Draft(converted("deepspec-qwen3-vanilla"), target=llm) as draft,
            DraftContext(draft, llm, n_threads=1) as context,
        ):
            context.append(np.zeros((40, draft.n_features), np.float32))
            context.propose(65)
            sizes.append(context.kv_size)
    # two layers, K and V, two heads of 16 in f16
    assert sizes[0] == sizes[1] < 2 * 2 * 2 * 16 * 2 * 1024


def test_b8_generation_goes_on_drafting_past_the_drafts_trained_length(
    tmp_path: Path,
    open_tiny: Callable[..., Any],
    converted: Callable[..., Path],
    continuation: Callable[..., list[int]],
) -> None:
    path = edit(converted("spk-dflash"), tmp_path / "short.gguf", keys={"dflash.context_length": 128})
    assert Draft(path, inspect=True).describe()["n_ctx_train"] == 128
    with Session(open_tiny(n_ctx=4096), path, n_threads=1) as session:
        assert list(session.generate(PROMPT, max_tokens=400, stop_at_eog=False)) == continuation(
            "target-qwen3", PROMPT, 400, n_ctx=1024
        )
        now = session.last_round
        assert now is not None and now.position > 400
        assert session.stats.n_rounds_drafted >= session.stats.n_rounds - 1, "the last has no budget to draft"
        assert session.disabled_reason is None


@pytest.mark.parametrize("name", ["deepspec-qwen3-vanilla", "spk-dflash"])
def test_b8_past_n_ctx_draft_rounds_are_plain(
    name: str, open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    with Session(open_tiny(), converted(name), n_ctx_draft=100, n_threads=1) as session:
        assert session.draft is not None
        block = session.draft.block_size  # type: ignore[union-attr]
        got, rounds = [], {}
        for token in session.generate(PROMPT, max_tokens=200, stop_at_eog=False):
            got.append(token)
            if session.last_round is not None:
                rounds[session.last_round.position] = len(session.last_round.drafted)
    assert got == continuation("target-qwen3", PROMPT, 200)
    assert {p for p, n in rounds.items() if n == 0} == {p for p in rounds if p + block > 100}


# --- ends of generation ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("offset", range(8))
@pytest.mark.parametrize("stop_at_eog", [True, False], ids=["stop", "ignore"])
def test_c13_generation_stops_at_an_accepted_eos_wherever_it_stands_in_the_block(
    offset: int,
    stop_at_eog: bool,
    tmp_path: Path,
    tiny_path: Callable[[str], Path],
    continuation: Callable[..., list[int]],
) -> None:
    """b17: afterwards both caches hold the prompt and the emitted tokens but the EOS, which was not decoded."""
    text = continuation("target-qwen3", PROMPT, 60)
    eos_at = next(i for i in range(10, 50) if text.index(text[i]) == i)  # a byte that comes for the first time
    first = eos_at - 1 - offset  # prefill gives text[first]; a block of 7 drafts and a bonus follows
    prompt = PROMPT + text[:first]
    file = edit(tiny_path("target-qwen3"), tmp_path / "eos.gguf", keys={"tokenizer.ggml.eos_token_id": text[eos_at]})
    llm = llama_cpp.Llama(str(file), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    drafter = copying([*PROMPT, *text], target_layers=[1])
    try:
        with Session(llm, drafter) as session:
            got = list(session.generate(prompt, max_tokens=offset + 5, stop_at_eog=stop_at_eog))
            assert got == text[first : first + offset + (2 if stop_at_eog else 5)]
            assert session.finish_reason == ("stop" if stop_at_eog else "length")
            n = len(prompt) + len(got) - 1
            assert session.n_tokens == n == last_position(llm) + 1
            assert session.n_draft_past == n == len(drafter.rows)
            assert session.tokens == (prompt + got)[:-1]
    finally:
        llm.close()


def test_c13_a_rejected_eos_does_not_stop(
    open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    llm = open_tiny()
    assert llm.token_eos() == 257
    with Session(llm, constant(257)) as session:
        assert list(session.generate(PROMPT, max_tokens=50)) == continuation("target-qwen3", PROMPT, 50)
        assert session.finish_reason == "length"


@pytest.mark.parametrize("n_taken", range(1, 12))
def test_b17_closing_the_generator_leaves_the_caches_at_the_last_yielded_token(
    n_taken: int, open_tiny: Callable[..., Any], continuation: Callable[..., list[int]]
) -> None:
    text = continuation("target-qwen3", PROMPT, 40)
    llm = open_tiny()
    drafter = copying([*PROMPT, *text], target_layers=[1])
    with Session(llm, drafter) as session:
        generator = session.generate(PROMPT, max_tokens=40)
        got = [next(generator) for _ in range(n_taken)]
        generator.close()
        assert got == text[:n_taken]
        assert session.finish_reason is None
        n = len(PROMPT) + n_taken - 1
        assert session.n_tokens == n == last_position(llm) + 1 == session.n_draft_past == len(drafter.rows)
        # and it goes on as if nothing had happened
        assert [session.next() for _ in range(10)] == text[n_taken : n_taken + 10]
