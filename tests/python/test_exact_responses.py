"""Responses and features of many sequences: the same in any company, resumed or not, in one process or in several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_cpp.errors import ArgumentError, ContextFullError, FileError, FormatError, MismatchError
from dspark_cpp.train.batched import Request, generate, loop_end, open_batched
from dspark_cpp.train.features import write_features
from dspark_cpp.train.responses import Prompt, Response, ResponseSettings, generate_responses, read_responses
from dspark_cpp.train.shards import ShardReader

TEXT = b"The lighthouse at the end of the bay is old. The keeper walks up."
PROMPTS = [Prompt([256, *TEXT[: 3 + 5 * i]], f"part {i % 2}") for i in range(9)]
SETTINGS = ResponseSettings(max_tokens=40, temperatures=((0.0, 0.5), (0.9, 0.5)), seed=3, n_parallel=4)


@pytest.fixture(scope="module")
def target(tiny_path: Callable[[str], Path]) -> str:
    return str(tiny_path("target-qwen3"))


@pytest.fixture(scope="module")
def whole(target: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("responses") / "whole.jsonl"
    assert len(list(generate_responses(target, PROMPTS, path, SETTINGS, n_workers=1, n_threads=1))) == 9
    return path


def test_a_response_does_not_depend_on_its_company(target: str) -> None:
    requests = [SETTINGS.request(i, p.tokens) for i, p in enumerate(PROMPTS)]
    found = []
    for n_parallel, order in ((1, 1), (3, 1), (8, -1)):
        llm = open_batched(target, n_parallel, 256, 1)
        made = generate(llm, requests[::order], n_parallel=n_parallel, max_tokens=40)
        found.append(sorted((g.index, g.tokens, g.finish) for g in made))
        llm.close()
    assert found[0] == found[1] == found[2]
    assert len({r.temperature for r in requests}) == 2 and len({g[2] for g in found[0]}) >= 1


def test_greedy_responses_are_plain_greedy_decoding(target: str, plain_tokens: Callable[..., list[int]]) -> None:
    llm = open_batched(target, 2, 256, 1)
    requests = [Request(i, PROMPTS[i].tokens, 0.0, 0) for i in (2, 5)]
    made = {g.index: g.tokens for g in generate(llm, requests, n_parallel=2, max_tokens=20)}
    for i in (2, 5):
        assert made[i] == plain_tokens(llm, PROMPTS[i].tokens, 20)[: len(made[i])]
    llm.close()


def test_a_file_resumed_is_the_file_uninterrupted(target: str, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "resumed.jsonl"
    for i, _ in enumerate(generate_responses(target, PROMPTS, path, SETTINGS, n_workers=1, n_threads=1)):
        if i == 3:
            break
    with open(path, "a") as file:
        file.write('{"prompt":[25')  # killed while it wrote
    assert len(list(generate_responses(target, PROMPTS, path, SETTINGS, n_workers=1, n_threads=1))) == 5
    assert path.read_bytes() == whole.read_bytes()
    assert not list(generate_responses(target, PROMPTS, path, SETTINGS, n_workers=1))


def test_processes_write_the_same_file(target: str, whole: Path, tmp_path: Path) -> None:
    path = tmp_path / "workers.jsonl"
    assert len(list(generate_responses(target, PROMPTS, path, SETTINGS, n_workers=2, n_threads=1))) == 9
    assert path.read_bytes() == whole.read_bytes()


def test_what_fails_in_a_process_is_told(target: str, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="prompt 0 is empty or has a token outside"):
        list(generate_responses(target, [Prompt([999], "")], tmp_path / "r.jsonl", SETTINGS, n_workers=2, n_threads=1))


def test_files_of_other_prompts_or_none_are_refused(target: str, whole: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="whole.jsonl:1 is not the response to prompt 1"):
        list(generate_responses(target, PROMPTS[1:], whole, SETTINGS))
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": [1]}\n')
    with pytest.raises(FormatError, match="bad.jsonl:1 is no response"):
        list(read_responses(bad))
    with pytest.raises(FileError, match="cannot be read"):
        list(read_responses(tmp_path / "none.jsonl"))
    with pytest.raises(FileError, match="cannot write responses"):
        list(generate_responses(target, PROMPTS, tmp_path / "none" / "r.jsonl", SETTINGS))
    with pytest.raises(ArgumentError, match="expected a sum of 1"):
        ResponseSettings(temperatures=((0.0, 0.5),))


def test_a_prompt_longer_than_its_part_of_the_context_is_refused(target: str) -> None:
    llm = open_batched(target, 2, 256, 1)
    with pytest.raises(ContextFullError, match="do not fit into 256"):
        list(generate(llm, [Request(0, [65] * 250, 0.0, 0)], n_parallel=2, max_tokens=10))
    llm.close()


@pytest.mark.parametrize(
    "tokens, end",
    [
        ([1, 2, 3] * 8, 6),
        ([9, 9, 4, *[1, 2, 3] * 8], 9),
        ([7] * 24, 2),
        ([7] * 23, 0),
        ([*range(30), *range(30)], 0),
        ([*range(100, 140), *[*range(30)] * 3], 100),
        ([], 0),
    ],
)
def test_loops_are_cut_behind_their_second_repeat(tokens: list[int], end: int) -> None:
    assert loop_end(tokens) == end


def run(target: str, folder: Path, responses: list[Response], **settings: Any) -> int:
    settings = {"n_ctx": 256, "top_k": 5, "n_workers": 1, "n_threads": 1, **settings}
    return sum(write_features(target, responses, folder, [2, 4, 5], **settings))


def test_features_are_written_row_by_row_and_resumed(target: str, whole: Path, tmp_path: Path) -> None:
    responses = list(read_responses(whole))
    n = sum(len(r.prompt) + len(r.response) for r in responses)
    assert run(target, tmp_path / "a", responses) == n
    assert run(target, tmp_path / "b", responses[:4]) < n
    run(target, tmp_path / "b", responses)
    assert run(target, tmp_path / "b", responses) == 0
    run(target, tmp_path / "c", responses, n_workers=2)
    a, b, c = (ShardReader(tmp_path / name, check=True) for name in "abc")
    assert len(a) == len(b) == len(c) == 9 and a.n_tokens == n
    for response, *samples in zip(responses, a.sequences(), b.sequences(), c.sequences(), strict=True):
        first = samples[0]
        assert first.tokens.tolist() == [*response.prompt, *response.response]
        assert first.prompt_length == len(response.prompt)
        for other in samples[1:]:
            assert all(np.array_equal(x, y) for x, y in zip(first, other, strict=True))
        rows = slice(first.prompt_length - 1, -1)
        assert not first.top_probs[: first.prompt_length - 1].any()
        if response.temperature == 0:  # what the target chose is what it finds likeliest
            np.testing.assert_array_equal(first.top_ids[rows, 0], response.response)


def test_disk_use_is_bounded(target: str, whole: Path, tmp_path: Path) -> None:
    responses = list(read_responses(whole))
    run(target, tmp_path, responses, max_bytes=200 * (4 + 2 * 3 * 64 + 6 * 5))
    assert 0 < ShardReader(tmp_path).n_tokens <= 200


def test_features_of_another_target_or_layer_are_refused(
    target: str, whole: Path, tmp_path: Path, smollm_path: Path
) -> None:
    responses = list(read_responses(whole))
    run(target, tmp_path, responses[:1])
    with pytest.raises(MismatchError, match="target_sha256"):
        run(str(smollm_path), tmp_path, responses)
    with pytest.raises(ArgumentError, match=r"the taps are \[99\], expected layers from 0 to"):
        list(write_features(target, responses, tmp_path, [99], n_ctx=256))
    assert len(ShardReader(tmp_path)) == 1


def test_lines_say_what_a_response_depends_on(whole: Path) -> None:
    rows = [json.loads(line) for line in whole.read_text().splitlines()]
    assert [row["prompt"] for row in rows] == [p.tokens for p in PROMPTS]
    assert {row["source"] for row in rows} == {"part 0", "part 1"}
    assert {row["finish"] for row in rows} <= {"stop", "length", "loop"}


def test_processes_end_with_a_run_that_is_killed(target: str, tmp_path: Path) -> None:
    program = f"""
import multiprocessing, os
from dspark_cpp.train.responses import Prompt, ResponseSettings, generate_responses
if __name__ == "__main__":
    prompts = [Prompt([256, 84], "")] * 400
    settings = ResponseSettings(max_tokens=9, n_parallel=4)
    path = {str(tmp_path / "r.jsonl")!r}
    for i, _ in enumerate(generate_responses({target!r}, prompts, path, settings, n_workers=2)):
        if i == 1:
            print(*(p.pid for p in multiprocessing.active_children()), flush=True)
            os.kill(os.getpid(), 9)
"""
    (tmp_path / "run.py").write_text(program)
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, str(tmp_path / "run.py")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    pids = [int(pid) for pid in done.stdout.split()]
    assert done.returncode == -9 and len(pids) == 2, done.stderr
    for _ in range(100):
        if not any(os.path.exists(f"/proc/{pid}/exe") for pid in pids):
            return
        time.sleep(0.1)
    pytest.fail("processes of a killed run are still there")
