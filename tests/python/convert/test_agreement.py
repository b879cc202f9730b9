"""Agreement of a re-typed draft with the original is measured, and what is reported is what a session would get."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from convert_fixtures import target_of
from dspark_cpp.cli import main
from dspark_cpp.convert import convert_checkpoint, quantize_gguf
from dspark_cpp.convert.agreement import PROMPTS, Agreement, measure_agreement, read_prompts
from dspark_cpp.errors import ArgumentError, FileError, FormatError, MismatchError

VANILLA = "deepspec-qwen3-vanilla"
N_PREDICT = 60


def prompts_of(golden: dict[str, Any]) -> list[Any]:
    return [entry["prompt_ids"] for entry in golden["e2e"]]


def exact_draft(oracles: Path, name: str, out: Path, outtype: str = "f32") -> Path:
    return convert_checkpoint(oracles / "drafts" / name, target_of(oracles, name), out, outtype=outtype).path


@pytest.mark.parametrize("name", [VANILLA, "spk-dspark-bonus-dv96", "spk-dspark-swa"])
def test_a_draft_agrees_with_itself_and_accepts_what_the_reference_accepts(
    oracles: Path, tmp_path: Path, golden_json: Callable[[str], dict[str, Any]], name: str
) -> None:
    golden = golden_json(name)
    exact = exact_draft(oracles, name, tmp_path / "f32.gguf")
    n_slots = golden["draft_only"]["max_draft"]
    n_text = min(len(entry["target_only_ids"]) for entry in golden["e2e"])
    n_rounds = n_accepted = 0
    for entry in golden["e2e"]:
        for step in entry["steps"]:  # those whose whole block lies within the text, as the measurement counts them
            if step["pos"] - len(entry["prompt_ids"]) + n_slots < n_text:
                n_rounds += 1
                n_accepted += step["n_accepted"]
    found = measure_agreement(exact, exact, target_of(oracles, name), prompts_of(golden), n_predict=n_text, n_ctx=512)
    assert found == Agreement(
        n_prompts=3,
        n_positions=3 * (n_text - 2),  # the first token needs no draft, the last has none behind it
        first_slot=1.0,
        whole_block=1.0,
        by_slot=(1.0,) * n_slots,
        mean_accepted_length=(1 + n_accepted / n_rounds,) * 2,
        n_rounds=(n_rounds, n_rounds),
    )


def test_a26_a_q8_0_draft_proposes_the_first_token_of_the_original(
    oracles: Path, tmp_path: Path, golden_json: Callable[[str], dict[str, Any]]
) -> None:
    """The 99 % hold over all oracle drafts; single ones have too few positions to tell 98 % from 99 %."""
    names = sorted(p.name for p in (oracles / "drafts").iterdir() if "eagle3" not in p.name)
    n_same = n_seen = 0.0
    for name in names:
        golden = golden_json(name)
        if "e2e" not in golden:
            continue
        exact = exact_draft(oracles, name, tmp_path / "f32.gguf")
        quantize_gguf(exact, tmp_path / "q8.gguf", "q8_0")
        found = measure_agreement(
            exact,
            tmp_path / "q8.gguf",
            target_of(oracles, name),
            prompts_of(golden),
            n_predict=N_PREDICT,
            n_ctx=512,
        )
        n_seen += found.n_positions
        n_same += found.n_positions * found.first_slot
        assert found.first_slot > 0.97, name
        before, after = found.mean_accepted_length
        assert after == pytest.approx(before, abs=0.1), name
    assert n_same / n_seen >= 0.99


def test_a26_q4_0_costs_more_than_q8_0_and_f16_nothing(
    oracles: Path, tmp_path: Path, golden_json: Callable[[str], dict[str, Any]]
) -> None:
    exact = exact_draft(oracles, VANILLA, tmp_path / "f32.gguf")
    prompts = prompts_of(golden_json(VANILLA))
    rates = {}
    for outtype in ("f16", "q8_0", "q4_0"):
        quantize_gguf(exact, tmp_path / "q.gguf", outtype)
        rates[outtype] = measure_agreement(
            exact, tmp_path / "q.gguf", target_of(oracles, VANILLA), prompts, n_predict=N_PREDICT, n_ctx=512
        )
    assert rates["f16"].first_slot == 1.0
    assert rates["f16"].whole_block >= rates["q8_0"].whole_block > rates["q4_0"].whole_block > 0.3
    assert rates["q4_0"].first_slot > 0.9


@pytest.mark.slow
@pytest.mark.parametrize("quantize_heads", [False, True])
def test_a26_the_demo_draft_keeps_its_acceptance_in_q8_0_heads_and_all(
    smollm_path: Path, tmp_path: Path, quantize_heads: bool
) -> None:
    """Its Markov head has rank 64, so that `quantize_heads` has something to quantise; the oracles' have not."""
    from dspark_cpp import demo

    quantize_gguf(demo.draft_path(), tmp_path / "q8.gguf", "q8_0", quantize_heads=quantize_heads)
    found = measure_agreement(demo.draft_path(), tmp_path / "q8.gguf", smollm_path, n_predict=48)
    assert found.n_prompts == len(PROMPTS)
    assert found.n_positions > 200
    assert found.first_slot > 0.97  # 99 % is within what that many positions cannot tell apart
    before, after = found.mean_accepted_length
    assert after == pytest.approx(before, rel=0.03)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command_reports_agreement_with_a_target_and_says_so_without(
    oracles: Path,
    tmp_path: Path,
    golden_json: Callable[[str], dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
) -> None:
    exact = exact_draft(oracles, VANILLA, tmp_path / "f32.gguf")
    prompts = tmp_path / "prompts.jsonl"
    rows = [{"ids": ids} for ids in prompts_of(golden_json(VANILLA))[:2]] + [{"prompt": "The lighthouse"}]
    prompts.write_text("\n".join(map(json.dumps, rows)) + "\n")
    argv = ["quantize", str(exact), "-o", str(tmp_path / "q.gguf"), "--outtype", "q8_0"]
    target = str(target_of(oracles, VANILLA))
    assert main([*argv, "--target", target, "--prompts", str(prompts), "-n", "20", "-t", "1"]) == 0
    err = capsys.readouterr().err
    assert "F32 -> Q8_0" in err
    assert "whole block" in err and "of 54 proposals over 3 prompts" in err
    assert "tokens a round with the original" in err
    assert main(argv) == 0
    assert "agreement:    not measured; --target" in capsys.readouterr().err


def test_what_does_not_belong_together_is_known_before_anything_is_written(
    oracles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = exact_draft(oracles, VANILLA, tmp_path / "f32.gguf")
    out = tmp_path / "q.gguf"
    argv = ["quantize", str(exact), "-o", str(out), "--outtype", "q8_0", "--target"]
    assert main([*argv, str(tmp_path / "none.gguf")]) == 1
    assert "none.gguf" in capsys.readouterr().err
    assert main([*argv, str(target_of(oracles, VANILLA)), "--prompts", str(tmp_path / "none.jsonl")]) == 1
    assert "none.jsonl: cannot be read" in capsys.readouterr().err
    assert not out.exists()


def test_a_comparison_that_fails_leaves_the_complete_file_and_says_so(
    oracles: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exact = exact_draft(oracles, VANILLA, tmp_path / "f32.gguf")
    (tmp_path / "p.jsonl").write_text(json.dumps({"ids": [65] * 3000}))
    argv = ["quantize", str(exact), "-o", str(tmp_path / "q.gguf"), "--outtype", "q8_0", "--prompts"]
    assert main([*argv, str(tmp_path / "p.jsonl"), "--target", str(target_of(oracles, VANILLA))]) == 1
    err = capsys.readouterr().err
    assert err.index("wrote:") < err.index("error: the prompt has 3000 tokens")
    assert quantize_gguf(tmp_path / "q.gguf", tmp_path / "again.gguf", "q8_0").changes == []


def test_a_draft_of_another_target_or_another_draft_is_refused(
    oracles: Path, tmp_path: Path, smollm_path: Path
) -> None:
    exact = exact_draft(oracles, VANILLA, tmp_path / "a.gguf")
    with pytest.raises(MismatchError):
        measure_agreement(exact, exact, smollm_path)
    other = exact_draft(oracles, "spk-dspark-bonus-dv96", tmp_path / "b.gguf")
    with pytest.raises(ArgumentError, match="is not another file of the draft"):
        measure_agreement(exact, other, target_of(oracles, VANILLA), n_ctx=256)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("{", "p.jsonl:2: not valid JSON"),
        ("[]", 'p.jsonl:2: a line needs "prompt"'),
        ('{"prompt": 1}', 'p.jsonl:2: a line needs "prompt"'),
        ('{"turns": []}', 'p.jsonl:2: a line needs "prompt"'),
        ('{"ids": [1, "a"]}', 'p.jsonl:2: a line needs "prompt"'),
        ('{"ids": []}', 'p.jsonl:2: a line needs "prompt"'),
    ],
)
def test_a_prompt_file_that_is_wrong_is_refused_with_the_line(tmp_path: Path, line: str, error: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "fine"}\n' + line + "\n")
    with pytest.raises(FormatError, match=error):
        read_prompts(path)


def test_prompts_may_be_texts_turns_or_ids(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n\n{"turns": ["b", "c"]}\n{"ids": [1, 2]}\n')
    assert read_prompts(path) == ["a", "b", [1, 2]]
    path.write_text("\n")
    with pytest.raises(FormatError, match="no prompts in this file"):
        read_prompts(path)
    path.write_bytes(b"\xff")
    with pytest.raises(FileError, match="cannot be read"):
        read_prompts(path)
