"""dspark-cpp bench: what it reports, and what it refuses."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dspark_cpp.bench.arms import PeerArm
from dspark_cpp.bench.prompts import read_prompts
from dspark_cpp.cli import main
from dspark_cpp.errors import ArgumentError, DSparkError, FileError


@pytest.fixture
def pair(tiny_path: Callable[[str], Path], converted: Callable[..., Path]) -> list[str]:
    return ["-m", str(tiny_path("target-qwen3")), "-md", str(converted("deepspec-qwen3-vanilla"))]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "stories.jsonl"
    file.write_text('{"prompt": "The lighthouse at the end of the "}\nAn old keeper\n{"turns": ["Once upon", "no"]}\n')
    return file


def test_a_report_has_every_way_of_decoding_and_the_ratios_between_them(
    pair: list[str], prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "report.png"
    argv = ["bench", *pair, "--prompts", str(prompts), "-n", "24", "-c", "128", "-t", "1", "--json"]
    assert main([*argv, "--plot", str(picture)]) == 0
    report = json.loads(capsys.readouterr().out)
    names = ["llama-cpp-python", "its prompt lookup", "no draft", "draft 1", "draft 2", "draft 4", "draft 7", "auto"]
    for part in (report["overall"], report["sets"]["stories"]):
        assert [name for name in part["arms"] if name in names] == list(part["arms"])
        assert part["texts_that_differ"] == 0 and part["tokens_compared"] > 0
        assert part["speedup_vs_plain"] == part["arms"]["auto"]["speedup_vs_plain"] > 0
        assert part["arms"]["llama-cpp-python"]["speedup_vs_plain"] == 1.0
        assert part["arms"]["draft 2"]["tokens_per_round"] > 1
        assert len(part["arms"]["draft 2"]["acceptance_per_position"]) == 2
    assert report["sets"]["stories"]["kind"] == "text"
    assert set(report["t_n"]) == {"llama-cpp-python", "no draft"} and set(report["t_n"]["no draft"]) >= {"1", "8"}
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_table_can_be_read(pair: list[str], prompts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ["bench", *pair, "--prompts", str(prompts), "-n", "8", "-c", "128", "-t", "1", "--limit", "1"]
    assert main([*argv, "--no-lookup", "--n-max", "2,99"]) == 0
    out = capsys.readouterr().out
    assert "draft 2" in out and "draft 4" not in out and "automatic length:" in out
    assert "texts that differ from those without a draft: 0" in out


def test_random_tokens_are_labelled(pair: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "ids.jsonl"
    file.write_text('{"ids": [256, 84, 104, 101]}\n')
    argv = ["bench", *pair, "--prompts", str(file), "-n", "8", "-c", "128", "-t", "1", "--no-lookup", "--n-max", "1"]
    assert main(argv) == 0
    assert "[token ids: says little about a draft]" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (["-n", "0"], "n_predict is 0, expected 1 or more"),
        (["--n-max", "two"], "--n-max is 'two', expected numbers"),
        (["--n-max", "0"], "--n-max is '0', expected lengths of 1 or more"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl: cannot be read as a prompt file"),
        (["-md", "nowhere.gguf"], "nowhere.gguf"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    change: list[str], said: str, pair: list[str], prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *pair, "--prompts", str(prompts), "-c", "128", "--no-lookup", *change]) == 1
    out, err = capsys.readouterr()
    assert out == "" and said in err and len(err.splitlines()) == 1


def test_a_peer_that_is_not_installed_is_named_with_its_package(
    pair: list[str], prompts: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dspark_cpp.bench.arms.find_spec", lambda name: None)
    assert main(["bench", *pair, "--prompts", str(prompts), "--peer"]) == 1
    assert capsys.readouterr().err == "dspark-cpp bench: error: --peer needs xllamacpp: pip install xllamacpp\n"


@pytest.mark.parametrize(("longest", "n_peers"), [(2, 3), (7, 4)])
def test_the_peer_is_measured_in_processes_of_its_own(
    longest: int, n_peers: int, pair: list[str], prompts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A length that was asked for twice ended the report."""
    pytest.importorskip("xllamacpp", reason="the peer is a test extra")
    argv = ["bench", *pair, "--prompts", str(prompts), "-n", "8", "-c", "128", "-t", "1", "--no-lookup", "--limit", "1"]
    assert main([*argv, "--n-max", str(longest), "--peer", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["overall"]
    peers = {name: row for name, row in report["arms"].items() if name.startswith("peer")}
    assert len(peers) == n_peers and report["best_peer"] in peers and report["speedup_vs_peer"] > 0
    for name, row in peers.items():
        assert (row["draft_n"] > 0) == (name != "peer, no draft") == ("tokens_per_round" in row)


def test_a_peer_that_has_ended_is_told_with_its_last_words() -> None:
    pytest.importorskip("xllamacpp", reason="the peer is a test extra")
    peer = PeerArm("peer, lost", "none.gguf", None, 0, 0.0, 1)
    try:
        with pytest.raises(DSparkError, match=r"the peer \(peer, lost\) has ended: .+"):
            peer.run([256], 4)
    finally:
        peer.close()


def test_lines_without_a_prompt_are_named(tmp_path: Path) -> None:
    class Llm:
        metadata: dict[str, Any] = {}

    file = tmp_path / "p.jsonl"
    file.write_text('\n{"id": 3}\n')
    with pytest.raises(ArgumentError, match='p.jsonl:2: there is no "prompt"'):
        read_prompts(str(file), Llm(), None)
    file.write_text("\n\n")
    with pytest.raises(ArgumentError, match="has no prompts"):
        read_prompts(str(file), Llm(), None)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(FileError, match="cannot be read"):
        read_prompts(str(file), Llm(), None)
