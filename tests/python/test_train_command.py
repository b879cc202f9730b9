"""`dspark-cpp train` from prompts to a draft of a tiny target: what comes out, stopping and going on, refusals."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'dspark-cpp-python[train]')")
pytest.importorskip("matplotlib")

from dspark_cpp import Session, errors  # noqa: E402
from dspark_cpp.cli import main  # noqa: E402
from dspark_cpp.train import features as features_stage  # noqa: E402
from dspark_cpp.train import pipeline  # noqa: E402
from dspark_cpp.train import responses as responses_stage  # noqa: E402
from dspark_cpp.train.pipeline import Run, run_training  # noqa: E402
from dspark_cpp.train.recipe import Recipe  # noqa: E402
from dspark_cpp.train.shards import ShardReader  # noqa: E402

#: what the tiny target knows by heart begins so
TEXT = "The lighthouse at the end of the stone pier had two keepers, an old one and a young one. The old keeper wound"
RECIPE = Recipe(
    n_layer=1,
    block_size=4,
    n_vocab=128,
    markov_rank=16,
    steps=80,
    sequences=4,
    anchors=16,
    learning_rate=4e-3,
    held_out=0.1,
)


@pytest.fixture(autouse=True)
def one_process(monkeypatch):
    """No processes of their own for a target that fits in a cache, and no rounding that depends on threads."""
    for stage in (responses_stage, features_stage):
        monkeypatch.setattr(stage, "default_workers", lambda target: 1)
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def target(tiny_path) -> Path:
    return tiny_path("target-qwen3")


@pytest.fixture
def prompts(tmp_path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("".join(f"{TEXT[:n]}\n" for n in range(9, len(TEXT), 3)))
    return path


@pytest.fixture
def job(target, prompts, tmp_path) -> Run:
    return Run(target=target, prompts=(prompts,), out=tmp_path / "run", recipe=RECIPE, max_response=48, n_threads=1)


class Bar:
    """A progress bar that stops the run at an update, as Ctrl-C would."""

    def __init__(self, stop_after: int | None) -> None:
        self.left = stop_after

    def update(self, n: float) -> None:
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise KeyboardInterrupt

    def set_postfix_str(self, text: str, refresh: bool = True) -> None:
        pass

    def close(self) -> None:
        pass


def go(job: Run, stop: tuple[str, int] | None = None) -> list[str]:
    """Runs it; stop: (stage, updates of its bar until it is interrupted). Returns what was told."""
    told: list[str] = []
    run_training(job, told.append, lambda what, total, unit: Bar(stop[1] if stop and stop[0] == what else None))
    return told


def mean_length(target: Path, draft: Path) -> float:
    """Tokens a round of greedy decoding, by the C++ runtime."""
    llm = llama_cpp.Llama(str(target), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
    try:
        with Session(llm, str(draft), n_threads=1) as session:
            for cut in (9, 30, 61):
                list(session.generate(llm.tokenize(TEXT[:cut].encode()), max_tokens=40, stop_at_eog=False))
            stats = session.stats
            return 1 + stats.draft_n_accepted / stats.n_rounds
    finally:
        llm.close()


def test_the_command_trains_a_draft_that_beats_an_untrained_one(target, prompts, tmp_path, capsys):
    command = ["train", "--target", str(target), "--prompts", str(prompts), "-t", "1", "--max-response", "48"]
    command += ["--layers", "1", "--block", "4", "--vocab", "128", "--markov-rank", "16", "--outtype", "f32"]
    command += ["--sequences", "4", "--anchors", "16", "--lr", "4e-3", "--held-out", "0.1"]
    assert main([*command, "-o", str(tmp_path / "none"), "--steps", "1"]) == 0
    shutil.copytree(tmp_path / "none" / "features", tmp_path / "features")
    assert main([*command, "-o", str(tmp_path / "run"), "--steps", "80"]) == 0
    out = capsys.readouterr()
    assert out.out.splitlines()[-1] == str(tmp_path / "run" / "draft.gguf")
    for said in ("disk:", "time:", "held out:", "accepted:", "wrote:"):
        assert said in out.err
    assert (tmp_path / "run" / "training.png").read_bytes().startswith(b"\x89PNG")

    numbers = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert numbers["after"]["mean_accepted_length"] > numbers["before"]["mean_accepted_length"] + 0.2
    trained, untrained = (mean_length(target, tmp_path / run / "draft.gguf") for run in ("run", "none"))
    assert trained > untrained + 0.3


@pytest.mark.parametrize("stop", [("responses", 20), ("features", 1), ("training", 5)])
def test_stopped_in_any_stage_and_gone_on_with_it_ends_as_if_never_stopped(stop, job, tmp_path):
    job = dataclasses.replace(job, recipe=dataclasses.replace(RECIPE, steps=8))
    go(job)
    parts = dataclasses.replace(job, out=tmp_path / "parts")
    with pytest.raises(KeyboardInterrupt):
        go(parts, stop)
    assert not (parts.out / "draft.gguf").exists()
    go(parts)
    assert (parts.out / "draft.gguf").read_bytes() == (job.out / "draft.gguf").read_bytes()
    # and what is complete is not done again
    stamp = (parts.out / "draft.gguf").stat().st_mtime_ns
    assert go(parts)[-1].startswith("draft:       complete")
    assert (parts.out / "draft.gguf").stat().st_mtime_ns == stamp


@pytest.mark.skipif(not hasattr(os, "fork"), reason="SIGTERM cannot be caught here")
def test_sigterm_while_responses_are_made_leaves_no_process_and_no_noise(target, prompts, tmp_path):
    """It killed the command, whose worker processes then complained about what it had left open."""
    command = [sys.executable, "-u", "-m", "dspark_cpp", "train", "--target", str(target), "--prompts", str(prompts)]
    command += ["-o", str(tmp_path / "run"), "-t", "1", "--steps", "1", "--vocab", "128"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        told = ""
        while "responses" not in told:
            told += process.stderr.read(1)
            assert process.poll() is None or "responses" in told, told
        os.kill(process.pid, signal.SIGTERM)
        told += process.stderr.read()
    assert process.returncode == 130, told
    assert "stopped; the same command goes on" in told
    assert "leaked" not in told
    assert "Traceback" not in told


def test_heads_alone_fit_a_draft_to_a_changed_target(job, target, tmp_path):
    from gguf_edit import edit

    go(job)
    # a finetune that writes other letters for the same thoughts
    rows = {t.name: np.array(t.data) for t in __import__("gguf").GGUFReader(target).tensors}["output.weight"]
    order = np.arange(len(rows))
    letters = np.frombuffer(b"aeiounrt", np.uint8).astype(int)
    order[letters] = np.roll(letters, 1)
    changed = edit(target, tmp_path / "changed.gguf", tensors={"output.weight": rows[order]})
    fitted = dataclasses.replace(
        job, target=changed, out=tmp_path / "fitted", draft=job.out / "draft.gguf", heads_only=True
    )
    go(fitted)
    numbers = json.loads((fitted.out / "evaluation.json").read_text())
    assert numbers["after"]["mean_accepted_length"] > numbers["before"]["mean_accepted_length"] + 0.1


def test_features_of_several_runs_are_trained_on_together(job, tmp_path, prompts):
    job = dataclasses.replace(job, recipe=dataclasses.replace(RECIPE, steps=2))
    other = dataclasses.replace(job, out=tmp_path / "other", recipe=dataclasses.replace(RECIPE, steps=2, seed=7))
    both = dataclasses.replace(
        job, prompts=(), features=(job.out / "features", other.out / "features"), out=tmp_path / "both"
    )
    for run in (job, other):
        assert any(line.startswith("data:") for line in go(run))
    n = sum(len(ShardReader(folder)) for folder in both.features)
    told = next(line for line in go(both) if line.startswith("data:"))
    assert sum(int(number) for number in re.findall(r"(\d+) (?:sequences|more)", told)) == n


def test_features_of_one_run_serve_another(job, tmp_path):
    job = dataclasses.replace(job, recipe=dataclasses.replace(RECIPE, steps=2))
    go(job)
    other = dataclasses.replace(
        job,
        prompts=(),
        features=(job.out / "features",),
        out=tmp_path / "other",
        recipe=dataclasses.replace(RECIPE, steps=3),
    )
    go(other)
    assert (other.out / "draft.gguf").exists()


def test_the_checkpoint_is_read_by_speculators(job, oracles):
    speculators = pytest.importorskip("speculators", reason="the package speculators is not installed")
    pytest.importorskip("transformers")
    verifier = oracles / "target-qwen3"
    if not (verifier / "model.safetensors").exists():
        pytest.skip("the target's weights are in the full oracle pack only")
    job = dataclasses.replace(job, recipe=dataclasses.replace(RECIPE, steps=2), verifier=str(verifier))
    go(job)
    from safetensors.torch import load_file

    model = speculators.SpeculatorModel.from_pretrained(str(job.out / "draft"))
    theirs, stored = model.state_dict(), load_file(job.out / "draft" / "model.safetensors")
    assert set(stored) <= set(theirs)
    assert set(theirs) - set(stored) <= {"embed_tokens.weight", "verifier_lm_head.weight", "verifier_norm.weight"}
    for name, values in stored.items():
        assert torch.equal(theirs[name].to(values.dtype), values), name


@pytest.mark.slow
def test_the_draft_works_in_the_peer(job, target):
    pytest.importorskip("xllamacpp", reason="the peer is a test extra")
    go(dataclasses.replace(job, outtype="f32"))
    llm = llama_cpp.Llama(str(target), vocab_only=True, verbose=False)
    jobs = json.dumps([{"prompt": llm.tokenize(TEXT[:30].encode()), "n": 40}])
    llm.close()
    peer = Path(__file__).with_name("convert") / "peer_run.py"
    argv = [sys.executable, str(peer), str(target), str(job.out / "draft.gguf"), "4"]
    done = subprocess.run(argv, input=jobs, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    ((drafted, accepted, _),) = json.loads(done.stdout.strip().splitlines()[-1])
    assert 0 < accepted <= drafted


def refused(job: Run, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        go(job)


def test_a_missing_file_is_named_before_anything_is_made(job, tmp_path):
    for name in ("prompts", "target", "draft"):
        missing: Any = tmp_path / "missing"
        changed = dataclasses.replace(job, **{name: (missing,) if name == "prompts" else missing})
        refused(changed, errors.FileError, "missing: no such file")
    assert not job.out.exists()


def test_a_folder_of_another_run_is_not_gone_on_with(job):
    go(dataclasses.replace(job, recipe=dataclasses.replace(RECIPE, steps=1)))
    refused(job, errors.MismatchError, "of a run with the steps 1, but this one has 80; use another folder")


def test_prompts_that_are_all_too_long_are_refused(job):
    refused(dataclasses.replace(job, max_prompt=8), errors.ArgumentError, "at most 8 tokens")


def test_a_target_that_writes_no_prompts_itself_is_told_to_get_them_in_files(job, target, tmp_path):
    """The file of responses, which nobody had begun, could not be read."""
    from gguf import GGUFValueType
    from gguf_edit import edit
    from test_train_prompts import TEMPLATE

    chat = edit(target, tmp_path / "chat.gguf", keys={"tokenizer.chat_template": (TEMPLATE, GGUFValueType.STRING)})
    alone = dataclasses.replace(job, target=chat, prompts=(), n_prompts=8, max_prompt=24)
    refused(alone, errors.ArgumentError, "wrote no prompt of use by itself; give prompts in files")


def test_a_disk_that_is_too_small_is_noticed_before(job, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 99, 1))
    refused(job, errors.FileError, "are needed, but 0.0 are free")


def test_features_of_another_target_are_refused(job, tiny_path, tmp_path):
    job = dataclasses.replace(job, recipe=dataclasses.replace(RECIPE, steps=1))
    go(job)
    other = tmp_path / "other.gguf"
    data = bytearray(job.target.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    wrong = dataclasses.replace(job, target=other, prompts=(), features=(job.out / "features",), out=tmp_path / "other")
    refused(wrong, errors.MismatchError, "target_sha256")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--heads-only"], "--from DRAFT.gguf is needed"),
        (["--from", "x.gguf", "--layers", "3"], "n_layer is that of the draft"),
        (["--block", "0"], "block_size is 0"),
        (["--device", "nowhere"], "device is 'nowhere'"),
        (["--features", "x"], "prompts are of no use beside the features"),
    ],
)
def test_options_that_contradict_are_told_in_a_sentence(options, said, target, prompts, tmp_path, capsys):
    command = ["train", "--target", str(target), "--prompts", str(prompts), "-o", str(tmp_path / "run"), *options]
    assert main(command) == 1
    message = capsys.readouterr().err
    assert said in message and message.count("\n") == 1


def test_without_torch_the_command_says_what_to_install(target, prompts, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(pipeline, "find_spec", lambda name: None if name == "torch" else True)
    command = ["train", "--target", str(target), "--prompts", str(prompts), "-o", str(tmp_path / "run")]
    assert main(command) == 1
    assert "pip install 'dspark-cpp-python[train]'" in capsys.readouterr().err


def test_importing_the_package_does_not_import_torch(run_python: Callable[..., subprocess.CompletedProcess[str]]):
    code = "import sys, dspark_cpp, dspark_cpp.cli as c; c._parser(); sys.exit('torch' in sys.modules)"
    assert run_python(code).returncode == 0


def test_a_last_step_that_ends_after_its_minutes_does_not_break_the_progress_bar(capfd):
    """tqdm forgets a total that is passed by more than a half, and the run ended with a TypeError at its end."""
    from dspark_cpp.cli.train import _bar

    bar = _bar("training", 60, "s")
    for n in (30, 30.8, 1):
        bar.update(n)
    bar.close()
    assert "60/60 s" in capfd.readouterr().err
