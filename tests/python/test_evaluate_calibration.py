"""Calibration: known answers on made-up rounds, and temperatures from the fit to what a session hands out."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dspark_cpp import Draft, Session
from dspark_cpp.cli import main
from dspark_cpp.convert import quantize_gguf
from dspark_cpp.convert.confidence_temperature import write_confidence_temperature
from dspark_cpp.convert.gguf_file import GGUFFile
from dspark_cpp.errors import ArgumentError
from dspark_cpp.evaluation.calibration import calibration, expected_calibration_error, products
from dspark_cpp.evaluation.rounds import Rounds
from dspark_cpp.evaluation.temperature_scaling import fit_temperatures, head_logits
from gguf_edit import tensor

T = [0.5, 2.0, 3.0, 1.0, 0.25, 8.0, 1.5]
PROMPT = [256, 84, 104, 101]


def made(n: int, temperature: list[float], seed: int = 1) -> tuple[Rounds, np.ndarray]:
    """Rounds in which draft k stands with probability sigmoid(logit_k / temperature[k]), and the logits (n, K)."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(1.5, 2.0, (n, len(temperature)))
    stands = rng.random(logits.shape) < 1 / (1 + np.exp(-logits / np.array(temperature)))
    n_accepted = np.cumprod(stands, axis=1).sum(axis=1)
    none = np.zeros(n, np.int64)
    return Rounds(none, none, np.full(n, len(temperature)), n_accepted, 1 / (1 + np.exp(-logits))), logits


def test_the_error_is_the_definition() -> None:
    """Two bins: promises .11 and .14, of which one stood, and .96, which fell."""
    promised, stood = np.array([0.11, 0.14, 0.96]), np.array([True, False, False])
    assert expected_calibration_error(promised, stood) == pytest.approx((abs(0.25 - 1) + 0.96) / 3)
    assert expected_calibration_error(np.array([1.0, 0.0]), np.array([True, False])) == 0


def test_a_true_head_has_the_error_of_chance_and_an_overconfident_one_more() -> None:
    rounds, logits = made(20_000, [1.0, 1.0, 1.0])
    for row in calibration(rounds, logits, [1.0] * 3):
        assert row["ece"] < 2 * row["ece_by_chance"] and abs(row["promised"] - row["stood"]) < 0.01
        assert 0.7 < row["auc"] < 1 and row["brier"] < 0.25
        assert sum(b["n"] for b in row["bins"]) == row["n_rounds"] == 20_000
    rounds, logits = made(20_000, [2.0, 2.0, 2.0])
    before, after = (calibration(rounds, logits, [t] * 3) for t in (1.0, 2.0))
    assert all(b["ece"] > 4 * a["ece"] for b, a in zip(before, after, strict=True))


def test_the_area_under_the_curve_counts_pairs() -> None:
    rounds = Rounds(*(np.array(c) for c in ([0] * 4, [0] * 4, [1] * 4, [1, 0, 1, 0])), None)
    logits = np.array([[2.0], [1.0], [1.0], [0.0]])  # of the four pairs three are in order and one is equal
    assert calibration(rounds, logits, [1.0])[0]["auc"] == 0.875
    rounds = Rounds(*(np.array(c) for c in ([0] * 2, [0] * 2, [1] * 2, [1, 1])), None)
    assert calibration(rounds, logits[:2], [1.0])[0]["auc"] is None


@pytest.mark.parametrize("temperature", [[2.0, 2.0, 2.0], [0.5, 0.5, 0.5], [1.0, 1.0, 1.0], [3.0, 1.0, 1.5]])
def test_the_temperatures_that_rounds_were_made_with_are_found(temperature: list[float]) -> None:
    """A head over-confident by 2 in every logit is divided by 2, and so on; position by position."""
    rounds, logits = made(40_000, temperature)
    assert fit_temperatures(rounds, logits) == pytest.approx(temperature, rel=0.2)


def test_fitting_helps_on_rounds_that_it_has_not_seen() -> None:
    fitted = fit_temperatures(*made(2_000, [2.5, 2.0, 1.5]))
    rounds, logits = made(20_000, [2.5, 2.0, 1.5], seed=2)
    before, after = (calibration(rounds, logits, t) for t in ([1.0] * 3, fitted))
    assert all(a["ece"] < 0.6 * b["ece"] for b, a in zip(before, after, strict=True))


