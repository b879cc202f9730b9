"""Detokenizing a growing list of tokens by its new tokens only.

llama_cpp's completion loop asks for the text of the whole answer after every token, which takes a millisecond a token
in answers of a thousand tokens. This tokenizer gives the same bytes, and asks llama.cpp for each piece once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import llama_cpp
from llama_cpp.llama_tokenizer import LlamaTokenizer

from . import errors

__all__ = ["IncrementalTokenizer"]

#: llama_cpp's own buffer: a longer piece is empty there, and so it must be here
_PIECE_SIZE = 32
#: shorter lists are not worth remembering
_SHORT = 16
#: lists that may grow at the same time: an answer, its part already streamed, and those of other streams
_MAX_GROWING = 8


class IncrementalTokenizer(LlamaTokenizer):  # type: ignore[misc, unused-ignore]
    """A LlamaTokenizer whose detokenize() costs, for a list that has grown, what its new tokens cost.

    The bytes are the base's. The lists looked at last are remembered with their text; one that continues none of them
    is joined anew from remembered pieces. Threads may share one: what they share is replaced, never changed.
    """

    def __init__(self, llama: Any) -> None:
        super().__init__(llama)
        self._bos: int = self._model.token_bos()
        self._n_vocab: int = self._model.n_vocab()
        self._pieces: dict[bool, dict[int, bytes]] = {False: {}, True: {}}
        self._growing: dict[bool, list[tuple[list[int], bytes]]] = {False: [], True: []}

    def tokenize(self, text: bytes, add_bos: bool = True, special: bool = True) -> list[int]:
        """See LlamaTokenizer.tokenize(). Raises: StateError: The Llama is closed; the base ends the process."""
        self._require_open()
        ids: list[int] = super().tokenize(text, add_bos, special)
        return ids

    def _require_open(self) -> None:
        if self._model.model is None:
            raise errors.StateError("the Llama is closed")

    def detokenize(
        self, tokens: Sequence[int], prev_tokens: Sequence[int] | None = None, special: bool = False
    ) -> bytes:
        """The bytes of the tokens; ``prev_tokens`` is ignored, as in the base.

        Raises: ArgumentError: A token is not in the vocabulary, which ends the process in the base.
        """
        special = bool(special)
        tokens = list(tokens)
        text = self._join(tokens, special) if len(tokens) < _SHORT else self._continue(tokens, special)
        # as the base does: Llama 1 began every text with a space
        return text[1:] if tokens and tokens[0] == self._bos and text[:1] == b" " else text

    def _continue(self, tokens: list[int], special: bool) -> bytes:
        """The text of a list, from the longest remembered one that it begins with."""
        known = self._growing[special]
        best: tuple[list[int], bytes] = ([], b"")
        for entry in known:
            n = len(entry[0])
            # the last tokens differ for nearly every list of another stream: no need to compare the rest
            if len(best[0]) < n <= len(tokens) and entry[0][-1] == tokens[n - 1] and entry[0] == tokens[:n]:
                best = entry
        n = len(best[0])
        if n == len(tokens):
            return best[1]
        text = best[1] + self._join(tokens[n:], special)
        others = [entry for entry in known if entry is not best]
        self._growing[special] = [(tokens, text), *others[: _MAX_GROWING - 1]]
        return text

    def _join(self, tokens: list[int], special: bool) -> bytes:
        pieces = self._pieces[special]
        try:
            return b"".join([pieces[token] for token in tokens])
        except KeyError:
            for token in tokens:
                if token not in pieces:
                    pieces[token] = self._piece(token, special)
            return b"".join([pieces[token] for token in tokens])

    def _piece(self, token: int, special: bool) -> bytes:
        if not 0 <= token < self._n_vocab:
            raise errors.ArgumentError(f"token is {token}, expected 0 to {self._n_vocab - 1}")
        self._require_open()
        buffer = ctypes.create_string_buffer(_PIECE_SIZE)
        n = llama_cpp.llama_token_to_piece(self._model.vocab, token, buffer, _PIECE_SIZE, 0, special)
        return buffer.raw[: max(n, 0)]
