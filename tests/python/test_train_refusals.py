"""What a training is not begun or gone on with, told in a sentence: settings, responses, features, drafts, targets."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_cpp.convert.gguf_file import GGUFFile
from dspark_cpp.errors import ArgumentError, ContextFullError, FileError, FormatError, MismatchError
from dspark_cpp.train.batched import Request, generate, loop_end, open_batched
from dspark_cpp.train.features import write_features
from dspark_cpp.train.pipeline import Run, run_training
from dspark_cpp.train.prompts import Prompt
from dspark_cpp.train.recipe import Recipe
from dspark_cpp.train.responses import Response, ResponseSettings, generate_responses, read_responses
from dspark_cpp.train.shape import check_target, choose_mask_token, draft_shape
from dspark_cpp.train.shards import Sample, ShardReader, ShardWriter
from gguf import GGUFValueType
from gguf_edit import edit

U32, I32, STRING = GGUFValueType.UINT32, GGUFValueType.INT32, GGUFValueType.STRING
ONE = {"n_workers": 1, "n_threads": 1}


@pytest.fixture
def target(tiny_path: Callable[[str], Path]) -> Path:
    return tiny_path("target-qwen3")


@pytest.fixture
def draft(converted: Callable[..., Path]) -> Path:
    return converted("deepspec-qwen3-vanilla")


# --- responses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"temperatures": ()}, "the shares of the temperatures"),
        ({"temperatures": ((0.0, 0.5), (0.8, 0.4))}, "expected a sum of 1"),
        ({"temperatures": ((0.0, 1.5), (0.8, -0.5))}, "expected a sum of 1"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"n_parallel": 0}, "n_parallel 0, expected 1 or more"),
    ],
)
def test_settings_of_responses_out_of_range_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        ResponseSettings(**settings)


def test_a_file_with_responses_to_other_prompts_is_not_gone_on_with(target: Path, tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    settings = ResponseSettings(max_tokens=4)
    prompts = [Prompt([256, 84 + i], "a") for i in range(2)]
    assert len(list(generate_responses(target, prompts, path, settings, **ONE))) == 2
    before = path.read_bytes()
    for others in ([prompts[0], Prompt([256, 90], "a")], prompts[:1]):
        with pytest.raises(FormatError, match="jsonl:2 is not the response to prompt 2; use another file"):
            list(generate_responses(target, others, path, settings, **ONE))
    assert list(generate_responses(target, prompts, path, settings, **ONE)) == []
    assert path.read_bytes() == before


def test_a_place_where_responses_cannot_be_written_is_told(target: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write responses: No such file or directory; the lines written before"):
        list(generate_responses(target, [Prompt([256], "a")], tmp_path / "no" / "r.jsonl", **ONE))


@pytest.mark.parametrize("line", ['{"prompt": [1]}', "[1, 2]", "{", '{"prompt": [1], "answer": 1}'])
def test_a_line_that_is_no_response_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "responses.jsonl"
    whole = json.dumps(Response([1], [2], "a", 0.0, "length")._asdict())
    path.write_text(f"{whole}\n{line}\n")
    with pytest.raises(FormatError, match="responses.jsonl:2 is no response"):
        list(read_responses(path))


def test_responses_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b"\xff\n")
    for path in (tmp_path, tmp_path / "none.jsonl", tmp_path / "latin.jsonl"):
        with pytest.raises((FileError, FormatError), match=f"{path.name}.*(cannot be read|is no response)"):
            list(read_responses(path))


def test_prompts_that_do_not_fit_or_are_no_tokens_are_refused(target: Path) -> None:
    llm = open_batched(str(target), 2, 32, 1)
    try:
        for prompt in ([], [-1], [5, 320]):
            with pytest.raises(ArgumentError, match=r"prompt 0 is empty or has a token outside \[0, 320\)"):
                list(generate(llm, [Request(0, prompt, 0.0, 0)], n_parallel=2, max_tokens=4))
        with pytest.raises(ContextFullError, match="a prompt of .* and a response of .* do not fit into"):
            list(generate(llm, [Request(0, [97] * 400, 0.0, 0)], n_parallel=2, max_tokens=4))
        # and others are answered
        assert [len(r.tokens) for r in generate(llm, [Request(0, [256], 0.0, 0)], n_parallel=2, max_tokens=4)] == [4]
    finally:
        llm.close()


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [
        ([1, 2, 3] * 10, 6),  # what repeats stays twice
        ([9, 8, 7, *[1, 2, 3] * 10], 9),
        ([5] * 24, 2),
        ([5] * 23, 0),
        ([*range(100)], 0),
        ([*[1, 2, 3] * 10, 4], 0),
        ([], 0),
    ],
)
def test_a_response_that_goes_round_in_a_loop_is_cut_behind_its_second_round(tokens: list[int], kept: int) -> None:
    assert loop_end(tokens) == kept


# --- features ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("taps", [(), (-1,), (2, 99)])
def test_layers_that_the_target_does_not_have_are_refused(taps: tuple[int, ...], target: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="the taps are .*, expected layers from 0 to"):
        list(write_features(target, [], tmp_path / "f", taps, n_ctx=64, **ONE))
    assert not (tmp_path / "f").exists()


def shards(folder: Path) -> Path:
    with ShardWriter(
        folder, target_sha256="a" * 64, tokenizer_sha256="b", taps=[1], n_embd=4, n_vocab=100, top_k=2, seed=0
    ) as writer:
        for _ in range(2):
            writer.add(
                Sample(
                    np.arange(5, dtype=np.int32),
                    2,
                    np.zeros((5, 4), np.float16),
                    np.zeros((5, 2), np.int32),
                    np.zeros((5, 2), np.float16),
                )
            )
    return folder / "shard-00000"


def rewrite(path: Path, values: Any) -> None:
    """Another file of the same size, which the manifest does not tell from the first."""
    size = path.stat().st_size
    if isinstance(values, bytes):
        path.write_bytes(values.ljust(size, b"\0"))
    else:
        np.save(path, values)
    assert path.stat().st_size == size


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("tokens", b"no array", "tokens.npy is damaged"),
        ("tokens", np.zeros(10, np.float32), r"tokens.npy has float32 \(10,\), expected int32 \(10,\)"),
        ("tokens", np.zeros((5, 2), np.int32), r"has int32 \(5, 2\), expected int32 \(10,\)"),
        ("sequence_start", np.array([0, 5, 9]), "its sequences do not cover its 10 tokens"),
        ("sequence_start", np.array([1, 5, 10]), "do not cover"),
        ("prompt_length", np.array([6, 2], np.int32), "do not cover"),
        ("prompt_length", np.array([0, 2], np.int32), "do not cover"),
    ],
)
def test_shards_whose_arrays_say_something_else_are_refused(name: str, values: Any, said: str, tmp_path: Path) -> None:
    rewrite(shards(tmp_path) / f"{name}.npy", values)
    with pytest.raises(FormatError, match=said):
        ShardReader(tmp_path)


# --- the run ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"draft": Path("d.gguf"), "taps": (1,)}, "the taps are those of the draft"),
        ({"n_prompts": 7}, "n_prompts is 7, but 8 or more"),
        ({"max_prompt": 0}, "max_prompt is 0, but 8 or more"),
        ({"max_response": -1}, "max_response is -1, but 8 or more"),
        ({"max_disk": 0.0}, "max_disk is 0.0, but more than 0"),
        ({"heads_only": True}, "heads alone can be trained of an existing draft only"),
    ],
)
def test_settings_of_a_run_that_make_no_sense_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Run(target=Path("t.gguf"), prompts=(), out=Path("out"), recipe=Recipe(), **settings)


@pytest.mark.parametrize("case", ["a file", "a damaged note"])
def test_a_folder_that_cannot_be_the_runs_is_named(case: str, target: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is not installed (pip install 'dspark-cpp-python[train]')")
    pytest.importorskip("matplotlib")
    prompts, out = tmp_path / "p.txt", tmp_path / "out"
    prompts.write_text("The lighthouse\n")
    if case == "a file":
        out.write_text("")
    else:
        out.mkdir()
        (out / "run.json").write_text("{")
    run = Run(target=target, prompts=(prompts,), out=out, recipe=Recipe())
    with pytest.raises((FileError, FormatError), match="cannot be used: File exists|run.json is damaged"):
        run_training(run, lambda text: None, lambda what, total, unit: None)


# --- a draft to go on with, and the token of its empty slots ----------------------------------------------------------


def refused_draft(path: Path, out: Path, keys: dict[str, Any]) -> str:
    with pytest.raises((FormatError, FileError)) as seen:
        draft_shape(GGUFFile(edit(path, out, keys=keys)))
    return str(seen.value)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"general.architecture": "llama"}, "general.architecture is not 'dflash'; this is no draft"),
        ({"dflash.hidden_activation": ("gelu", STRING)}, "a draft with dflash.hidden_activation cannot be trained on"),
        ({"dflash.attention.causal": (True, GGUFValueType.BOOL)}, "whose blocks are causal cannot be trained on"),
        ({"dflash.target_layers": (3, U32)}, "key dflash.target_layers is missing"),
        ({"dflash.block_size": ("four", STRING)}, "dflash.block_size is 'four', but a number is needed"),
        ({"tokenizer.ggml.tokens": ("a", STRING)}, "tokenizer.ggml.tokens is missing"),
    ],
)
def test_a_draft_with_parts_that_cannot_be_trained_is_refused(
    keys: dict[str, Any], said: str, draft: Path, tmp_path: Path
) -> None:
    assert said in refused_draft(draft, tmp_path / "d.gguf", keys)


def test_a_target_of_other_sizes_than_the_draft_is_refused(draft: Path, target: Path, tmp_path: Path) -> None:
    shape = draft_shape(GGUFFile(draft))
    check_target(shape, GGUFFile(target))
    other = edit(target, tmp_path / "t.gguf", keys={"qwen3.embedding_length": (48, U32)})
    with pytest.raises(MismatchError, match="the target has a hidden size of 48, but the draft needs 64"):
        check_target(shape, GGUFFile(other))


def test_the_mask_token_is_the_tokenizers_or_one_that_the_data_never_has(target: Path, tmp_path: Path) -> None:
    def changed(**keys: Any) -> GGUFFile:
        return GGUFFile(edit(target, tmp_path / f"{len(list(tmp_path.iterdir()))}.gguf", keys=keys))

    used = np.zeros(320, bool)
    used[:100] = True
    named = changed(**{"tokenizer.ggml.mask_token_id": (7, U32)})
    assert choose_mask_token(named, used) == 7
    kinds = np.ones(320, np.int32)
    kinds[[50, 200, 210]] = 3  # control tokens
    kinds[[60, 300]] = 5  # unused ones
    plain = changed(**{"tokenizer.ggml.token_type": (kinds.tolist(), GGUFValueType.ARRAY)})
    # without a name of its own
    plain.metadata.pop("tokenizer.ggml.mask_token_id", None)
    ends = {
        plain.get_int(f"tokenizer.ggml.{name}_token_id", -1) for name in ("bos", "eos", "eot", "padding", "unknown")
    }
    for taken, kind in (([], 5), ([300], 3), ([200, 210], 1)):
        used[taken] = True
        found = choose_mask_token(plain, used)
        assert kinds[found] == kind and not used[found] and found not in ends
    used[:] = True
    with pytest.raises(FormatError, match="the data has every token of the vocabulary"):
        choose_mask_token(plain, used)
