"""Training on features that are there: resuming, heads alone, files that do not suit, a full disk."""

from __future__ import annotations

import dataclasses
import errno
import os
import signal
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed (pip install 'dspark-cpp-python[train]')")
pytest.importorskip("matplotlib")

from dspark_cpp import errors  # noqa: E402
from dspark_cpp.train.fit import evaluate_fit, open_fit, train_fit, write_gguf_of_fit  # noqa: E402
from dspark_cpp.train.recipe import Recipe  # noqa: E402
from dspark_cpp.train.shards import Sample, ShardWriter, file_sha256  # noqa: E402

RECIPE = Recipe(
    n_layer=1,
    block_size=4,
    n_vocab=64,
    markov_rank=8,
    steps=6,
    sequences=2,
    anchors=5,
    held_out=0.2,
    learning_rate=3e-3,
)
N_EMBD, N_VOCAB, TAPS, TOP_K = 64, 320, (2, 3), 4


@pytest.fixture(autouse=True)
def one_thread():
    """Sums come out the same whatever else runs, and nobody waits for a thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def target(tiny_path) -> Path:
    return tiny_path("target-qwen3")


@pytest.fixture
def features(target, tmp_path) -> Path:
    """Made up: each token is the last one's successor, and its embedding the feature."""
    folder = tmp_path / "features"
    table = np.random.default_rng(0).standard_normal((N_VOCAB, N_EMBD * len(TAPS))).astype(np.float16)
    with ShardWriter(
        folder,
        target_sha256=file_sha256(target),
        tokenizer_sha256="-",
        taps=TAPS,
        n_embd=N_EMBD,
        n_vocab=N_VOCAB,
        top_k=TOP_K,
        seed=0,
    ) as writer:
        for i in range(20):
            tokens = (7 * i + np.arange(24)) % 60
            top_ids = (tokens[:, None] + 1 + np.arange(TOP_K)) % 60
            top_probs = np.tile([0.7, 0.1, 0.1, 0.05], (len(tokens), 1))
            writer.add(Sample(tokens, 4, table[tokens], top_ids, top_probs))
    return folder


def weights(fit) -> dict[str, torch.Tensor]:
    return {name: p.detach().clone() for name, p in fit.model.named_parameters()}


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert torch.equal(a[name], b[name]), name


def trained(folder: Path, target: Path, features: Path, recipe: Recipe = RECIPE, **settings):
    folder.mkdir(exist_ok=True)
    fit = open_fit(folder, target, (features,), recipe, **settings)
    train_fit(fit)
    return fit


def test_training_makes_the_accepted_length_grow(target, features, tmp_path):
    recipe = dataclasses.replace(RECIPE, steps=150, anchors=16, learning_rate=1e-2)
    fit = trained(tmp_path / "run", target, features, recipe)
    after, before = evaluate_fit(fit)
    assert after.mean_accepted_length > before["mean_accepted_length"] + 0.5
    assert (tmp_path / "run" / "training.png").stat().st_size > 1000


@pytest.mark.parametrize("stop_at", [1, 3, 5])
def test_an_interrupted_training_that_goes_on_equals_an_uninterrupted_one(stop_at, target, features, tmp_path):
    whole = trained(tmp_path / "whole", target, features)

    folder = tmp_path / "parts"
    folder.mkdir()
    fit = open_fit(folder, target, (features,), RECIPE)

    def interrupt(numbers):
        if numbers["step"] == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):
        train_fit(fit, interrupt)
    again = trained(folder, target, features)
    assert_same(weights(whole), weights(again))
    assert (folder / "log.jsonl").read_text().count("\n") == RECIPE.steps


def test_a_run_that_was_killed_goes_on_from_its_last_checkpoint(target, features, tmp_path):
    whole = trained(tmp_path / "whole", target, features)
    folder = tmp_path / "killed"
    folder.mkdir()
    recipe = dataclasses.replace(RECIPE, checkpoint_seconds=1e-9)  # after every step
    fit = open_fit(folder, target, (features,), recipe)

    class Killed(BaseException):
        pass

    def kill(numbers):
        if numbers["step"] == 4:
            raise Killed

    with pytest.raises(Killed):
        train_fit(fit, kill)
    assert_same(weights(whole), weights(trained(folder, target, features)))
    # the step that was logged but not in the checkpoint is there once
    assert (folder / "log.jsonl").read_text().count("\n") == RECIPE.steps


def test_a_report_that_raises_does_not_lose_the_training_since_the_last_checkpoint(target, features, tmp_path):
    """A progress bar on a closed pipe, a Ctrl-C in it: up to three minutes were lost, and the log was blamed."""
    whole = trained(tmp_path / "whole", target, features)

    folder = tmp_path / "parts"
    folder.mkdir()

    def broken(numbers):
        if numbers["step"] == 4:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    with pytest.raises(BrokenPipeError):
        train_fit(open_fit(folder, target, (features,), RECIPE), broken)
    steps = []
    fit = open_fit(folder, target, (features,), RECIPE)
    train_fit(fit, lambda numbers: steps.append(numbers["step"]))
    assert steps == [5, 6]
    assert_same(weights(fit), weights(whole))


