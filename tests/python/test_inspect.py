"""dspark-cpp inspect: a draft file and a checkpoint folder are shown alike, and judged against a target alike."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from dspark_cpp.cli import main
from dspark_cpp.convert.gguf_file import GGUFFile
from gguf_edit import edit

VANILLA, BONUS = "deepspec-qwen3-vanilla", "spk-dspark-bonus-dv96"


@pytest.fixture
def inspect(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """inspect(*argv): exit code and the JSON object."""

    def run(*argv: object) -> tuple[int, Any]:
        code = main(["inspect", "--json", *map(str, argv)])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.parametrize("name", [VANILLA, BONUS, "spk-dspark-swa", "spk-dflash", "deepspec-gemma4"])
def test_a_folder_and_its_conversion_say_the_same(
    oracles: Path,
    converted: Callable[..., Path],
    golden_json: Callable[[str], dict[str, Any]],
    tiny_path: Callable[[str], Path],
    inspect: Callable[..., tuple[int, Any]],
    name: str,
) -> None:
    target = tiny_path(golden_json(name)["target"])
    code, folder = inspect(oracles / "drafts" / name, "--target", target)
    assert code == 0
    code, file = inspect(converted(name), "--target", target)
    assert code == 0
    assert folder["fits"] is file["fits"] is True
    # the file does not say what it borrows, and counts what it holds
    but = {"path", "architecture", "embedding", "head", "n_params", "n_bytes", "n_vocab_draft"}
    both = (set(folder) & set(file)) - but
    assert {k: folder[k] for k in both} == {k: file[k] for k in both}
    assert {"schema", "layout", "target_layers", "target_layer_outputs", "block_size", "markov", "confidence"} <= both
    assert folder["target_layers"] == golden_json(name)["layer_inputs"]
    assert folder["target_layer_outputs"] == [i - 1 for i in folder["target_layers"]]


def test_a_folder_says_where_its_layout_came_from(oracles: Path, inspect: Callable[..., tuple[int, Any]]) -> None:
    _, said = inspect(oracles / "drafts" / BONUS)
    assert (said["layout"], said["layout_reason"]) == ("1+N", "sample_from_anchor in the config")
    assert said["layer_ids_key"] == "aux_hidden_state_layer_ids"
    _, silent = inspect(oracles / "drafts" / VANILLA)
    assert silent["layout"] == "anchor-first"
    assert silent["layout_reason"] == "no sample_from_anchor in the config: DeepSpec drafts are anchor-first"
    assert silent["layer_ids_key"] == "target_layer_ids"
    assert "fits" not in silent
    assert silent["types"] == ["BF16"]


def test_a_folder_for_another_target_is_shown_and_does_not_fit(
    oracles: Path, smollm_path: Path, inspect: Callable[..., tuple[int, Any]]
) -> None:
    code, info = inspect(oracles / "drafts" / VANILLA, "--target", smollm_path)
    assert code == 1
    assert info["fits"] is False
    assert "hidden_size is 64" in info["misfit"] and "has 576" in info["misfit"]
    assert info["layout"] == "anchor-first"


def test_text_is_one_fact_a_line(oracles: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", str(oracles / "drafts" / BONUS)]) == 0
    lines = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert lines["kind"] == "DSpark"
    assert lines["layout"] == "1+N"
    assert lines["n_vocab_draft"] == "96"
    assert lines["target_layers"] == "1, 3, 5"
    assert lines["target_layer_outputs"] == "0, 2, 4"
    assert lines["confidence"] == "yes"


def test_a_broken_or_foreign_folder_is_1_with_one_line(
    oracles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", str(tmp_path)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == f"dspark-cpp inspect: error: {tmp_path / 'config.json'}: no such file\n"
    config = json.loads((oracles / "drafts" / VANILLA / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes((oracles / "drafts" / VANILLA / "model.safetensors").read_bytes())
    for change, error in (
        ({"architectures": ["Eagle3Model"]}, "EAGLE-3 draft, which is not supported"),
        ({"mask_token_id": None}, "mask_token_id is missing"),
        ({"hidden_size": "many"}, "hidden_size is "),
        ({"target_layer_ids": [0, 2]}, "the list of layer ids is likely wrong"),
        ({"target_hidden_size": 80}, "target_hidden_size is 80, but the target that the config describes has 64"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, **change}))
        assert main(["inspect", str(tmp_path)]) == 1
        err = capsys.readouterr().err
        assert error in err
        assert err.count("\n") == 1


def test_a_folder_is_shown_without_llama_cpp(oracles: Path) -> None:
    """Before anything is loaded: a checkpoint can be looked at where no llama.cpp is."""
    code = (
        "import sys; from dspark_cpp.cli import main; "
        "code = main(['inspect', sys.argv[1]]); "
        "print([m for m in ('torch', 'llama_cpp') if m in sys.modules]); sys.exit(code)"
    )
    env = {"PYTHONPATH": ":".join(p for p in sys.path if p)}
    argv = [sys.executable, "-c", code, oracles / "drafts" / VANILLA]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_target_with_one_other_token_does_not_fit(
    converted: Callable[..., Path],
    tiny_path: Callable[[str], Path],
    tmp_path: Path,
    inspect: Callable[..., tuple[int, Any]],
) -> None:
    """Sizes alone would let a draft of another tokenizer through."""
    target = tiny_path("target-qwen3")
    tokens = [t.decode("utf-8", "surrogateescape") for t in GGUFFile(target).metadata["tokenizer.ggml.tokens"].value]
    tokens[70], tokens[71] = tokens[71], tokens[70]
    other = edit(target, tmp_path / "other.gguf", keys={"tokenizer.ggml.tokens": tokens})
    code, info = inspect(converted(VANILLA), "--target", other)
    assert (code, info["fits"]) == (1, False)
    assert "token 70" in info["misfit"]
