"""The tokenizer of a Hugging Face folder as GGUF metadata, read from tokenizer.json alone.

Byte-level BPE (Qwen, Llama 3, GPT-2 and kin) and Gemma 4's BPE are covered. llama.cpp names the pre-tokenizer by hashing
what the transformers library makes of a test text; here it is told by the expressions in tokenizer.json, and an unknown
one is refused, because a wrong name would change how the peer splits text.
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
_GEMMA4_SCORE = -1000.0
_ADVICE = "convert the target to GGUF with llama.cpp and pass that file as target"


def read_tokenizer(folder: Path, config: Config, n_vocab: int) -> dict[str, GGUFValue]:
    """The tokenizer of a folder, with exactly `n_vocab` tokens; ids without a token become "[PAD<id>]".

    Raises: FileError where tokenizer.json is missing or malformed; FormatError where its kind is not covered or an id
    does not fit in `n_vocab`.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise FileError(f"{folder}: no tokenizer.json; the draft takes its tokenizer from the target ({_ADVICE})")
    data = read_json(path)
    model = data.get("model")
    if not isinstance(model, dict) or not isinstance(model.get("vocab"), dict):
        raise FormatError(f"{path}: model.vocab is not an object; only BPE tokenizers are read here ({_ADVICE})")
    texts, kinds = _token_table(path, data, n_vocab)
    pre = _pre_tokenizer(data)
    of_gemma4 = "gemma4" in (config.text("model_type") or "")
    out: dict[str, GGUFValue] = {}
    if pre is not None:
        out[Keys.Tokenizer.MODEL] = _text("gpt2")
        out[Keys.Tokenizer.PRE] = _text(pre)
    elif of_gemma4 and model.get("byte_fallback"):
        out[Keys.Tokenizer.MODEL] = _text("gemma4")
    else:
        raise FormatError(f"{path}: its pre-tokenizer is not one that is known here; {_ADVICE}")
    is_gemma4 = pre is None
    if is_gemma4:
        kinds = [_gemma4_kind(text, kind) for text, kind in zip(texts, kinds, strict=True)]
    out[Keys.Tokenizer.LIST] = GGUFValue(GGUFValueType.ARRAY, GGUFValueType.STRING, [t.encode() for t in texts])
    if is_gemma4:
        out[Keys.Tokenizer.SCORES] = GGUFValue(GGUFValueType.ARRAY, GGUFValueType.FLOAT32, [_GEMMA4_SCORE] * n_vocab)
    out[Keys.Tokenizer.TOKEN_TYPE] = GGUFValue(GGUFValueType.ARRAY, GGUFValueType.INT32, [int(k) for k in kinds])
    out.update(_special(folder))
    if is_gemma4:
        out[Keys.Tokenizer.ADD_PREFIX] = GGUFValue(GGUFValueType.BOOL, None, False)
    if of_gemma4:  # Gemma 4 needs its BOS whatever tokenizer_config.json says
        out[Keys.Tokenizer.ADD_BOS] = GGUFValue(GGUFValueType.BOOL, None, True)
    return out


def _text(value: str) -> GGUFValue:
    return GGUFValue(GGUFValueType.STRING, None, value.encode())


def _token_table(path: Path, data: dict[str, Any], n_vocab: int) -> tuple[list[str], list[TokenType]]:
    texts: list[str | None] = [None] * n_vocab
    kinds = [TokenType.UNUSED] * n_vocab

    def place(text: object, index: object, kind: TokenType) -> None:
        if not isinstance(text, str) or type(index) is not int or not 0 <= index < n_vocab:
            raise FormatError(
                f"{path}: token {text!r} has id {index!r}, but the target's vocab_size is {n_vocab}; "
                "ids must lie below it"
            )
        texts[index], kinds[index] = text, kind

    for text, index in data["model"]["vocab"].items():
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


def _special(folder: Path) -> dict[str, GGUFValue]:
    logging.getLogger("gguf.vocab").setLevel(logging.ERROR)
    try:
        vocab = SpecialVocab(folder, load_merges=True)
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
