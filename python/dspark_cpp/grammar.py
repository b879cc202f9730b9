"""Grammars that llama.cpp can be given: some end the process there, of others it takes a part."""

from __future__ import annotations

import re
from typing import Any

from . import errors

__all__ = ["require_grammar"]

#: llama.cpp's parser calls itself for every group in a group, and its search for left recursion for every rule that
#: begins with another: 20,000 and 100,000 of them were seen to end a process with a stack of 8 MiB
MAX_DEPTH = 500
MAX_RULES = 10_000

#: what may hold a parenthesis or ::= that is text; a literal or a class without its end is left to llama.cpp
_TOKEN = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*|::=|[()]', re.DOTALL)


def require_grammar(grammar: Any) -> None:
    """Refuses what llama.cpp would crash on, or would not take whole."""
    text = getattr(grammar, "_grammar", None)
    if not isinstance(text, str):
        raise errors.ArgumentError(
            f"the grammar is a {type(grammar).__name__}, expected a LlamaGrammar, as LlamaGrammar.from_string() makes"
        )
    try:
        text.encode()
    except UnicodeEncodeError as exc:
        raise errors.ArgumentError(f"the grammar is no text: {exc}") from None
    if "\0" in text:
        raise errors.ArgumentError(f"the grammar contains a NUL character, at {text.index(chr(0))}")
    depth = rules = 0
    for token in _TOKEN.findall(text):
        depth += (token == "(") - (token == ")")
        rules += token == "::="
        if depth > MAX_DEPTH:
            raise errors.ArgumentError(f"the grammar has more than {MAX_DEPTH} groups in one another")
    if rules > MAX_RULES:
        raise errors.ArgumentError(f"the grammar has {rules} rules, expected at most {MAX_RULES}")
