"""The command line: exit codes, what is told and where, and that a broken checkpoint leaves nothing behind."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import pytest
from convert_fixtures import ROOT, deepspec_config, draft_tensors, make_checkpoint, make_target, metadata
from dspark_cpp.cli.convert import ProgressBar, add_parser


def run(*argv: object) -> int:
    parser = argparse.ArgumentParser()
    add_parser(parser.add_subparsers())
    args = parser.parse_args(["convert", *map(str, argv)])
    code: int = args.func(args)
    return code


def test_success_is_0_with_the_decisions_on_stderr(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    assert run(draft, "--target", target, "-o", tmp_path / "o.gguf", "--outtype", "f16") == 0
    out, err = capsys.readouterr()
    assert out == ""
    for part in (
        "deepspec, a dspark draft",
        "anchor-first: block of 7, drafts up to 7",
        "inputs [1, 3, 5] = outputs [0, 2, 4] (from target_layer_ids)",
        "mask token 37",
        "vanilla, rank 4",
        "from hidden state and Markov embedding",
        "embedding and head: the target's (the checkpoint ships neither)",
        "f16, 29 tensors",
    ):
        assert part in err
    assert "\r" not in err  # no bar where stderr is no terminal


def test_quiet_tells_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    assert run(draft, "--target", target, "-o", tmp_path / "o.gguf", "-q") == 0
    assert capsys.readouterr() == ("", "")


def test_options_reach_the_file(tmp_path: Path) -> None:
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    out = tmp_path / "o.gguf"
    assert run(draft, "--target", target, "-o", out, "--layout", "bonus", "--self-contained", "--outtype", "bf16") == 0
    values = metadata(out)
    assert values["dflash.sample_from_anchor"] is False
    assert values["general.file_type"] == 32


def test_a_broken_checkpoint_is_1_with_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = {k: v for k, v in draft_tensors().items() if k != "fc.weight"}
    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config(), tensors), make_target(tmp_path / "target")
    assert run(draft, "--target", target, "-o", tmp_path / "o.gguf") == 1
    err = capsys.readouterr().err
    assert err == f"error: {draft}: tensor fc.weight is missing\n"
    assert not (tmp_path / "o.gguf").exists()


@pytest.mark.parametrize("argv", [(), ("draft",), ("draft", "--target", "t", "-o", "o", "--outtype", "q5_k")])
def test_wrong_usage_is_2(argv: tuple[str, ...]) -> None:
    with pytest.raises(SystemExit) as caught:
        run(*argv)
    assert caught.value.code == 2


def test_progress_reaches_the_whole(tmp_path: Path) -> None:
    from dspark_cpp.convert import convert_checkpoint

    draft, target = make_checkpoint(tmp_path / "draft", deepspec_config()), make_target(tmp_path / "target")
    seen: dict[str, tuple[int, int]] = {}
    convert_checkpoint(
        draft, target, tmp_path / "o.gguf", progress=lambda what, done, total: seen.update({what: (done, total)})
    )
    assert set(seen) == {"hashing", "writing"}
    assert all(done == total > 0 for done, total in seen.values())


def test_a_bar_is_drawn_without_tqdm_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with ProgressBar(enabled=True) as bar:
        bar("writing", 50, 100)
        bar("writing", 100, 100)
    assert capsys.readouterr().err == "\rwriting  50 %\rwriting 100 %\n"


def test_a_bar_is_drawn_with_tqdm_where_it_is_installed(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tqdm")
    with ProgressBar(enabled=True) as bar:
        bar("hashing", 50, 100)
        bar("writing", 100, 100)
    err = capsys.readouterr().err
    assert "hashing" in err and "writing" in err


def test_converting_imports_no_torch_and_no_llama() -> None:
    # The converter must run where neither torch nor a llama.cpp build is installed.
    code = (
        "import sys, dspark_cpp.convert, dspark_cpp.cli.convert; "
        "print([m for m in ('torch', 'transformers', 'llama_cpp') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(ROOT / "python")},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
