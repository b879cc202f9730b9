"""Text to tokens and back, with the target's own tokenizer and chat template."""

from __future__ import annotations

import codecs
from typing import Any

from llama_cpp import llama_chat_format

from . import errors

__all__ = ["TextStream", "encode", "encode_chat"]


def encode(llm: Any, text: str) -> list[int]:
    """Tokens of a raw prompt, BOS added where the model asks for it, special tokens recognised."""
    return list(llm.tokenize(text.encode("utf-8"), add_bos=True, special=True))


def encode_chat(llm: Any, messages: list[dict[str, str]]) -> list[int]:
    """Tokens of a conversation in the model's own chat template, up to where the assistant answers."""
    template = llm.metadata.get("tokenizer.chat_template")
    if not template:
        raise errors.ArgumentError("the target has no chat template; give a raw prompt")

    def piece(token: int) -> str:
        return llm.detokenize([token], special=True).decode("utf-8", "ignore") if token >= 0 else ""

    formatter = llama_chat_format.Jinja2ChatFormatter(
        template=template, eos_token=piece(llm.token_eos()), bos_token=piece(llm.token_bos())
    )
    prompt = formatter(messages=messages).prompt  # type: ignore[arg-type]
    return list(llm.tokenize(prompt.encode("utf-8"), add_bos=False, special=True))


class TextStream:
    """Turns tokens into text as they come, holding back the bytes of an unfinished character."""

    def __init__(self, llm: Any) -> None:
        self._llm = llm
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        """The text that this token completes."""
        return self._decoder.decode(self._llm._model.token_to_piece(token, special=False))

    def flush(self) -> str:
        """What is left of an unfinished character, as replacement characters."""
        return self._decoder.decode(b"", final=True)
