"""States that leave a session and come back, and a target's memory that others have changed."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import (
    ArgumentError,
    ContextFullError,
    FormatError,
    MismatchError,
    Session,
    StateError,
)
from scripted import PROMPT

F32 = 0  # ggml_type
F32_CACHES = {"n_threads": 1, "type_k": "f32", "type_v": "f32"}
DRAFT = "deepspec-qwen3-vanilla"


def run_rounds(session: Session, n: int) -> tuple[list[int], list[tuple[int, tuple[int, ...], int]]]:
    """n tokens, and position, proposal and accepted count of every round."""
    session.reset_stats()
    ids, rounds = [], {}
    for _ in range(n):
        ids.append(session.next())
        if session.stats.n_rounds:
            last = session.last_round
            assert last is not None
            rounds[last.position] = (last.position, tuple(last.drafted), last.n_accepted)
    return ids, [rounds[at] for at in sorted(rounds)]


def memory_of(llm: llama_cpp.Llama) -> bytes:
    size = llama_cpp.llama_state_get_size(llm.ctx)
    buffer = (ctypes.c_uint8 * size)()
    return bytes(buffer[: llama_cpp.llama_state_get_data(llm.ctx, buffer, size)])


def restore(llm: llama_cpp.Llama, memory: bytes) -> None:
    buffer = (ctypes.c_uint8 * len(memory)).from_buffer_copy(memory)
    assert llama_cpp.llama_state_set_data(llm.ctx, buffer, len(memory)) == len(memory)


def decode_by_hand(llm: llama_cpp.Llama, ids: list[int], position: int) -> None:
    """What guidance or a multimodal handler does: llama_decode on the same context, behind our back."""
    batch = llama_cpp.llama_batch_init(len(ids), 0, 1)
    batch.n_tokens = len(ids)
    for i, token in enumerate(ids):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = token, position + i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, i == len(ids) - 1
    assert llama_cpp.llama_decode(llm.ctx, batch) == 0
    llama_cpp.llama_batch_free(batch)


@pytest.fixture
def open_session(open_tiny: Callable[..., Any], converted: Callable[..., Path]) -> Callable[..., Session]:
    def open_one(draft: Any = DRAFT, target: str = "target-qwen3", **settings: Any) -> Session:
        llm = open_tiny(target, type_k=F32, type_v=F32)
        return Session(llm, converted(draft) if isinstance(draft, str) else draft, **{**F32_CACHES, **settings})

    return open_one


# --- save and load ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_before", [0, 1, 17])
def test_a_restored_session_goes_on_with_the_same_tokens_proposals_and_accepted_counts(
    open_session: Callable[..., Session], n_before: int
) -> None:
    with open_session() as session:
        session.append(PROMPT)
        for _ in range(n_before):
            session.next()
        session.settle()
        kept, state, memory = session.tokens, session.save_state(), memory_of(session.target)
        session.append([97])
        wanted = run_rounds(session, 40)
    with open_session() as other:
        other.append([98] * 9)  # whatever it held
        other.next()
        restore(other.target, memory)
        other.load_state(state)
        assert other.tokens == kept and other.n_draft_past == len(kept)
        assert other.pending is None and other.logits_row is None
        other.append([97])
        assert run_rounds(other, 40) == wanted


def test_saving_in_the_middle_of_a_block_keeps_what_was_returned_and_the_session_goes_on(
    open_session: Callable[..., Session], continuation: Callable[..., list[int]]
) -> None:
    wanted = continuation("target-qwen3", PROMPT, 40)
    with open_session() as session:
        session.append(PROMPT)
        ids = []
        for _ in range(40):
            ids.append(session.next())
            state = session.save_state()
            assert struct.unpack_from("<i", state, 32 + 16)[0] == session.n_tokens == len(PROMPT) + len(ids) - 1
        assert ids == wanted


def test_a_state_saved_without_a_draft_is_taken_and_the_draft_begins_anew(
    open_session: Callable[..., Session], continuation: Callable[..., list[int]]
) -> None:
    wanted = continuation("target-qwen3", PROMPT, 60)
    with open_session(None) as plain:
        plain.append(PROMPT)
        ids = [plain.next() for _ in range(10)]
        plain.settle()
        state, memory, kept = plain.save_state(), memory_of(plain.target), plain.tokens
    with open_session() as session:
        restore(session.target, memory)
        session.load_state(state)
        assert session.tokens == kept
        session.append(ids[len(kept) - len(PROMPT) :])
        ids += [session.next() for _ in range(50)]
        assert ids == wanted
        assert session.stats.draft_n_accepted > 0


def test_a_state_saved_with_a_draft_is_taken_by_a_plain_session(open_session: Callable[..., Session]) -> None:
    with open_session() as session:
        session.append(PROMPT)
        state, memory = session.save_state(), memory_of(session.target)
        wanted = [session.next() for _ in range(5)]
    with open_session(None) as plain:
        restore(plain.target, memory)
        plain.load_state(state)
        plain.rewind(len(PROMPT) - 1)
        plain.append(PROMPT[-1:])
        assert [plain.next() for _ in range(5)] == wanted


def test_every_damaged_byte_of_a_state_is_noticed_and_leaves_the_session_as_it_was(
    open_session: Callable[..., Session],
) -> None:
    with open_session() as session:
        session.append(PROMPT)
        state = session.save_state()
        wanted = session.next()
        session.rewind(len(PROMPT) - 1)
        session.append(PROMPT[-1:])
        rng = np.random.default_rng(0)
        places = [*range(120), *rng.integers(120, len(state), 200).tolist()]
        for at in places:
            bad = bytearray(state)
            bad[at] ^= 1 << int(rng.integers(8))
            with pytest.raises(FormatError):
                session.load_state(bytes(bad))
        for n in (0, 1, 31, 32, 60, len(state) - 1):
            with pytest.raises(FormatError):
                session.load_state(state[:n])
        with pytest.raises(FormatError):
            session.load_state(state + b"\0")
        with pytest.raises(FormatError):
            session.load_state(b"not a state at all, but long enough to be one")
        assert session.tokens == list(PROMPT) and session.next() == wanted


def test_a_foreign_state_is_refused_in_a_sentence(open_session: Callable[..., Session]) -> None:
    with open_session() as session:
        session.append(PROMPT)
        state, memory = session.save_state(), memory_of(session.target)
    with open_session("deepspec-qwen3-gated") as other:
        restore(other.target, memory)
        with pytest.raises(MismatchError, match="another draft"):
            other.load_state(state)
        other.adopt(PROMPT)  # what is left to do
        assert other.tokens == list(PROMPT)
    with open_session(type_k="f16") as other:
        restore(other.target, memory)
        with pytest.raises(MismatchError, match="types 0 and 0.*f16 and f32"):
            other.load_state(state)
    too_long = f"has {len(PROMPT)} tokens.*up to {len(PROMPT) - 1}"
    with open_session(n_ctx=len(PROMPT) - 1) as other, pytest.raises(ContextFullError, match=too_long):
        other.load_state(state)
    with open_session(None, target="target-gemma4") as other, pytest.raises(MismatchError, match="another target"):
        other.load_state(state)


def test_a_state_without_its_target_memory_is_refused_and_nothing_is_lost(open_session: Callable[..., Session]) -> None:
    with open_session() as session:
        session.append(PROMPT)
        state = session.save_state()
        session.append([97, 98])
        with pytest.raises(StateError, match="restore it first"):
            session.load_state(state)
        assert session.tokens == [*PROMPT, 97, 98]
        with pytest.raises(ArgumentError, match="expected bytes"):
            session.load_state("text")  # type: ignore[arg-type]


# --- what others did --------------------------------------------------------------------------------------------------


def test_tokens_that_somebody_else_decoded_are_adopted_and_drafting_goes_on(
    open_session: Callable[..., Session], continuation: Callable[..., list[int]]
) -> None:
    inserted = [256, *b"Once upon a time there was a"]
    wanted = continuation("target-qwen3", [*PROMPT, *inserted, 97], 50)
    with open_session() as session:
        session.append(PROMPT)
        session.next()
        session.settle()
        decode_by_hand(session.target, inserted, len(PROMPT))
        with pytest.raises(StateError, match="adopt"):
            session.next()
        session.adopt([*PROMPT, *inserted])
        session.append([97])
        session.reset_stats()
        assert [session.next() for _ in range(50)] == wanted
        assert session.stats.draft_n_accepted > 0


def test_adopting_a_prefix_keeps_the_draft_and_its_proposals(open_session: Callable[..., Session]) -> None:
    with open_session() as session:
        session.append(PROMPT)
        session.append([97])
        wanted = run_rounds(session, 30)
        kept = len(PROMPT)
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(session.target.ctx), 0, kept, -1)
        session.adopt(PROMPT)
        assert session.n_draft_past == kept
        session.append([97])
        assert run_rounds(session, 30) == wanted


def test_adopt_refuses_tokens_that_the_memory_does_not_hold(open_session: Callable[..., Session]) -> None:
    with open_session() as session:
        session.append(PROMPT)
        with pytest.raises(StateError, match=f"ends at position {len(PROMPT) - 1}, expected {len(PROMPT) + 1} tokens"):
            session.adopt([*PROMPT, 97])
        with pytest.raises(ArgumentError, match="token 1 of the input is 99999"):
            session.adopt([1, 99999])
        with pytest.raises(ArgumentError, match="cannot adopt 600 tokens, expected 0 to 512"):
            session.adopt([97] * 600)
        assert session.tokens == list(PROMPT)
        session.adopt([])
        assert session.tokens == [] and session.n_draft_past == 0


def test_a_session_takes_over_what_the_context_holds_already(
    open_tiny: Callable[..., Any], converted: Callable[..., Path], continuation: Callable[..., list[int]]
) -> None:
    wanted = continuation("target-qwen3", PROMPT, 40)
    llm = open_tiny(type_k=F32, type_v=F32)
    llm.eval(PROMPT[:-1])
    with Session(llm, converted(DRAFT), tokens=PROMPT[:-1], **F32_CACHES) as session:
        assert llm.n_tokens == session.n_tokens == len(PROMPT) - 1
        session.append(PROMPT[-1:])
        assert [session.next() for _ in range(40)] == wanted
        assert session.stats.n_prompt == 1


def test_a_drafter_of_ones_own_is_told_of_the_hole(open_session: Callable[..., Session]) -> None:
    class Listener:
        n_draft_max = 2

        def __init__(self) -> None:
            self.told: list[tuple[str, int]] = []

        def propose(self, anchor: int, position: int, n_max: int) -> list[int]:
            self.told.append(("propose", position))
            return [97]

        def append(self, features: Any, position: int) -> None:
            self.told.append(("append", position))

        def rewind(self, n_past: int) -> None:
            self.told.append(("rewind", n_past))

    drafter = Listener()
    n = len(PROMPT)
    with open_session(drafter) as session:
        session.append(PROMPT)
        decode_by_hand(session.target, [97, 98], n)
        session.adopt([*PROMPT, 97, 98])
        session.append([99])
        assert session.n_draft_past == n + 3
        session.next()
        session.next()
    assert drafter.told == [("append", 0), ("rewind", 0), ("append", n + 2), ("propose", n + 3)]


# --- logits -----------------------------------------------------------------------------------------------------------


def test_logits_row_names_the_logits_that_follow_the_tokens(
    open_session: Callable[..., Session], open_tiny: Callable[..., Any]
) -> None:
    alone = open_tiny(type_k=F32, type_v=F32)

    def logits(llm: llama_cpp.Llama, row: int) -> Any:
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits_ith(llm.ctx, row), shape=(llm.n_vocab(),)).copy()

    alone.eval(PROMPT)
    with open_session() as session:
        assert session.logits_row is None
        session.append(PROMPT)
        for _ in range(25):
            assert session.logits_row is not None
            np.testing.assert_allclose(logits(session.target, session.logits_row), logits(alone, -1), atol=2e-4)
            token = session.next()
            row = session.logits_row
            assert row is not None and int(logits(session.target, row).argmax()) == token
            alone.eval([token])
            session.next()
            session.settle()  # drops the token that was looked at in advance
            session.append([token]) if session.n_tokens < alone.n_tokens else session.rewind(alone.n_tokens)
            if session.logits_row is None:
                session.rewind(alone.n_tokens - 1)
                session.append([token])


def test_logits_all_computes_every_row_of_an_append(open_session: Callable[..., Session]) -> None:
    for logits_all in (False, True):
        with open_session(logits_all=logits_all) as session:
            session.append(PROMPT)
            has = [bool(llama_cpp.llama_get_logits_ith(session.target.ctx, i)) for i in range(len(PROMPT))]
            assert has == [logits_all] * (len(PROMPT) - 1) + [True]
