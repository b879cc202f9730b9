"""Prompt files: JSON lines, or plain text with one prompt a line."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, FileError
from ..tokens import encode, encode_chat

__all__ = ["PromptSet", "read_prompts"]


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one file, as tokens of the target."""

    name: str
    prompts: list[list[int]]
    #: whether they are text; what follows token ids says little about a draft
    is_text: bool


def read_prompts(path: str, llm: Any, limit: int | None) -> PromptSet:
    """The prompts of a file: of each line "prompt" or the first of "turns" (put into the chat template, if the target
    has one), "messages" (a conversation for the chat template), or "ids" (token ids as they are); a line that is no
    JSON object is a prompt itself.

    Raises: FileError: the file cannot be read. ArgumentError: it has no prompts, or a line none.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise FileError(f"{path}: cannot be read as a prompt file: {e}") from None
    prompts, texts = [], 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = _row(line)
        if isinstance(row.get("ids"), list):
            prompts.append([int(token) for token in row["ids"]])
            continue
        if isinstance(row.get("messages"), list):
            texts += 1
            prompts.append(encode_chat(llm, row["messages"]))
            continue
        turns = row.get("turns")
        text = row.get("prompt") or (turns[0] if isinstance(turns, list) and turns else None)
        if not isinstance(text, str) or not text:
            raise ArgumentError(f'{path}:{number}: there is no "prompt", "turns", "messages" or "ids" in this line')
        texts += 1
        chat = llm.metadata.get("tokenizer.chat_template")
        prompts.append(encode_chat(llm, [{"role": "user", "content": text}]) if chat else encode(llm, text))
        if limit and len(prompts) >= limit:
            break
    if not prompts:
        raise ArgumentError(f"{path} has no prompts")
    return PromptSet(Path(path).stem, prompts[:limit], texts > 0)


def _row(line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError:
        row = None
    return row if isinstance(row, dict) else {"prompt": line}
