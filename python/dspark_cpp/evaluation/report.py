"""A draft's evaluation from beginning to end: prompts, rounds, numbers, and on request a calibrated copy."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import __version__, kernels
from ..bench.prompts import PromptSet, read_prompts
from ..convert.confidence_temperature import write_confidence_temperature
from ..draft import Draft
from ..errors import ArgumentError, FileError
from ..session import Session
from ..target import open_target
from .acceptance import acceptance, by_depth
from .calibration import calibration
from .rounds import Rounds, observe
from .temperature_scaling import fit_temperatures, head_logits

__all__ = ["evaluate"]

Path = str | os.PathLike[str]

_RANDOM = "token ids: says little about a draft"


@dataclass(frozen=True)
class _Settings:
    """What all sets of prompts are decoded with."""

    n_draft_max: int
    n_predict: int
    seed: int
    tell: Callable[[str], None]


def evaluate(
    target: Path,
    draft: Path,
    prompts: Sequence[Path],
    *,
    n_predict: int = 128,
    limit: int | None = None,
    temperatures: Sequence[float] = (0.0, 1.0),
    verify: str = "match",
    calibrate: Path | None = None,
    calibration_prompts: Sequence[Path] = (),
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
        verify: "match" or "rejection", as of ``Session``; at temperature 0 they are the same.
        calibrate: A copy of the draft to write, whose confidence head has temperatures fitted at the first of
            ``temperatures``.
        calibration_prompts: Prompt files to fit on; without any, the first, third, ... prompt of each file is for
            fitting, and the report is about the others.
        n_threads: None: all cores.
        seed: Of the draws; prompt i of a set has seed + i.
        tell: Is told of the progress.

    Returns:
        A report of plain values. ``runs`` has one entry a temperature: ``overall``, ``sets`` by name and ``depths``,
        buckets of context length (see ``acceptance()`` for the numbers), and the confidence head's ``confidence``,
        with ``calibrated`` what it is with the temperatures in ``calibration`` (see ``calibration()``); None each
        where there is none.

    Raises:
        ArgumentError, FileError, FormatError, MismatchError: one sentence.
    """
    _check(n_predict=n_predict, n_ctx=n_ctx, n_threads=n_threads, limit=limit)
    _check_choices(temperatures, prompts, calibrate, calibration_prompts)
    # before the target, which takes longer: a wrong draft is then known at once
    with Draft(draft, inspect=True) as head:
        head.check_target(target)
        if calibrate is not None and not head.has_confidence:
            raise ArgumentError(f"{draft} has no confidence head, so there is nothing to calibrate")
        handed_out = head.confidence_temperature
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
        fitting = _read_sets(calibration_prompts, llm, limit)
        if calibrate is not None and not fitting:
            fitting, sets = [_every_second(s, 0) for s in sets], [_every_second(s, 1) for s in sets]
        settings = _Settings(n_draft_max, n_predict, seed, tell)
        with Session(llm, Draft(draft, target=llm), verify=verify) as session:
            fitted = _fit(session, fitting, temperatures[0], handed_out, settings) if fitting else None
            scales = (handed_out, fitted["confidence_temperature"] if fitted else None)
            runs = [_run(session, sets, t, scales, settings) for t in temperatures]
    finally:
        llm.close()
    if calibrate is not None and fitted is not None:
        write_confidence_temperature(draft, calibrate, fitted["confidence_temperature"])
    return {
        "target": os.path.basename(target),
        "draft": os.path.basename(draft),
        "version": __version__,
        "n_draft_max": n_draft_max,
        "n_ctx_train": n_ctx_train,
        "n_predict": n_predict,
        "seed": seed,
        "verify": verify,
        "confidence_temperature": None if handed_out is None else list(handed_out),
        "calibration": fitted,
        "runs": runs,
    }


def _check(**counts: int | None) -> None:
    for name, value in counts.items():
        if value is not None and value < 1:
            raise ArgumentError(f"{name} is {value}, expected 1 or more")


def _check_choices(
    temperatures: Sequence[float], prompts: Sequence[Path], calibrate: Path | None, calibration_prompts: Sequence[Path]
) -> None:
    for t in temperatures:
        if not 0 <= t < float("inf"):
            raise ArgumentError(f"the temperature is {t:g}, expected 0 (greedy) or more")
    if not temperatures or not prompts:
        raise ArgumentError(f"there are no {'temperatures' if prompts else 'prompt files'}, expected at least one")
    if calibration_prompts and calibrate is None:
        raise ArgumentError("there are prompts to calibrate on, but no name for the calibrated file")
    reported = {os.path.realpath(path) for path in prompts}
    for path in calibration_prompts:
        if os.path.realpath(path) in reported:
            raise ArgumentError(f"{path} is to be calibrated on and reported on, expected different prompts")


def _read_sets(prompts: Sequence[Path], llm: Any, limit: int | None) -> list[PromptSet]:
    sets = [read_prompts(os.fspath(path), llm, limit) for path in prompts]
    names = [s.name for s in sets]
    for name in names:
        if names.count(name) > 1:
            raise ArgumentError(f"two prompt files are named {name}, expected names that tell the sets apart")
    return sets


def _every_second(prompts: PromptSet, start: int) -> PromptSet:
    if len(prompts.prompts) < 2:
        raise ArgumentError(
            f"{prompts.name} has one prompt, expected two or more: to calibrate on one half and report on the other"
        )
    return replace(prompts, prompts=prompts.prompts[start::2])


def _observe(session: Session, prompts: PromptSet, temperature: float, settings: _Settings) -> Rounds:
    total = len(prompts.prompts)
    try:
        return observe(
            session,
            prompts.prompts,
            settings.n_predict,
            settings.n_draft_max,
            temperature=temperature,
            seed=settings.seed,
            tell=lambda n: settings.tell(f"temperature {temperature:g}, {prompts.name}: {n} of {total} prompts"),
        )
    except ArgumentError as exc:
        raise ArgumentError(f"{prompts.name}: {exc}") from None


def _fit(
    session: Session,
    sets: list[PromptSet],
    temperature: float,
    handed_out: tuple[float, ...] | None,
    settings: _Settings,
) -> dict[str, Any]:
    rounds = Rounds.together([_observe(session, s, temperature, settings) for s in sets])
    return {
        "temperature": temperature,
        "sets": [s.name for s in sets],
        "n_prompts": sum(len(s.prompts) for s in sets),
        "n_rounds": len(rounds),
        "confidence_temperature": fit_temperatures(rounds, head_logits(rounds, handed_out)),
    }


def _run(
    session: Session,
    sets: list[PromptSet],
    temperature: float,
    scales: tuple[Sequence[float] | None, Sequence[float] | None],
    settings: _Settings,
) -> dict[str, Any]:
    """scales: the temperatures of the file and those fitted now."""
    handed_out, fitted = scales
    found = {s.name: _observe(session, s, temperature, settings) for s in sets}
    everything = Rounds.together(list(found.values()))
    n = settings.n_draft_max
    confidence = calibrated = None
    if everything.confidence is not None:
        logits = head_logits(everything, handed_out)
        confidence = calibration(everything, logits, handed_out or [1.0] * n)
        calibrated = calibration(everything, logits, fitted) if fitted else None
    return {
        "temperature": temperature,
        "overall": acceptance(everything, n),
        "sets": {s.name: {"kind": "text" if s.is_text else _RANDOM, **acceptance(found[s.name], n)} for s in sets},
        "depths": by_depth(everything, n),
        "confidence": confidence,
        "calibrated": calibrated,
    }
