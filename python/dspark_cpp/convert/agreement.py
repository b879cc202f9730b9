"""How often two drafts propose the same tokens: both asked over the same target features, at every position.

Not imported with the rest of the converter: unlike it, this needs llama.cpp.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..draft import Draft, DraftContext
from ..errors import ArgumentError, FileError, FormatError
from ..session import Session
from ..target import open_target
from ..tokens import encode, encode_chat

__all__ = ["PROMPTS", "Agreement", "measure_agreement", "read_prompts"]

Prompt = str | list[int]

#: asked where the caller has no prompts: prose, code, arithmetic, a list, a dialogue, another language
PROMPTS: tuple[Prompt, ...] = (
    "Explain in a few sentences why the sky is blue.",
    "Write a Python function that checks whether a word is a palindrome.",
    "A train leaves at 9:40 and arrives at 13:05. How long does the journey take? Show your steps.",
    "List five things to pack for a day in the mountains, each with a reason.",
    "Write a short dialogue between a baker and a customer who cannot decide.",
    "Translate into French: The library opens at nine and closes in the evening.",
)


@dataclass(frozen=True)
class Agreement:
    """How two drafts compare. Rates are shares of the positions; `by_slot[k]` is that of slot k alone.

    The accepted lengths, (original, other), are tokens a round with the target's own (bonus) included: what a greedy
    session would get, computed from the text that the target wrote alone.
    """

    n_prompts: int
    n_positions: int
    first_slot: float
    whole_block: float
    by_slot: tuple[float, ...]
    mean_accepted_length: tuple[float, float]
    n_rounds: tuple[int, int]

    def lines(self) -> list[str]:
        """The result as lines for people."""
        if not self.n_positions:
            return ["agreement:    not measured: the target wrote too little"]
        slots = " ".join(f"{100 * rate:.1f}" for rate in self.by_slot)
        before, after = self.mean_accepted_length
        return [
            f"agreement:    first token {self.first_slot:.1%}, whole block {self.whole_block:.1%} "
            f"of {self.n_positions} proposals over {self.n_prompts} prompts (by slot, %: {slots})",
            f"accepted:     {before:.2f} tokens a round with the original, {after:.2f} with the new file",
        ]


class _Pair:
    """A drafter that proposes nothing, so that the target decodes alone, and asks two drafts at every position."""

    def __init__(self, drafts: tuple[Draft, Draft], llm: Any) -> None:
        self.contexts = [DraftContext(draft, llm, n_threads=llm.n_threads) for draft in drafts]
        self.target_layers = drafts[0].target_layers
        self.n_draft_max = drafts[0].n_draft_max
        self.proposals: dict[int, list[list[int]]] = {}

    def append(self, features: Any, position: int) -> None:
        for context in self.contexts:
            context.append(features)

    def rewind(self, n_past: int) -> None:
        for context in self.contexts:
            context.rewind(n_past)

    def propose(self, anchor: int, position: int, n_max: int) -> Sequence[int]:
        self.proposals[position] = [context.propose(anchor).ids.tolist() for context in self.contexts]
        return ()

    def close(self) -> None:
        for context in self.contexts:
            context.close()


def read_prompts(path: str | os.PathLike[str]) -> list[Prompt]:
    """The prompts of a JSON-lines file: "prompt" or "turns" (text; the first turn), or "ids" (token ids).

    Raises: FileError where it cannot be read; FormatError, with the line, where a line is not usable.
    """
    prompts: list[Prompt] = []
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise FileError(f"{path}: cannot be read: {getattr(e, 'strerror', None) or e}") from None
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as e:
            raise FormatError(f"{path}:{number}: not valid JSON: {e}") from None
        prompt = _prompt_of(row) if isinstance(row, dict) else None
        if not prompt:
            raise FormatError(f'{path}:{number}: a line needs "prompt" (text), "turns" (texts) or "ids" (token ids)')
        prompts.append(prompt)
    if not prompts:
        raise FormatError(f"{path}: no prompts in this file")
    return prompts


def _prompt_of(row: dict[str, Any]) -> Prompt | None:
    ids, turns = row.get("ids"), row.get("turns")
    if isinstance(ids, list) and all(type(i) is int for i in ids):
        return ids
    text = turns[0] if isinstance(turns, list) and turns else row.get("prompt")
    return text if isinstance(text, str) else None


def _encode(llm: Any, prompt: Prompt) -> list[int]:
    if not isinstance(prompt, str):
        return prompt
    if llm.metadata.get("tokenizer.chat_template"):
        return encode_chat(llm, [{"role": "user", "content": prompt}])
    return encode(llm, prompt)


def measure_agreement(
    original: str | os.PathLike[str],
    other: str | os.PathLike[str],
    target: str | os.PathLike[str],
    prompts: Sequence[Prompt] = PROMPTS,
    *,
    n_predict: int = 64,
    n_ctx: int = 2048,
    n_threads: int | None = None,
) -> Agreement:
    """Compare the greedy proposals of two files of one draft, at every position of what the target writes alone.

    Raises: MismatchError where a draft does not belong to the target; ArgumentError for drafts of other taps or
    blocks than each other; FileError, FormatError or ContextFullError for a file or prompt that cannot be used.
    """
    # before the target, which takes longer: a wrong draft is then known at once
    for path in (original, other):
        with Draft(path, inspect=True) as draft:
            draft.check_target(target)
    threads = {} if n_threads is None else {"n_threads": n_threads, "n_threads_batch": n_threads}
    try:
        llm = open_target(target, n_ctx=n_ctx, verbose=False, **threads)
    except ValueError as e:
        raise FileError(f"cannot load the target {target}: {e}") from None
    try:
        with Draft(original, target=llm) as a, Draft(other, target=llm) as b:
            shapes = [(d.target_layers, d.block_size, d.n_draft_max) for d in (a, b)]
            if shapes[0] != shapes[1]:
                raise ArgumentError(f"{other} is not another file of the draft {original}: {shapes[1]}, {shapes[0]}")
            return _measure((a, b), llm, prompts, n_predict)
    finally:
        llm.close()


def _measure(drafts: tuple[Draft, Draft], llm: Any, prompts: Sequence[Prompt], n_predict: int) -> Agreement:
    n_slots = drafts[0].n_draft_max
    same = [0] * n_slots
    n_positions = whole = 0
    accepted, rounds = [0, 0], [0, 0]
    pair = _Pair(drafts, llm)
    try:
        with Session(llm, pair) as session:
            for prompt in prompts:
                pair.proposals.clear()
                ids = _encode(llm, prompt)
                text = list(session.generate(ids, max_tokens=n_predict))
                for a, b in pair.proposals.values():
                    n_positions += 1
                    whole += a == b
                    for slot in range(n_slots):
                        same[slot] += a[slot] == b[slot]
                for i in (0, 1):
                    blocks = {position - len(ids): both[i] for position, both in pair.proposals.items()}
                    n, taken = _walk(text, blocks, n_slots)
                    rounds[i] += n
                    accepted[i] += taken
    finally:
        pair.close()
    share = 1 / max(1, n_positions)
    return Agreement(
        n_prompts=len(prompts),
        n_positions=n_positions,
        first_slot=same[0] * share,
        whole_block=whole * share,
        by_slot=tuple(n * share for n in same),
        mean_accepted_length=(1 + accepted[0] / max(1, rounds[0]), 1 + accepted[1] / max(1, rounds[1])),
        n_rounds=(rounds[0], rounds[1]),
    )


def _walk(text: list[int], blocks: dict[int, list[int]], n_slots: int) -> tuple[int, int]:
    """(rounds, accepted drafts) of greedy decoding with these proposals: blocks[k] was proposed with text[k] as anchor.

    Ends before the first round whose block reaches beyond the text.
    """
    n_rounds = n_accepted = at = 0
    while at + n_slots < len(text) and (block := blocks.get(at)) is not None:
        n = 0
        while n < n_slots and block[n] == text[at + 1 + n]:
            n += 1
        n_rounds += 1
        n_accepted += n
        at += n + 1
    return n_rounds, n_accepted
