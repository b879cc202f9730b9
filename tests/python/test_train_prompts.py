"""Prompts to train on: every format of a file, and what a target writes itself."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import llama_cpp
import pytest
from dspark_cpp.errors import ArgumentError, FileError, FormatError
from dspark_cpp.tokens import encode_chat
from dspark_cpp.train.prompts import _filtered, read_prompts, self_prompts
from gguf import GGUFValueType
from gguf_edit import edit

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}[assistant]"


@pytest.fixture(scope="module")
def target(tiny_path: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The tiny target with a chat template; its tokens are bytes."""
    out = tmp_path_factory.mktemp("target") / "chat.gguf"
    return str(edit(tiny_path("target-qwen3"), out, keys={"tokenizer.chat_template": (TEMPLATE, GGUFValueType.STRING)}))


def text_of(target: str, ids: list[int]) -> str:
    llm = llama_cpp.Llama(target, vocab_only=True, n_ctx=8, verbose=False)
    text = llm.detokenize(ids).decode()
    llm.close()
    return text


def test_every_format_of_a_prompt_file_is_read(target: str, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(
        "\n".join(
            json.dumps(row)
            for row in (
                {"turns": ["one", "two"]},
                {"prompt": "three"},
                {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "four"}]},
                {"prompt": "three"},
                {"ids": [1, 2, 3]},
            )
        )
    )
    (tmp_path / "b.txt").write_text("five\n\nsix\n" + "long " * 50 + "\n")
    prompts = read_prompts(target, [tmp_path / "a.jsonl", tmp_path / "b.txt"], 60)
    assert [p.source for p in prompts] == ["a"] * 4 + ["b"] * 2
    texts = [text_of(target, p.tokens) for p in prompts if len(p.tokens) > 3]
    assert texts == [
        "[user]one\n[assistant]",
        "[user]three\n[assistant]",
        "[system]be brief\n[user]four\n[assistant]",
        "[user]five\n[assistant]",
        "[user]six\n[assistant]",
    ]
    assert [1, 2, 3] in [p.tokens for p in prompts]


def test_files_without_prompts_are_refused(target: str, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="none.txt: cannot be read as a prompt file"):
        read_prompts(target, [tmp_path / "none.txt"], 60)
    empty, odd, long = (tmp_path / name for name in ("empty.txt", "odd.jsonl", "long.txt"))
    empty.write_text("\n")
    odd.write_text('{"text": "?"}\n')
    long.write_text("long " * 50)
    with pytest.raises(ArgumentError, match="empty.txt has no prompts"):
        read_prompts(target, [empty], 60)
    with pytest.raises(ArgumentError, match='odd.jsonl:1: there is no "prompt", "turns", "messages" or "ids"'):
        read_prompts(target, [odd], 60)
    with pytest.raises(ArgumentError, match="none of the 1 prompts has at most 60 tokens"):
        read_prompts(target, [long], 60)
    with pytest.raises(FileError, match="there is no such target"):
        read_prompts(tmp_path / "none.gguf", [long], 60)


def test_a_target_writes_prompts_behind_its_own_headers(target: str, tmp_path: Path) -> None:
    settings = {"max_tokens": 24, "seed": 5, "n_parallel": 4, "n_workers": 1, "n_threads": 1}
    self_prompts(target, 2, tmp_path / "a.jsonl", **settings)  # type: ignore[arg-type]
    rows = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert {row["temperature"] for row in rows} == {1.0}
    headers = [text_of(target, row["prompt"]) for row in rows[:4]]
    assert headers[0] == "[user]" and all(h.startswith("[system]") and h.endswith("\n[user]") for h in headers[1:])


@pytest.mark.parametrize("n_kept", [2, 3, 4, 6, 11, 12])
def test_a_target_that_was_stopped_behind_its_first_share_of_prompts_goes_on(
    n_kept: int, target: str, tmp_path: Path
) -> None:
    """Of 2 prompts the shares are 3, 6 and 12; more than 3 were refused as responses to other prompts."""
    settings = {"max_tokens": 24, "seed": 5, "n_parallel": 4, "n_workers": 1, "n_threads": 1}
    whole = self_prompts(target, 2, tmp_path / "a.jsonl", **settings)  # type: ignore[arg-type]
    lines = (tmp_path / "a.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 12
    (tmp_path / "b.jsonl").write_text("".join(lines[:n_kept]) + "".join(lines[n_kept : n_kept + 1])[:9])
    parts = self_prompts(target, 2, tmp_path / "b.jsonl", **settings)  # type: ignore[arg-type]
    assert parts == whole
    assert (tmp_path / "b.jsonl").read_bytes() == (tmp_path / "a.jsonl").read_bytes()


def test_what_was_written_for_more_prompts_is_not_taken_for_fewer(target: str, tmp_path: Path) -> None:
    settings = {"max_tokens": 24, "seed": 5, "n_parallel": 4, "n_workers": 1, "n_threads": 1}
    self_prompts(target, 2, tmp_path / "a.jsonl", **settings)  # type: ignore[arg-type]
    with pytest.raises(FormatError, match="a.jsonl:7 is not the response to prompt 7"):
        self_prompts(target, 1, tmp_path / "a.jsonl", **settings)  # type: ignore[arg-type]


def test_fragments_junk_and_repetition_are_no_prompts(smollm_path: Path, tmp_path: Path) -> None:
    llm = llama_cpp.Llama(str(smollm_path), vocab_only=True, n_ctx=8, verbose=False)
    written = [
        ("Write a short poem about the sea and the wind.", "stop"),
        ("write a short poem about the sea and the moon", "stop"),  # nearly the same
        ("Hello", "stop"),  # a fragment
        ("1 + 2 + 3 + 4 = ? 5 6 7 8 9 0 ( ) { }", "stop"),  # junk
        ("How do I bake a loaf of bread without", "length"),  # has no end
        ("How many legs do three spiders have?", "stop"),
        ("", "stop"),
    ]
    with open(tmp_path / "self.jsonl", "w") as file:
        for words, finish in written:
            ids = llm.tokenize(words.encode(), add_bos=False) + [llm.token_eos()]
            row = {"prompt": [1], "response": ids, "source": "self", "temperature": 1.0, "finish": finish}
            file.write(json.dumps(row) + "\n")
    kept = _filtered(llm, tmp_path / "self.jsonl", 200)
    wanted = [encode_chat(llm, [{"role": "user", "content": written[i][0]}]) for i in (0, 5)]
    assert [p.tokens for p in kept] == wanted
    llm.close()
