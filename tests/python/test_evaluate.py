"""dspark-cpp evaluate: its counts are the session's, its rates those of the counts, and what it refuses."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_cpp import Session
from dspark_cpp.cli import main
from dspark_cpp.evaluation import evaluate
from dspark_cpp.evaluation.acceptance import acceptance, by_depth
from dspark_cpp.evaluation.rounds import Rounds, observe
from dspark_cpp.sampling import Sampler


@pytest.fixture
def pair(paths: tuple[str, str]) -> list[str]:
    return ["-m", paths[0], "-md", paths[1], "-c", "256", "-t", "1"]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "stories.jsonl"
    file.write_text('{"prompt": "The lighthouse at the end of the "}\nAn old keeper\n{"turns": ["Once upon", "no"]}\n')
    return file


def made(prompt: list[int], position: list[int], n_seen: list[int], n_accepted: list[int]) -> Rounds:
    return Rounds(*(np.array(c, np.int64) for c in (prompt, position, n_seen, n_accepted)), None)


def test_rates_are_those_of_the_counts() -> None:
    """Worked out by hand: prompt 0 has rounds of 2, 0 and 1 accepted drafts, prompt 1 one of 3."""
    found = acceptance(made([0, 0, 0, 1], [0, 3, 4, 0], [3, 3, 3, 3], [2, 0, 1, 3]), 3)
    assert (found["n_prompts"], found["n_rounds"], found["n_tokens"]) == (2, 4, 10)
    assert found["mean_accepted_length"] == 2.5 and found["acceptance_rate"] == 0.5
    assert [p["conditional"] for p in found["positions"]] == [0.75, 0.6667, 0.5]
    assert [p["cumulative"] for p in found["positions"]] == [0.75, 0.5, 0.25]
    assert [p["n_reached"] for p in found["positions"]] == [4, 3, 2]
    # residuals of the prompts' sums: 3 - 1.5 * 3 and 3 - 1.5 * 1
    assert found["standard_error"] == pytest.approx(math.sqrt(2 * (1.5**2 + 1.5**2)) / 4, abs=1e-4)


def test_what_lies_behind_the_end_of_a_text_is_not_counted() -> None:
    found = acceptance(made([0, 0], [0, 3], [3, 1], [3, 1]), 3)
    assert found["draft_n"] == 4 and found["acceptance_rate"] == 1.0
    assert [p["n_rounds"] for p in found["positions"]] == [2, 1, 1]
    assert all(p["conditional"] == 1.0 and p["conditional_error"] is None for p in found["positions"])


def test_no_rounds_give_no_rates() -> None:
    found = acceptance(made([], [], [], []), 2)
    assert found["mean_accepted_length"] is None and found["positions"][0]["conditional"] is None
    assert by_depth(made([], [], [], []), 2) == []


def test_buckets_of_depth_double_and_hold_every_round_once() -> None:
    rounds = made([0, 0, 1, 1], [0, 127, 128, 600], [2] * 4, [0, 1, 2, 2])
    buckets = by_depth(rounds, 2)
    assert [(b["from"], b["to"], b["n_rounds"]) for b in buckets] == [(0, 127, 2), (128, 255, 1), (512, 1023, 1)]
    assert [b["mean_accepted_length"] for b in buckets] == [1.5, 3.0, 3.0]


def test_the_counts_are_those_of_the_session(open_tiny: Callable[..., Any], paths: tuple[str, str]) -> None:
    prompts = [[256, 84, 104, 101], [256, 65, 110, 32, 111]]
    with Session(open_tiny(), paths[1]) as session:
        rounds = observe(session, prompts, 40, 7)
        stats = session.stats
        assert len(rounds) == stats.n_rounds_drafted
        assert rounds.n_accepted.sum() == stats.draft_n_accepted and rounds.n_seen.sum() == stats.draft_n
        assert rounds.confidence is not None and np.isfinite(rounds.confidence).all()
        for index, prompt in enumerate(prompts):
            mine = rounds.where(rounds.prompt == index)
            assert mine.position[0] == len(prompt)
            assert np.array_equal(np.diff(mine.position), mine.n_accepted[:-1] + 1)


def test_the_counts_are_those_of_a_session_that_samples_by_rejection(
    open_tiny: Callable[..., Any], paths: tuple[str, str]
) -> None:
    """A rejected draft is never followed by the same token, so that comparing tokens tells which stood."""
    prompts = [[256, 84, 104, 101], [256, 65, 110, 32, 111]]
    with Session(open_tiny(), paths[1], verify="rejection") as session:
        rounds = observe(session, prompts, 60, 7, temperature=1.0, seed=2)
        stats = session.stats
    assert stats.n_by_rejection > 0
    assert rounds.n_accepted.sum() == stats.draft_n_accepted and rounds.n_seen.sum() == stats.draft_n


def test_rejection_sampling_is_a_choice_of_the_command(
    pair: list[str], prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["evaluate", *pair, "--prompts", str(prompts), "-n", "16", "--verify", "rejection", "--json", "-"]
    assert main(argv) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["verify"] == "rejection" and report["runs"][1]["overall"]["draft_n"] > 0


def test_rounds_are_of_the_tokens_that_decoding_gives(open_tiny: Callable[..., Any], paths: tuple[str, str]) -> None:
    prompt = [256, 84, 104, 101]
    for temperature in (0.0, 1.0):
        with Session(open_tiny(), paths[1]) as session:
            rounds = observe(session, [prompt], 40, 7, temperature=temperature, seed=3)
            n = int(rounds.position[-1] + rounds.n_accepted[-1]) + 1 - len(prompt)
            ids = session.tokens
        sampler = Sampler(temp=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=3) if temperature else None
        with Session(open_tiny()) as plain:
            assert ids[len(prompt) :] == list(plain.generate(prompt, max_tokens=n, sampler=sampler))


def test_a_report_has_every_set_temperature_and_depth(
    pair: list[str], prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids, out = tmp_path / "ids.jsonl", tmp_path / "report.json"
    ids.write_text('{"ids": [256, 84, 104, 101]}\n')
    assert main(["evaluate", *pair, "--prompts", str(prompts), str(ids), "-n", "24", "--json", str(out)]) == 0
    table = capsys.readouterr().out
    assert "greedy" in table and "temperature 1" in table and "[token ids: says little about a draft]" in table
    assert "[only 4 prompts]" in table
    report = json.loads(out.read_text())
    assert report["n_draft_max"] == 7 and [run["temperature"] for run in report["runs"]] == [0.0, 1.0]
    for run in report["runs"]:
        assert list(run["sets"]) == ["stories", "ids"]
        assert run["overall"]["n_rounds"] == sum(s["n_rounds"] for s in run["sets"].values())
        assert run["overall"]["n_rounds"] == sum(d["n_rounds"] for d in run["depths"])
        assert run["overall"]["n_prompts"] == 4 and len(run["overall"]["positions"]) == 7
        assert run["sets"]["ids"]["kind"].startswith("token ids") and run["sets"]["stories"]["kind"] == "text"


def test_the_same_seed_gives_the_same_report(paths: tuple[str, str], prompts: Path) -> None:
    settings: dict[str, Any] = {"n_predict": 16, "n_ctx": 256, "n_threads": 1, "temperatures": [1.0]}
    first, second, third = (evaluate(*paths, [prompts], seed=seed, **settings) for seed in (5, 5, 6))
    assert first == second
    assert first["runs"] != third["runs"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["-n", "0"], "n_predict is 0, expected 1 or more"),
        (["--limit", "0"], "limit is 0, expected 1 or more"),
        (["--temperature", "-1"], "the temperature is -1, expected 0 (greedy) or more"),
        (["--temperature", "nan"], "the temperature is nan, expected 0 (greedy) or more"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl: cannot be read as a prompt file"),
        (["-md", "nowhere.gguf"], "nowhere.gguf"),
        (["-m", "nowhere.gguf"], "nowhere.gguf"),
        (["--json", "nowhere/report.json"], "nowhere/report.json: there is no folder of that name"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    change: list[str], said: str, pair: list[str], prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["evaluate", *pair, "--prompts", str(prompts), "-n", "8", "--temperature", "0"]
    assert main([*argv, *change]) == 1
    out, err = capsys.readouterr()
    assert out == "" and said in err and len(err.splitlines()) == 1


def test_a_prompt_that_fills_the_context_is_named(
    pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "long.jsonl"
    file.write_text(json.dumps({"ids": [84] * 8}) + "\n" + json.dumps({"ids": [84] * 249}) + "\n")
    assert main(["evaluate", *pair, "--prompts", str(file), "-n", "4"]) == 1
    said = "long: prompt 2 has 249 tokens, expected 247 or fewer in a context of 256"
    assert said in capsys.readouterr().err


def test_empty_and_equally_named_prompt_files_are_refused(
    pair: list[str], prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    same, empty = tmp_path / "other" / prompts.name, tmp_path / "empty.jsonl"
    same.write_text(prompts.read_text())
    empty.write_text("\n")
    for files, said in (((prompts, same), "two prompt files are named stories"), ((empty,), "has no prompts")):
        assert main(["evaluate", *pair, "--prompts", *map(str, files)]) == 1
        assert said in capsys.readouterr().err
