"""A draft's evaluation from beginning to end: prompts, rounds, numbers."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from .. import __version__, kernels
from ..bench.prompts import PromptSet, read_prompts
from ..draft import Draft
from ..errors import ArgumentError, FileError
from ..session import Session
from ..target import open_target
from .acceptance import acceptance, by_depth
from .rounds import Rounds, observe

__all__ = ["evaluate"]

_RANDOM = "token ids: says little about a draft"


def evaluate(
    target: str | os.PathLike[str],
    draft: str | os.PathLike[str],
    prompts: Sequence[str | os.PathLike[str]],
    *,
    n_predict: int = 128,
    limit: int | None = None,
    temperatures: Sequence[float] = (0.0, 1.0),
    n_ctx: int = 2048,
    n_threads: int | None = None,
    seed: int = 0,
    tell: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Drives a target with a draft, always at its full length, and counts which of its tokens stand.

    Args:
        target, draft: Paths of GGUF files.
        prompts: Prompt files; each is a set of its own in the report (see ``bench.prompts.read_prompts``).
        n_predict: Tokens of each prompt, and what the last round adds.
        limit: Prompts of each file; None: all.
        temperatures: 0 is greedy; else tokens are drawn from the target's whole distribution at that temperature.
        n_threads: None: all cores.
        seed: Of the draws; prompt i has seed + i.
        tell: Is told of the progress.

    Returns:
        A report of plain values. ``runs`` has one entry a temperature, with ``overall``, ``sets`` by name and
        ``depths``, buckets of context length; see ``acceptance()`` for the numbers.

    Raises:
        ArgumentError, FileError, FormatError, MismatchError: one sentence.
    """
    _check(n_predict=n_predict, n_ctx=n_ctx, n_threads=n_threads, limit=limit)
    for t in temperatures:
        if not 0 <= t < float("inf"):
            raise ArgumentError(f"the temperature is {t:g}, expected 0 (greedy) or more")
    if not temperatures or not prompts:
        raise ArgumentError(f"there are no {'temperatures' if prompts else 'prompt files'}, expected at least one")
    # before the target, which takes longer: a wrong draft is then known at once
    with Draft(draft, inspect=True) as head:
        head.check_target(target)
        n_draft_max, n_ctx_train = head.n_draft_max, int(head.describe()["n_ctx_train"])
    threads = n_threads or os.cpu_count() or 1
    active = kernels.install("auto", target).active
    try:
        llm = open_target(
            target, flash_attn=active, n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, verbose=False
        )
    except ValueError as exc:
        raise FileError(f"cannot load the target {target}: {exc}") from None
    try:
        sets = _read_sets(prompts, llm, limit)
        runs = []
        with Session(llm, Draft(draft, target=llm)) as session:
            for t in temperatures:
                rounds = {s.name: _observe(session, s, n_predict, n_draft_max, t, seed, tell) for s in sets}
                runs.append(_run(t, sets, rounds, n_draft_max))
    finally:
        llm.close()
    return {
        "target": os.path.basename(target),
        "draft": os.path.basename(draft),
        "version": __version__,
        "n_draft_max": n_draft_max,
        "n_ctx_train": n_ctx_train,
        "n_predict": n_predict,
        "seed": seed,
        "runs": runs,
    }


def _check(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ArgumentError(f"{name} is {value}, expected 1 or more")


def _read_sets(prompts: Sequence[str | os.PathLike[str]], llm: Any, limit: int | None) -> list[PromptSet]:
    sets = [read_prompts(os.fspath(path), llm, limit) for path in prompts]
    names = [s.name for s in sets]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"two prompt files are named {name}, expected names that tell the sets apart")
    return sets


def _observe(
    session: Session,
    prompts: PromptSet,
    n_predict: int,
    n_draft_max: int,
    temperature: float,
    seed: int,
    tell: Callable[[str], None],
) -> Rounds:
    total = len(prompts.prompts)
    try:
        return observe(
            session,
            prompts.prompts,
            n_predict,
            n_draft_max,
            temperature=temperature,
            seed=seed,
            tell=lambda n: tell(f"temperature {temperature:g}, {prompts.name}: {n} of {total} prompts"),
        )
    except ArgumentError as exc:
        raise ArgumentError(f"{prompts.name}: {exc}") from None


def _run(temperature: float, sets: list[PromptSet], rounds: dict[str, Rounds], n_draft_max: int) -> dict[str, Any]:
    everything = Rounds.together(list(rounds.values()))
    return {
        "temperature": temperature,
        "overall": acceptance(everything, n_draft_max),
        "sets": {
            s.name: {"kind": "text" if s.is_text else _RANDOM, **acceptance(rounds[s.name], n_draft_max)} for s in sets
        },
        "depths": by_depth(everything, n_draft_max),
    }
