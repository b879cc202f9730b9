"""From prompts to a draft: the stages of `dspark-cpp train`, skipped where complete and gone on with where not.

The folder of a run:

    run.json            what the run is of; a folder is never continued with anything else
    prompts.jsonl       tokens of the prompts; written.jsonl what the target wrote, if it had to ask itself
    responses.jsonl     what the target answers
    features/           its hidden states and distributions over both (shards.py)
    ...                 the rest is of fit.py
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from .. import kernels
from ..convert.gguf_file import GGUFFile
from ..convert.target import open_target
from ..errors import ArgumentError, FileError, FormatError, MismatchError
from .atomic import write_atomically
from .features import bytes_per_token, write_features
from .prompts import read_prompts, self_prompts
from .recipe import Recipe
from .responses import Prompt, ResponseSettings, generate_responses, read_responses
from .shape import check_target, default_taps, draft_shape
from .shards import ShardReader, file_sha256
from .workers import default_workers

__all__ = ["Run", "require_torch", "run_training"]

TOP_K = 32
_GIB = 1 << 30
#: a checkpoint holds the weights and two moments of each, and is written beside the one before
_CHECKPOINTS = 2 * 3 * 4


@dataclass(frozen=True)
class Run:
    """What `dspark-cpp train` is asked for. Paths that are None are not used.

    * draft: an existing draft to train on; heads_only: only what comes after its layers.
    * features: the features of other runs, instead of prompts.
    * n_prompts: how many the target writes itself, where there are neither prompts nor features.
    * max_prompt, max_response: tokens; longer prompts are left out, longer responses cut.
    * max_disk: GiB that the features may take; what does not fit is left out.
    """

    target: Path
    prompts: tuple[Path, ...]
    out: Path
    recipe: Recipe
    draft: Path | None = None
    heads_only: bool = False
    features: tuple[Path, ...] = ()
    taps: tuple[int, ...] = ()
    n_prompts: int = 4000
    max_prompt: int = 512
    max_response: int = 256
    max_disk: float = 20.0
    n_threads: int = os.cpu_count() or 1
    device: str = "cpu"
    outtype: str = "q8_0"
    verifier: str | None = None

    def __post_init__(self) -> None:
        if self.heads_only and self.draft is None:
            raise ArgumentError("heads alone can be trained of an existing draft only; --from DRAFT.gguf is needed")
        if self.draft is not None and self.taps:
            raise ArgumentError("the taps are those of the draft; they cannot be chosen with --from")
        if self.prompts and self.features:
            raise ArgumentError("prompts are of no use beside the features of other runs; give one of them")
        for name in ("max_prompt", "max_response", "n_prompts"):
            if getattr(self, name) < 8:
                raise ArgumentError(f"{name} is {getattr(self, name)}, but 8 or more is needed")
        if self.max_disk <= 0:
            raise ArgumentError(f"max_disk is {self.max_disk}, but more than 0 is needed")


Tell = Callable[[str], None]
Bar = Callable[[str, float, str], Any]
"""bar(what, total, unit) gives what has update(n), set_postfix_str(text) and close(), as tqdm does."""


def require_torch() -> None:
    """Raises: ArgumentError: A package that the training needs is missing."""
    missing = [name for name in ("torch", "matplotlib") if find_spec(name) is None]
    if missing:
        raise ArgumentError(f"training needs {missing[0]}: pip install 'dspark-cpp-python[train]'")


def run_training(run: Run, tell: Tell, bar: Bar) -> Path:
    """All stages; returns the draft's file. Run again after an interruption it goes on.

    Raises: MismatchError: The folder is of another run, or the parts do not belong together. ArgumentError, FileError,
    FormatError: One of the files does not allow it. What is complete stays in any case.
    """
    require_torch()
    for path in (run.target, *run.prompts, *([run.draft] if run.draft else [])):
        if not path.is_file():
            raise FileError(f"{path}: no such file")
    if run.draft is not None:
        check_target(draft_shape(GGUFFile(run.draft)), GGUFFile(run.target))
    open_target(run.target)  # refused here, if it is no target
    _claim(run)
    features = run.features or (_make_features(run, tell, bar),)
    return _fit(run, features, tell, bar)


def _claim(run: Run) -> None:
    """Make the folder, or make sure that it is this run's."""
    about: dict[str, Any] = {
        "target": file_sha256(run.target),
        "prompts": [file_sha256(path) for path in run.prompts],
        "features": [str(folder.resolve()) for folder in run.features],
        "draft": file_sha256(run.draft) if run.draft else None,
        "heads_only": run.heads_only,
        "taps": list(run.taps),
        "n_prompts": run.n_prompts,
        "max_prompt": run.max_prompt,
        "max_response": run.max_response,
        "max_disk": run.max_disk,
        "recipe": asdict(run.recipe),
    }
    path = run.out / "run.json"
    try:
        run.out.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            write_atomically(path, (json.dumps(about, indent=1) + "\n").encode(), "what the run is of")
            return
        seen = json.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise e if isinstance(e, FileError) else FileError(f"{run.out}: cannot be used: {e.strerror}") from None
    except ValueError as e:
        raise FormatError(f"{path} is damaged: {e}") from None
    for key, value in _flat(about).items():
        if _flat(seen).get(key) != value:
            raise MismatchError(
                f"{run.out} is of a run with the {key} {_flat(seen).get(key)!r}, but this one has {value!r}; "
                "use another folder"
            )


