"""Prompts to train on: of the user's files, or written by the target itself."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import llama_cpp

from .. import tokens
from ..bench import prompts as files
from ..errors import ArgumentError, FileError
from .responses import Prompt, Response, ResponseSettings, generate_responses, read_responses

__all__ = ["read_prompts", "self_prompts"]

#: what the target is told before it writes prompts of its own
TOPICS = (
    None,
    "You are an assistant for programming questions. Users ask you to write or explain short programs.",
    "You are an assistant for mathematics. Users ask you to solve problems step by step.",
    "You are an assistant for writing, everyday questions and explanations.",
)
_MARK = "@@the user's words@@"


def read_prompts(
    target: str | os.PathLike[str], paths: Iterable[str | os.PathLike[str]], max_tokens: int
) -> list[Prompt]:
    """The prompts of some files (see ``bench.prompts.read_prompts``) in the target's chat template, each once.

    Longer ones than max_tokens are left out. A prompt's source is the name of its file.

    Raises: FileError: a file cannot be read. ArgumentError: one has no prompts, or none is short enough.
    """
    llm = _tokenizer(target)
    try:
        found: dict[tuple[int, ...], Prompt] = {}
        for path in paths:
            read = files.read_prompts(os.fspath(path), llm, None)
            for ids in read.prompts:
                found.setdefault(tuple(ids), Prompt(ids, read.name))
    finally:
        llm.close()
    short = [prompt for prompt in found.values() if len(prompt.tokens) <= max_tokens]
    if not short:
        raise ArgumentError(f"none of the {len(found)} prompts has at most {max_tokens} tokens")
    return short


def self_prompts(
    target: str | os.PathLike[str],
    n: int,
    path: str | os.PathLike[str],
    *,
    max_tokens: int = 200,
    seed: int = 0,
    n_parallel: int = 32,
    n_workers: int | None = None,
    n_threads: int | None = None,
) -> list[Prompt]:
    """Up to n prompts that the target writes at temperature 1 behind its template's header of a user's turn.

    It is steered to code, mathematics and conversation in turns. Fragments, repetition and what resembles an earlier
    prompt are left out; where the target hardly writes anything else, there are fewer than n.

    Args:
        path: A file that keeps what it writes: a run that was interrupted goes on from there (see generate_responses).
        max_tokens: Longest prompt.

    Raises: ArgumentError: the target's chat template has no place for a user's words.
    """
    llm = _tokenizer(target)
    try:
        headers = [_header(llm, topic) for topic in TOPICS]
        kept: list[Prompt] = []
        # a share that an earlier run has gone beyond did not give enough
        done = sum(1 for _ in read_responses(path)) if Path(path).exists() else 0
        shares = [n_asked for n_asked in (math.ceil(share * n) for share in (1.5, 3, 6)) if n_asked >= done]
        for n_asked in shares or [math.ceil(6 * n)]:
            asked = [headers[i % len(headers)] for i in range(n_asked)]
            settings = ResponseSettings(max_tokens, ((1.0, 1.0),), seed, n_parallel)
            for _ in generate_responses(target, asked, path, settings, n_workers=n_workers, n_threads=n_threads):
                pass
            kept = _filtered(llm, path, max_tokens)
            if len(kept) >= n:
                break
        return kept[:n]
    finally:
        llm.close()


def _tokenizer(target: str | os.PathLike[str]) -> Any:
    if not Path(target).exists():
        raise FileError(f"{os.fspath(target)}: there is no such target")
    # not vocab_only: llama.cpp then warns of a context longer than the none that it knows of
    return llama_cpp.Llama(os.fspath(target), n_ctx=256, n_batch=8, verbose=False)


def _header(llm: Any, topic: str | None) -> Prompt:
    """The template up to where the user's words begin."""
    if not llm.metadata.get("tokenizer.chat_template"):
        return Prompt(tokens.encode(llm, ""), "self")
    system = [] if topic is None else [{"role": "system", "content": topic}]
    try:
        text = tokens.format_chat(llm, [*system, {"role": "user", "content": _MARK}])
    except ArgumentError:  # a template without a system role
        text = tokens.format_chat(llm, [{"role": "user", "content": _MARK}])
    head, mark, _ = text.partition(_MARK)
    if not mark:
        raise ArgumentError("the target's chat template does not show the user's words; give prompts in files")
    return Prompt(list(llm.tokenize(head.encode("utf-8"), add_bos=False, special=True)), "self")


def _filtered(llm: Any, path: str | os.PathLike[str], max_tokens: int) -> list[Prompt]:
    kept: list[Prompt] = []
    seen: set[tuple[str, ...]] = set()
    for response in read_responses(path):
        text = _words_of(llm, response)
        shingles = _shingles(text)
        if not _is_request(text) or len(shingles & seen) > len(shingles) / 3:
            continue
        seen |= shingles
        chat = llm.metadata.get("tokenizer.chat_template")
        ids = tokens.encode_chat(llm, [{"role": "user", "content": text}]) if chat else tokens.encode(llm, text)
        if len(ids) <= max_tokens:
            kept.append(Prompt(ids, "self"))
    return kept


def _words_of(llm: Any, response: Response) -> str:
    """What the target wrote, "" if it did not come to an end."""
    if response.finish != "stop":
        return ""
    return b"".join(tokens.piece(llm, token) for token in response.response[:-1]).decode("utf-8", "replace").strip()


def _is_request(text: str) -> bool:
    """Whether it can be one: some words, mostly letters, and no characters that stand for broken ones."""
    letters = sum(c.isalpha() or c.isspace() for c in text)
    return len(text.split()) >= 4 and "\ufffd" not in text and letters >= 0.6 * len(text)


def _shingles(text: str, n: int = 5) -> set[tuple[str, ...]]:
    words: Sequence[str] = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + n]) for i in range(max(1, len(words) - n + 1))}
