"""The command line as its users and their scripts see it: stdout, stderr, exit codes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dspark_cpp.cli import main

PROMPT = [256, *b"The lighthouse at the end of the "]
IDS = ",".join(map(str, PROMPT))
ENV = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), "PYTHONFAULTHANDLER": "1"}


def cli(*args: object, timeout: float = 60) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dspark_cpp", *map(str, args)]
    return subprocess.run(command, env=ENV, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def pair(tiny_path: Callable[[str], Path], converted: Callable[..., Path]) -> list[object]:
    return ["-m", tiny_path("target-qwen3"), "-md", converted("spk-dspark-bonus-dv96"), "-t", 1, "-c", 512]


def test_generate_writes_the_text_alone_on_stdout_with_and_without_the_draft(pair: list[object]) -> None:
    plain = cli("generate", *pair, "--prompt-ids", IDS, "-n", 60, "--no-draft")
    drafted = cli("generate", *pair, "--prompt-ids", IDS, "-n", 60)
    assert (plain.returncode, drafted.returncode) == (0, 0), drafted.stderr
    assert plain.stdout == drafted.stdout and "stone pier" in plain.stdout
    assert "60 tokens" in drafted.stderr and "rounds drafted, " in drafted.stderr
    assert "plain: no draft was given" in plain.stderr


def test_json_has_the_documented_keys_and_the_trace_adds_up(pair: list[object]) -> None:
    done = cli("generate", *pair, "--prompt-ids", IDS, "-n", 50, "--json", "--trace")
    out = json.loads(done.stdout)
    keys = {"text", "tokens", "finish_reason", "draft_n", "draft_n_accepted", "mean_accepted_length"}
    assert keys | {"tokens_per_second", "timings", "rounds"} <= set(out)
    assert len(out["tokens"]) == 50 and out["finish_reason"] == "length"
    emitted = [out["tokens"][0]]
    for r in out["rounds"]:
        assert set(r) == {"position", "anchor", "drafted", "confidence", "n_accepted", "next"}
        assert r["position"] == len(PROMPT) + len(emitted) - 1 and r["anchor"] == emitted[-1]
        assert len(r["confidence"] or ()) == len(r["drafted"])
        emitted += [*r["drafted"][: r["n_accepted"]], r["next"]]
    assert emitted == out["tokens"]
    assert sum(len(r["drafted"]) for r in out["rounds"]) == out["draft_n"]
    assert sum(r["n_accepted"] for r in out["rounds"]) == out["draft_n_accepted"] > 0


def test_generate_samples_with_a_seed(pair: list[object]) -> None:
    hot = ["-n", 40, "--temp", 4, "--top-k", 0, "--top-p", 1, "--min-p", 0]
    first, again, other = (
        cli("generate", *pair, "--prompt-ids", IDS, *hot, "--seed", seed).stdout for seed in (7, 7, 8)
    )
    assert first == again != other


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--prompt-ids", "1,x"], "--prompt-ids is '1,x', expected integers with commas"),
        (["--prompt-ids", "1,5000"], "token 1 of the input is 5000, expected 0 to 319"),
        (["--prompt-ids", IDS, "-n", "-1"], "-n is -1, expected 0 or more"),
        (["--prompt-ids", IDS, "--n-max", "-2"], "--n-max is -2, expected 0 or more"),
        (["--prompt-ids", IDS, "--trace"], "needs --json"),
        (["--prompt-ids", IDS, "--confidence-min", "1.5"], "confidence_min is 1.5, expected 0 to 1"),
        (["--prompt-ids", IDS, "--temp", "1", "--top-p", "2"], "top_p is 2.0"),
        (["--prompt-ids", ",".join(["65"] * 600)], "the prompt has 600 tokens, the context holds 512"),
    ],
)
def test_a_wrong_argument_is_one_sentence_and_exit_code_1(pair: list[object], args: list[str], message: str) -> None:
    done = cli("generate", *pair, *args)
    assert done.returncode == 1 and done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("dspark-cpp generate: error: ") and message in last
    assert "Traceback" not in done.stderr


def test_rejection_sampling_is_chosen_by_a_flag_and_said_to_be_impossible_when_greedy(pair: list[object]) -> None:
    generate = ["generate", *pair, "--prompt-ids", IDS, "-n", "20", "--json", "--n-max", "3", "--verify", "rejection"]
    drawn, again = (json.loads(cli(*generate, "--temp", "1", "--seed", "7").stdout) for _ in range(2))
    assert drawn["tokens"] == again["tokens"]
    assert drawn["n_by_rejection"] > 0 and drawn["match_reason"] is None
    greedy = json.loads(cli(*generate).stdout)
    assert greedy["n_by_rejection"] == 0 and "greedy" in greedy["match_reason"]


def test_wrong_usage_is_exit_code_2() -> None:
    for args in ([], ["nonsense"], ["generate"], ["generate", "-p", "x", "--no-such-flag"], ["inspect"]):
        done = cli(*args)
        assert done.returncode == 2 and "usage:" in done.stderr, args


def test_a_misspelled_flag_gets_a_hint() -> None:
    for flag, meant in (
        ("--nmax", "--n-max"),
        ("--confidence_min=1", "--confidence-min"),
        ("--model_draft", "--model-draft"),
    ):
        done = cli("generate", "-p", "x", flag)
        assert done.returncode == 2 and done.stderr.endswith(f"did you mean {meant}?\n"), done.stderr


def test_files_that_are_not_there_or_not_drafts_are_named(pair: list[object], tmp_path: Path) -> None:
    target = pair[1]
    for args, message in [
        (["generate", "-m", "nowhere.gguf", "-p", "x"], "cannot load the target nowhere.gguf"),
        (["generate", "-m", target, "-md", "nowhere.gguf", "-p", "x"], 'cannot open "nowhere.gguf"'),
        (["generate", "-m", target, "-md", target, "-p", "x"], 'general.architecture is "qwen3", expected "dflash"'),
        (["generate", "-m", pair[3], "-p", "x"], "is a draft, not a target"),
        (["inspect", "nowhere.gguf"], 'cannot open "nowhere.gguf"'),
    ]:
        done = cli(*args)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr


def test_doctor_and_version_say_what_was_found() -> None:
    report = json.loads(cli("doctor", "--json").stdout)
    assert report["layer_taps"] is True and "problem" not in report
    assert report["ggml"].startswith(report["ggml_built_against"])
    assert any(device.startswith("CPU") for device in report["devices"])
    version = cli("--version")
    assert version.returncode == 0 and version.stdout.startswith("dspark-cpp ") and "ggml" in version.stdout


@pytest.mark.skipif(os.name != "posix", reason="sends SIGINT")
def test_ctrl_c_ends_generation_with_exit_code_130_and_no_traceback(pair: list[object]) -> None:
    command = [sys.executable, "-m", "dspark_cpp", "generate", *map(str, pair), "--prompt-ids", IDS, "-n", "100000"]
    command[command.index("512")] = "100000"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # a test run in the background ignores the signal, and its children would too
    listening = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731
    process: Any = subprocess.Popen(command, env=ENV, preexec_fn=listening, **pipes)
    assert process.stdout.read(20)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130
    assert stderr.strip().endswith("interrupted") and "Traceback" not in stderr


@pytest.mark.skipif(os.name != "posix", reason="needs a pipe that closes")
def test_a_reader_that_goes_away_is_no_traceback(pair: list[object]) -> None:
    command = [sys.executable, "-m", "dspark_cpp", "generate", *map(str, pair), "--prompt-ids", IDS, "-n", "400"]
    process: Any = subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.read(1)
    process.stdout.close()
    stderr = process.stderr.read()
    assert process.wait(timeout=30) == 1
    assert "Traceback" not in stderr and "BrokenPipe" not in stderr


def test_the_demo_shows_both_texts_and_what_drafting_brought(
    smollm_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "-n", "12", "-t", "1", "--repeat", "1"]) == 0
    told = capsys.readouterr().out
    assert "--- without draft ---" in told and "--- with draft ---" in told and "by position:" in told
    assert main(["demo", "-n", "12", "-t", "1", "--repeat", "1", "--json", "--n-max", "2"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["draft_n"] > 0
    assert main(["demo", "-n", "0"]) == 1
    assert "-n is 0, expected 1 or more" in capsys.readouterr().err
