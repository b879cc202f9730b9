"""Text to tokens and back, with the target's own tokenizer and chat template."""

from __future__ import annotations

import codecs
import ctypes
from typing import Any

import jinja2
import llama_cpp
from llama_cpp import llama_chat_format

from . import errors
from ._native import require_llama
from .params import integer

__all__ = ["TextStream", "encode", "encode_chat", "format_chat", "piece"]


def encode(llm: Any, text: str) -> list[int]:
    """Tokens of a raw prompt, BOS added where the model asks for it, special tokens recognised."""
    require_llama(llm)
    if not isinstance(text, str):
        raise errors.ArgumentError(f"text is a {type(text).__name__}, expected a str")
    return list(llm.tokenize(text.encode("utf-8"), add_bos=True, special=True))


def encode_chat(llm: Any, messages: list[dict[str, str]]) -> list[int]:
    """Tokens of a conversation in the model's own chat template, up to where the assistant answers.

    Raises: as format_chat().
    """
    return list(llm.tokenize(format_chat(llm, messages).encode("utf-8"), add_bos=False, special=True))


def format_chat(llm: Any, messages: list[dict[str, str]]) -> str:
    """A conversation in the model's own chat template, up to where the assistant answers.

    Raises: ArgumentError: messages is not a list of {"role": ..., "content": ...}; the model has no template, or its
    template does not take these messages.
    """
    require_llama(llm)
    if not isinstance(messages, (list, tuple)) or not all(isinstance(m, dict) and "role" in m for m in messages):
        raise errors.ArgumentError(f'messages is {messages!r:.80}, expected a list of {{"role": ..., "content": ...}}')
    template = llm.metadata.get("tokenizer.chat_template")
    if not template:
        raise errors.ArgumentError("the target has no chat template; give a raw prompt")

    def special(token: int) -> str:
        return piece(llm, token, special=True).decode("utf-8", "ignore") if token >= 0 else ""

    formatter = llama_chat_format.Jinja2ChatFormatter(
        template=template, eos_token=special(llm.token_eos()), bos_token=special(llm.token_bos())
    )
    try:
        return str(formatter(messages=messages).prompt)
    except (
        jinja2.TemplateError,
        ValueError,
        TypeError,
    ) as e:  # templates refuse what they do not know, each in its way
        raise errors.ArgumentError(f"the model's chat template does not take these messages: {e}") from None


def piece(llm: Any, token: int, *, special: bool = False) -> bytes:
    """The bytes that a token stands for; those of control tokens only with ``special``."""
    require_llama(llm)
    token, n_vocab = integer(token, "token"), llm._model.n_vocab()
    if not 0 <= token < n_vocab:
        raise errors.ArgumentError(f"token is {token}, expected 0 to {n_vocab - 1}")
    vocab = llm._model.vocab
    buffer = ctypes.create_string_buffer(64)
    n = llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
    if n < 0:  # the size it wants
        buffer = ctypes.create_string_buffer(-n)
        n = llama_cpp.llama_token_to_piece(vocab, token, buffer, len(buffer), 0, special)
    return buffer.raw[:n]


class TextStream:
    """Turns tokens into text as they come, holding back the bytes of an unfinished character."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes."""
        return self._decoder.decode(piece(self._llm, token))

    def flush(self) -> str:
        """What is left of an unfinished character, as replacement characters."""
        return self._decoder.decode(b"", final=True)