def test_positions_that_were_hardly_reached_take_after_the_one_before() -> None:
    rounds, logits = made(5_000, [2.0, 1.0])
    rounds = Rounds(rounds.prompt, rounds.position, rounds.n_seen, np.minimum(rounds.n_accepted, 1), rounds.confidence)
    fitted = fit_temperatures(rounds, logits)
    assert fitted[1] == fitted[0] == pytest.approx(2.0, rel=0.2)
    with pytest.raises(ArgumentError, match="there are 99 rounds to calibrate on, expected 100 or more"):
        fit_temperatures(rounds.where(np.arange(5_000) < 99), logits[:99])


def test_logits_are_recovered_from_confidences_that_a_file_has_scaled() -> None:
    logits = np.array([[3.0, -2.0], [0.0, 20.0]])
    scaled = 1 / (1 + np.exp(-logits / [0.5, 2.0]))
    none = np.zeros(2, np.int64)
    assert head_logits(Rounds(none, none, none, none, scaled), (0.5, 2.0)) == pytest.approx(logits, rel=1e-6)
    assert products(logits, [1.0, 1.0])[0] == pytest.approx([0.952574, 0.952574 * 0.119203], rel=1e-5)


# --- the file ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def calibrated(converted: Callable[..., Path], tmp_path: Path) -> Path:
    return write_confidence_temperature(converted("deepspec-qwen3-vanilla"), tmp_path / "calibrated.gguf", T)


def confidences(llm: Any, draft: Path, **settings: Any) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    found = []
    with Session(llm, str(draft), n_threads=1, **settings) as session:
        session.append(PROMPT)
        for _ in range(40):
            session.next()
            current = session.last_round
            if current is not None and current.n_accepted == 0 and current.drafted:
                found.append((current.drafted, current.confidence or ()))
    return found


def test_a_session_hands_out_and_cuts_by_calibrated_confidences(
    calibrated: Path, paths: tuple[str, str], open_tiny: Callable[..., Any]
) -> None:
    llm = open_tiny()
    plain, scaled = confidences(llm, Path(paths[1])), confidences(llm, calibrated)
    assert [ids for ids, _ in plain] == [ids for ids, _ in scaled]
    for (_, a), (_, b) in zip(plain, scaled, strict=True):
        assert np.log(b) - np.log1p(-np.array(b)) == pytest.approx((np.log(a) - np.log1p(-np.array(a))) / T, rel=1e-3)
    cut = confidences(llm, calibrated, confidence_min=0.5)
    assert any(len(ids) < 7 for ids, _ in cut) and all(min(c) >= 0.5 for _, c in cut)


def test_a_calibrated_copy_differs_in_one_key(calibrated: Path, paths: tuple[str, str]) -> None:
    old, new = GGUFFile(Path(paths[1])), GGUFFile(calibrated)
    assert set(new.metadata) - set(old.metadata) == {"dflash.confidence_temperature"}
    assert all(new.metadata[key].value == value.value for key, value in old.metadata.items())
    for name, weight in old.tensors.items():
        assert new.tensors[name].type is weight.type and bytes(new.tensors[name].raw()) == bytes(weight.raw()), name
    again = write_confidence_temperature(calibrated, calibrated, [1.0] * 7)
    assert Draft(again, inspect=True).confidence_temperature == (1.0,) * 7
    assert Draft(paths[1], inspect=True).confidence_temperature is None


def test_a_quantised_draft_keeps_its_bytes_in_a_calibrated_copy(tmp_path: Path, paths: tuple[str, str]) -> None:
    small = quantize_gguf(paths[1], tmp_path / "small.gguf", "q8_0").path
    copy = write_confidence_temperature(small, tmp_path / "copy.gguf", T)
    assert all(np.array_equal(tensor(small, name), tensor(copy, name)) for name in GGUFFile(small).tensors)


