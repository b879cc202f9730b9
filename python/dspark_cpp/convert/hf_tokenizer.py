"""The tokenizer of a Hugging Face folder as GGUF metadata, read from its files alone.

Byte-level BPE (Qwen, Llama 3, GPT-2 and kin), Gemma 4's BPE and SentencePiece are covered. llama.cpp names the
pre-tokenizer by hashing what the transformers library makes of a test text; here it is told by the expressions in
tokenizer.json, and an unknown one is refused, because a wrong name would change how the peer splits text.
Source: get_vocab_base and Gemma4Model.set_vocab of llama.cpp's converter; regular expressions of its llama-vocab.cpp.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from gguf import GGUFValueType, Keys, SpecialVocab, TokenType

from ..errors import FileError, FormatError
from .config import Config, read_json
from .gguf_file import GGUFValue
from .sentencepiece_model import read_pieces

__all__ = ["read_tokenizer"]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS_TAIL = r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_PRE_BY_REGEX = {
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _TAIL: "qwen2",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _TAIL: "llama-bpe",
    _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}" + _MARKS_TAIL: "qwen35",
}
# Gemma 4's tool and channel marks must stay visible in decoded text.
_GEMMA4_VISIBLE = {
    "<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>',
}  # fmt: skip
_ADDED_SCORE, _UNUSED_SCORE = -1000.0, -10000.0
_ADVICE = "convert the target to GGUF with llama.cpp and pass that file as target"


def read_tokenizer(folder: Path, config: Config, n_vocab: int) -> dict[str, GGUFValue]:
    """The tokenizer of a folder, with exactly `n_vocab` tokens; ids without a token become "[PAD<id>]".

    Raises: FileError where its files are missing or malformed; FormatError where its kind is not covered or an id does
    not fit in `n_vocab`.
    """
    path, model_path = folder / "tokenizer.json", folder / "tokenizer.model"
    model_type = config.text("model_type") or ""
    if not path.is_file() and not model_path.is_file():
        raise FileError(f"{folder}: no tokenizer.json; the draft takes its tokenizer from the target ({_ADVICE})")
    data = read_json(path) if path.is_file() else {}
    pre = _pre_tokenizer(data)
    if pre is not None:
        texts, kinds = _token_table(path, data, n_vocab)
        out = {Keys.Tokenizer.MODEL: _text("gpt2"), Keys.Tokenizer.PRE: _text(pre)}
        out |= _table([t.encode() for t in texts], None, kinds)
        out |= _special(folder)
    elif "gemma4" in model_type and path.is_file():
        texts, kinds = _token_table(path, data, n_vocab)
        kinds = [_gemma4_kind(text, kind) for text, kind in zip(texts, kinds, strict=True)]
        out = {Keys.Tokenizer.MODEL: _text("gemma4")}
        out |= _table([t.encode() for t in texts], [_ADDED_SCORE] * n_vocab, kinds)
        out |= _special(folder)
        out[Keys.Tokenizer.ADD_PREFIX] = GGUFValue(GGUFValueType.BOOL, None, False)
    elif model_path.is_file():
        out = _sentencepiece(folder, model_path, model_type, n_vocab)
    else:
        raise FormatError(f"{path}: its pre-tokenizer is not one that is known here; {_ADVICE}")
    if "gemma4" in model_type:  # it needs its BOS whatever tokenizer_config.json says
        out[Keys.Tokenizer.ADD_BOS] = GGUFValue(GGUFValueType.BOOL, None, True)
    return out


def _table(tokens: list[bytes], scores: list[float] | None, kinds: list[TokenType]) -> dict[str, GGUFValue]:
    out = {Keys.Tokenizer.LIST: GGUFValue(GGUFValueType.ARRAY, GGUFValueType.STRING, tokens)}
    if scores is not None:
        out[Keys.Tokenizer.SCORES] = GGUFValue(GGUFValueType.ARRAY, GGUFValueType.FLOAT32, scores)
    out[Keys.Tokenizer.TOKEN_TYPE] = GGUFValue(GGUFValueType.ARRAY, GGUFValueType.INT32, [int(k) for k in kinds])
    return out


def _sentencepiece(folder: Path, path: Path, model_type: str, n_vocab: int) -> dict[str, GGUFValue]:
    """A SentencePiece tokenizer (Llama 2, Gemma 1 to 3) with the tokens that tokenizer_config.json adds to it.

    Source: _create_vocab_sentencepiece of llama.cpp's converter.
    """
    pieces = read_pieces(path)
    if len(pieces) > n_vocab:
        raise FormatError(f"{path}: {len(pieces)} pieces, but the target's vocab_size is {n_vocab}")
    tokens = [text for text, _, _ in pieces]
    scores = [score for _, score, _ in pieces]
    # Its USER_DEFINED pieces count as ordinary ones, as in llama.cpp.
    kinds = [TokenType.NORMAL if kind == TokenType.USER_DEFINED else TokenType(kind) for _, _, kind in pieces]
    for i in range(len(pieces), n_vocab):
        tokens.append(b"[PAD%d]" % i)
        scores.append(_UNUSED_SCORE)
        kinds.append(TokenType.UNUSED)
    for index, text, special in _added_to_pieces(folder, n_vocab):
        tokens[index] = (text if special else text.replace("\u2581", " ")).encode()
        scores[index] = _ADDED_SCORE
        kinds[index] = TokenType.CONTROL if special else TokenType.USER_DEFINED
    out = {Keys.Tokenizer.MODEL: _text("llama"), Keys.Tokenizer.PRE: _text("default")}
    out |= _table(tokens, scores, kinds)
    out |= _special(folder, load_merges=False)
    if model_type.startswith("gemma"):
        out[Keys.Tokenizer.ADD_PREFIX] = GGUFValue(GGUFValueType.BOOL, None, False)
    return out


def _added_to_pieces(folder: Path, n_vocab: int) -> list[tuple[int, str, bool]]:
    path = folder / "tokenizer_config.json"
    decoder = read_json(path).get("added_tokens_decoder") if path.is_file() else None
    if decoder is None:
        return []
    out = []
    for key, entry in decoder.items() if isinstance(decoder, dict) else [("", None)]:
        fields = entry if isinstance(entry, dict) else {}
        text = fields.get("content")
        if not isinstance(text, str) or not key.isdecimal() or len(key) > 9 or int(key) >= n_vocab:
            raise FormatError(
                f"{path}: added_tokens_decoder has {key[:20]!r}: {text!r}, but ids below {n_vocab} are needed"
            )
        out.append((int(key), text, bool(fields.get("special")) or _looks_special(text)))
    return out


def _text(value: str) -> GGUFValue:
    return GGUFValue(GGUFValueType.STRING, None, value.encode())


def _token_table(path: Path, data: dict[str, Any], n_vocab: int) -> tuple[list[str], list[TokenType]]:
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if not isinstance(vocab, dict):
        raise FormatError(f"{path}: model.vocab is not an object; only BPE tokenizers are read here ({_ADVICE})")
    texts: list[str | None] = [None] * n_vocab
    kinds = [TokenType.UNUSED] * n_vocab

    def place(text: object, index: object, kind: TokenType) -> None:
        if not isinstance(text, str) or type(index) is not int or not 0 <= index < n_vocab:
            raise FormatError(
                f"{path}: token {text!r} has id {index!r}, but the target's vocab_size is {n_vocab}; "
                "ids must lie below it"
            )
        texts[index], kinds[index] = text, kind

    for text, index in vocab.items():
        place(text, index, TokenType.NORMAL)
    added = data.get("added_tokens") or []
    if not isinstance(added, list) or any(not isinstance(entry, dict) for entry in added):
        raise FormatError(f"{path}: added_tokens is not a list of objects")
    for entry in added:
        text = entry.get("content")
        # llama.cpp shows a token that looks like a control token as one, whatever its flag says.
        special = entry.get("special") or (isinstance(text, str) and _looks_special(text))
        if isinstance(text, str) and not special:
            text = text.replace("\u2581", " ")
        place(text, entry.get("id"), TokenType.CONTROL if special else TokenType.USER_DEFINED)
    return [t if t is not None else f"[PAD{i}]" for i, t in enumerate(texts)], kinds


def _looks_special(text: str) -> bool:
    return text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]") or (
        (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<\uff5c") and text.endswith("\uff5c>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )


def _gemma4_kind(text: str, kind: TokenType) -> TokenType:
    if text in _GEMMA4_VISIBLE:
        return TokenType.USER_DEFINED
    if kind is TokenType.NORMAL and len(text) == 6 and text.startswith("<0x") and text.endswith(">"):
        return TokenType.BYTE
    return kind


def _pre_tokenizer(data: dict[str, Any]) -> str | None:
    """llama.cpp's name for a byte-level pre-tokenizer, or None for another kind or an unknown expression."""
    node = data.get("pre_tokenizer")
    if not isinstance(node, dict):
        return None
    steps = node.get("pretokenizers") if node.get("type") == "Sequence" else [node]
    if not isinstance(steps, list) or any(not isinstance(s, dict) for s in steps):
        return None
    kinds = [s.get("type") for s in steps]
    if "ByteLevel" not in kinds:
        return None
    by_regex = [s for s in steps if s.get("type") == "ByteLevel" and s.get("use_regex", True)]
    if kinds == ["ByteLevel"] and by_regex:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and by_regex and steps[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and not by_regex:
        pattern = steps[0].get("pattern")
        return _PRE_BY_REGEX.get(pattern.get("Regex", "")) if isinstance(pattern, dict) else None
    return None


def _special(folder: Path, load_merges: bool = True) -> dict[str, GGUFValue]:
    logging.getLogger("gguf.vocab").setLevel(logging.ERROR)
    try:
        vocab = SpecialVocab(folder, load_merges=load_merges)
    except Exception as e:  # the gguf package raises whatever a malformed file happens to trip
        raise FormatError(f"{folder}: the special tokens cannot be read: {e!r}") from None
    out: dict[str, GGUFValue] = {}
    if vocab.merges:
        merges = [m.encode() for m in vocab.merges]
        out[Keys.Tokenizer.MERGES] = GGUFValue(GGUFValueType.ARRAY, GGUFValueType.STRING, merges)
    ids = {
        "bos": Keys.Tokenizer.BOS_ID,
        "eos": Keys.Tokenizer.EOS_ID,
        "unk": Keys.Tokenizer.UNK_ID,
        "sep": Keys.Tokenizer.SEP_ID,
        "pad": Keys.Tokenizer.PAD_ID,
    }
    for kind, key in ids.items():
        if kind in vocab.special_token_ids:
            out[key] = GGUFValue(GGUFValueType.UINT32, None, vocab.special_token_ids[kind])
    adds = {"bos": Keys.Tokenizer.ADD_BOS, "eos": Keys.Tokenizer.ADD_EOS, "sep": Keys.Tokenizer.ADD_SEP}
    for kind, key in adds.items():
        if kind in vocab.add_special_token:
            out[key] = GGUFValue(GGUFValueType.BOOL, None, bool(vocab.add_special_token[kind]))
    if isinstance(vocab.chat_template, str):
        out[Keys.Tokenizer.CHAT_TEMPLATE] = _text(vocab.chat_template)
    return out