def test_time_for_which_the_process_was_stopped_is_not_training(target, features, tmp_path, monkeypatch):
    """A SIGSTOP of minutes in one step ended a training by the clock, or jumped over its high learning rates."""
    calls, now = 0, 0.0

    def monotonic() -> float:
        nonlocal calls, now
        calls += 1  # three a step: its beginning, its end, the next checkpoint's time
        now += 3600.0 if calls == 3 * 12 else 0.5
        return now

    (tmp_path / "run").mkdir()
    recipe = dataclasses.replace(RECIPE, steps=0, minutes=0.5, checkpoint_seconds=1e9)
    fit = open_fit(tmp_path / "run", target, (features,), recipe)
    monkeypatch.setattr("dspark_cpp.train.loop.time.monotonic", monotonic)
    steps = []
    train_fit(fit, lambda numbers: steps.append(numbers["step"]))
    assert len(steps) > 40


def test_a_complete_training_is_not_done_again(target, features, tmp_path):
    trained(tmp_path / "run", target, features)
    stamp = (tmp_path / "run" / "checkpoint.safetensors").stat().st_mtime_ns
    trained(tmp_path / "run", target, features)
    assert (tmp_path / "run" / "checkpoint.safetensors").stat().st_mtime_ns == stamp


def test_heads_only_changes_nothing_but_the_heads(target, features, tmp_path):
    first = trained(tmp_path / "first", target, features)
    draft = write_gguf_of_fit(first, "f32")
    (tmp_path / "heads").mkdir()
    fit = open_fit(tmp_path / "heads", target, (features,), RECIPE, draft=draft, heads_only=True)
    before = weights(fit)
    train_fit(fit)
    changed = {name for name, p in weights(fit).items() if not torch.equal(p, before[name])}
    assert changed == {
        "lm_head.weight",
        "markov_head.markov_w1.weight",
        "markov_head.markov_w2.weight",
        "confidence_head.proj.weight",
        "confidence_head.proj.bias",
    }


@pytest.mark.parametrize("layout", ["anchor", "bonus"])
@pytest.mark.parametrize("n_vocab", [64, 0])
@pytest.mark.parametrize("markov", ["none", "vanilla", "gated", "rnn"])
def test_a_draft_comes_back_from_its_file_as_it_was(layout, n_vocab, markov, target, features, tmp_path):
    recipe = dataclasses.replace(RECIPE, layout=layout, n_vocab=n_vocab, markov=markov, steps=2)
    fit = trained(tmp_path / "run", target, features, recipe)
    draft = write_gguf_of_fit(fit, "f32")
    (tmp_path / "again").mkdir()
    again = open_fit(tmp_path / "again", target, (features,), recipe, draft=draft)
    assert again.model.shape == fit.model.shape
    for name, p in weights(again).items():
        if name != "embed_tokens.weight" and not (name == "lm_head.weight" and n_vocab == 0):
            assert torch.equal(p, weights(fit)[name].bfloat16().float()), name


def test_features_of_another_target_are_refused(tiny_path, target, features, tmp_path):
    other = tmp_path / "other.gguf"
    data = bytearray(target.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    with pytest.raises(errors.MismatchError, match="target_sha256"):
        open_fit(tmp_path, other, (features,), RECIPE)


def test_a_draft_with_other_taps_than_the_features_is_refused(target, features, converted, tmp_path):
    for folders in ((features,), (features, features)):
        named = ", ".join(map(str, folders))
        with pytest.raises(errors.MismatchError, match=rf"in {named} are inputs of layers \[2, 3\], but .* takes"):
            open_fit(tmp_path, target, folders, RECIPE, draft=converted("deepspec-qwen3-vanilla"))


def test_a_full_disk_leaves_the_last_checkpoint(target, features, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    trained(folder, target, features, dataclasses.replace(RECIPE, steps=3))
    kept = (folder / "checkpoint.safetensors").read_bytes()
    fit = open_fit(folder, target, (features,), RECIPE)

    def full(fd):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(errors.FileError, match="the disk is full"):
        train_fit(fit)
    assert (folder / "checkpoint.safetensors").read_bytes() == kept
    assert not list(folder.glob("*.part"))


def test_a_damaged_checkpoint_is_named(target, features, tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "checkpoint.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    with pytest.raises(errors.FormatError, match="damaged"):
        train_fit(open_fit(folder, target, (features,), RECIPE))


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"block_size": 0}, "block_size is 0"),
        ({"layout": "bonus", "block_size": 1}, "block_size is 1"),
        ({"layout": "middle"}, "layout is 'middle'"),
        ({"markov": "deep"}, "markov is 'deep'"),
        ({"learning_rate": 0.0}, "learning_rate is 0.0"),
        ({"held_out": 1.0}, "held_out is 1.0"),
        ({"steps": True}, "steps is True"),
        ({"n_layer": 1.5}, "n_layer is 1.5"),
    ],
)
def test_a_recipe_with_a_value_out_of_range_is_refused(values, said):
    with pytest.raises(errors.ArgumentError, match=said):
        Recipe(**values)