def test_inspect_shows_temperatures_and_quantize_keeps_them(
    calibrated: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = tmp_path / "small.gguf"
    assert main(["quantize", str(calibrated), "-o", str(small), "--outtype", "f16"]) == 0
    for file in (calibrated, small):
        capsys.readouterr()
        assert main(["inspect", str(file), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["confidence_temperature"] == T


def test_the_peer_reads_a_calibrated_file_as_it_reads_the_original(calibrated: Path, paths: tuple[str, str]) -> None:
    pytest.importorskip("xllamacpp", reason="the peer is a test extra")
    answers = []
    for draft in (paths[1], calibrated):
        argv = [sys.executable, str(Path(__file__).with_name("convert") / "peer_run.py"), paths[0], str(draft), "7"]
        jobs = json.dumps([{"prompt": PROMPT, "n": 32}])
        done = subprocess.run(argv, input=jobs, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        answers.append(json.loads(done.stdout.strip().splitlines()[-1]))
    assert answers[0] == answers[1] and answers[0][0][0] > 0


# --- the command ------------------------------------------------------------------------------------------------------


@pytest.fixture
def command(paths: tuple[str, str], tmp_path: Path) -> list[str]:
    file = tmp_path / "stories.jsonl"
    file.write_text("The lighthouse at the end of the\nAn old keeper\nOnce upon a time\nIn the morning\n")
    argv = ["evaluate", "-m", paths[0], "-md", paths[1], "--prompts", str(file)]
    return [*argv, "-c", "512", "-t", "1", "-n", "200", "--temperature", "0"]


def test_calibrating_fits_on_one_half_and_reports_on_the_other(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    out, picture, copy = (tmp_path / name for name in ("report.json", "report.png", "copy.gguf"))
    assert main([*command, "--calibrate", str(copy), "--json", str(out), "--plot", str(picture)]) == 0
    table = capsys.readouterr().out
    assert "calibrated, 7" in table and "temperatures of the confidence head, from" in table
    report = json.loads(out.read_text())
    fit, run = report["calibration"], report["runs"][0]
    assert fit["n_prompts"] == 2 and fit["sets"] == ["stories"] and fit["n_rounds"] >= 100
    assert run["overall"]["n_prompts"] == 2
    assert [row["position"] for row in run["confidence"]] == [row["position"] for row in run["calibrated"]]
    written = Draft(copy, inspect=True).confidence_temperature
    assert written == pytest.approx(fit["confidence_temperature"], rel=1e-6)
    assert picture.read_bytes().startswith(b"\x89PNG")
    # the calibrated file promises what was reported of it
    command[command.index("-md") + 1] = str(copy)
    assert main([*command, "--json", str(out)]) == 0
    again = json.loads(out.read_text())
    assert again["confidence_temperature"] == pytest.approx(fit["confidence_temperature"], rel=1e-6)
    assert again["runs"][0]["calibrated"] is None and again["calibration"] is None


def test_prompts_to_calibrate_on_may_be_others(command: list[str], tmp_path: Path) -> None:
    other, out = tmp_path / "other.jsonl", tmp_path / "report.json"
    other.write_text("The keeper went up the stairs\nA ship\nThe sea was calm\n")
    argv = [*command, "--calibrate", str(tmp_path / "copy.gguf"), "--calibration-prompts", str(other)]
    assert main([*argv, "--json", str(out)]) == 0
    report = json.loads(out.read_text())
    assert report["calibration"]["sets"] == ["other"] and report["calibration"]["n_prompts"] == 3
    assert report["runs"][0]["overall"]["n_prompts"] == 4


def test_what_cannot_be_calibrated_is_one_sentence(
    command: list[str], tmp_path: Path, converted: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    copy, one = str(tmp_path / "copy.gguf"), tmp_path / "one.jsonl"
    one.write_text("Once\n")
    prompts = command[command.index("--prompts") + 1]
    for change, said in (
        (["--calibrate", copy, "-md", str(converted("spk-dflash"))], "has no confidence head, so there is nothing"),
        (["--calibrate", copy, "-n", "8"], "rounds to calibrate on, expected 100 or more"),
        (["--calibrate", copy, "--prompts", str(one)], "one has one prompt, expected two or more"),
        (["--calibrate", copy, "--calibration-prompts", prompts], "is to be calibrated on and reported on"),
        (["--calibration-prompts", str(one)], "prompts to calibrate on, but no name for the calibrated file"),
        (["--calibrate", "nowhere/copy.gguf"], "nowhere/copy.gguf: there is no folder of that name"),
    ):
        assert main([*command, *change]) == 1
        assert said in capsys.readouterr().err.splitlines()[-1]
    assert not Path(copy).exists()


def test_a_draft_without_a_confidence_head_is_still_measured(
    command: list[str], converted: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*command, "-md", str(converted("spk-dflash")), "-n", "16"]) == 0
    assert "the draft has no confidence head" in capsys.readouterr().out