def _flat(about: dict[str, Any]) -> dict[str, Any]:
    recipe = about.get("recipe")
    return {**{k: v for k, v in about.items() if k != "recipe"}, **(recipe if isinstance(recipe, dict) else {})}


def _prompts(run: Run, bar: Bar) -> list[Prompt]:
    """The prompts as tokens, shuffled: the beginning of anything made of them is like the rest."""
    path = run.out / "prompts.jsonl"
    if not path.exists():
        if run.prompts:
            found = read_prompts(run.target, run.prompts, run.max_prompt)
        else:
            progress = bar("prompts", 1, "set")
            try:
                found = self_prompts(
                    run.target,
                    run.n_prompts,
                    run.out / "written.jsonl",
                    max_tokens=min(200, run.max_prompt),
                    seed=run.recipe.seed,
                )
            finally:
                progress.close()
            if not found:
                raise ArgumentError(f"{run.target}: the target wrote no prompt of use by itself; give prompts in files")
        order = np.random.default_rng([run.recipe.seed, 0]).permutation(len(found))
        lines = (json.dumps(found[i]._asdict(), separators=(",", ":")) for i in order)
        write_atomically(path, "".join(f"{line}\n" for line in lines).encode(), "the prompts")
    return [Prompt(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _make_features(run: Run, tell: Tell, bar: Bar) -> Path:
    done = run.out / "features.done"
    folder = run.out / "features"
    if done.exists():
        tell(f"features:    complete, {ShardReader(folder).n_tokens} tokens")
        return folder
    prompts = _prompts(run, bar)
    target = open_target(run.target)
    taps = draft_shape(GGUFFile(run.draft)).taps if run.draft else run.taps or default_taps(target.n_layer)
    n_prompt = sum(len(p.tokens) for p in prompts)
    n_response = len(prompts) * run.max_response
    n_bytes = min(
        (n_prompt + n_response) * bytes_per_token(len(taps), target.hidden_size, TOP_K), int(run.max_disk * _GIB)
    )
    _estimate(run, n_prompt, n_response, n_bytes, tell)

    responses = run.out / "responses.jsonl"
    settings = ResponseSettings(max_tokens=run.max_response, seed=run.recipe.seed)
    progress = bar("responses", len(prompts), "prompt")
    if responses.exists():
        progress.update(min(sum(1 for _ in read_responses(responses)), len(prompts)))
    n = 0
    try:
        for response in generate_responses(run.target, prompts, responses, settings):
            n += len(response.response)
            progress.update(1)
            progress.set_postfix_str(f"{n} tokens", refresh=False)
    finally:
        progress.close()

    made = list(read_responses(responses))
    n_ctx = max(len(r.prompt) + len(r.response) for r in made)
    progress = bar("features", sum(len(r.prompt) + len(r.response) for r in made), "token")
    try:
        for n_tokens in write_features(
            run.target,
            made,
            folder,
            taps,
            n_ctx=n_ctx,
            top_k=min(TOP_K, target.n_vocab),
            seed=run.recipe.seed,
            max_bytes=int(run.max_disk * _GIB),
        ):
            progress.update(n_tokens)
    finally:
        progress.close()
    write_atomically(done, b"", "that the features are complete")
    return folder


def _estimate(run: Run, n_prompt: int, n_response: int, n_bytes: int, tell: Tell) -> None:
    """Tell what the run will take, before it takes it.

    Raises: FileError: The disk does not have that much.
    """
    have = sum(f.stat().st_size for f in (run.out / "features").glob("*/*.npy"))
    needed = max(0, n_bytes - have) + _checkpoint_bytes(run)
    free = shutil.disk_usage(run.out).free
    tell(
        f"disk:        up to {n_bytes / _GIB:.1f} GiB of features (at most {run.max_disk:g}), "
        f"{_checkpoint_bytes(run) / _GIB:.1f} GiB of checkpoints; {free / _GIB:.1f} GiB are free"
    )
    if needed > free:
        raise FileError(
            f"{run.out}: {needed / _GIB:.1f} GiB are needed, but {free / _GIB:.1f} are free; "
            "fewer prompts, shorter responses or a lower --max-disk are needed"
        )
    speed = _tokens_per_second(run)
    # of a batch of many sequences a generated token takes about twice as long as one of a prompt
    making = (2 * n_response + n_prompt + n_response) / speed / 60
    training = f"{run.recipe.steps} steps" if run.recipe.steps else f"{run.recipe.minutes:g} minutes"
    tell(f"time:        up to {making:.0f} minutes for responses and features at {speed:.0f} tokens/s, then {training}")


def _checkpoint_bytes(run: Run) -> int:
    """Of the draft's layers, its head and its Markov tables, roughly."""
    target = open_target(run.target)
    rows = min(run.recipe.n_vocab or target.n_vocab, target.n_vocab)
    n = run.recipe.n_layer * 12 * target.hidden_size**2 + rows * target.hidden_size
    return _CHECKPOINTS * (n + (rows + target.n_vocab) * run.recipe.markov_rank)


def _tokens_per_second(run: Run) -> float:
    """Of prompts, by as many processes as the stages use, measured in one of them."""
    import llama_cpp

    kernels.install("auto", run.target)
    workers = default_workers(run.target)
    threads = max(1, run.n_threads // workers)
    llm = llama_cpp.Llama(
        str(run.target), n_ctx=256, n_threads_batch=threads, n_batch=256, flash_attn=True, verbose=False
    )
    try:
        tokens = [i % max(1, min(llm.n_vocab(), 1000)) for i in range(256)]
        llm.eval(tokens)  # pages of the file are read
        llm.reset()
        began = time.monotonic()
        llm.eval(tokens)
        return workers * len(tokens) / max(time.monotonic() - began, 1e-6)
    finally:
        llm.close()


def _fit(run: Run, features: tuple[Path, ...], tell: Tell, bar: Bar) -> Path:
    import torch

    from .fit import evaluate_fit, open_fit, train_fit, write_gguf_of_fit

    out = run.out / "draft.gguf"
    if out.exists():
        tell(f"draft:       complete, {out}")
        return out
    torch.set_num_threads(run.n_threads)
    fit = open_fit(
        run.out, run.target, features, run.recipe, draft=run.draft, heads_only=run.heads_only, device=run.device
    )
    n_parameters = sum(p.numel() for p in (fit.model.heads() if run.heads_only else fit.model.parameters()))
    n_parameters -= 0 if run.heads_only else fit.model.embed_tokens.weight.numel()
    tell(
        f"data:        {len(fit.data.training)} sequences, {len(fit.data.held_out)} more held out; "
        f"{fit.reader.n_response_tokens} response tokens"
    )
    tell(f"draft:       {n_parameters / 1e6:.1f} M parameters to train, taps {list(fit.model.shape.taps)}")
    steps = run.recipe.steps
    progress = bar("training", steps or round(60 * run.recipe.minutes), "step" if steps else "s")
    shown = 0.0

    def report(numbers: dict[str, Any]) -> None:
        nonlocal shown
        at = numbers["step"] if steps else numbers["seconds"]
        progress.update(at - shown)
        shown = at
        progress.set_postfix_str(f"loss {numbers['loss']:.3f}, length {numbers['expected_length']:.2f}", refresh=False)

    try:
        train_fit(fit, report)
    finally:
        progress.close()
    after, before = evaluate_fit(fit)
    tell(
        f"held out:    {after.mean_accepted_length:.2f} tokens a round, {before['mean_accepted_length']:.2f} before "
        f"({after.n_rounds} rounds)"
    )
    tell(f"accepted:    {' '.join(f'{a:.2f}' for a in after.acceptance)} by position, if all before were")
    write_gguf_of_fit(fit, run.outtype, run.verifier)
    tell(f"wrote:       {out}; {run.out / 'training.png'} is the run as a picture")
    return out
