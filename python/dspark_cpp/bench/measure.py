"""Runs the arms in turns and sums up what they did."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp

from .. import kernels
from .arms import Arm, LlamaArm, Run
from .prompts import PromptSet

__all__ = ["measure_sets", "measure_t_n"]


def measure_sets(
    arms: Sequence[Arm], sets: Sequence[PromptSet], n_predict: int, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Every prompt by every arm, in an order that changes from prompt to prompt; a report of plain values."""
    for arm in arms:  # graphs, buffers and measured costs
        arm.run(sets[0].prompts[0], min(n_predict, 32))
    found: dict[str, dict[str, list[Run]]] = {}
    done, total = 0, sum(len(s.prompts) for s in sets)
    for prompts in sets:
        runs = found[prompts.name] = {arm.name: [] for arm in arms}
        for i, prompt in enumerate(prompts.prompts):
            for arm in (*arms[i % len(arms) :], *arms[: i % len(arms)]):
                runs[arm.name].append(arm.run(prompt, n_predict))
            done += 1
            tell(f"{done} of {total} prompts")
    report: dict[str, Any] = {"sets": {}}
    for prompts in sets:
        report["sets"][prompts.name] = _summary(arms, found[prompts.name])
        report["sets"][prompts.name]["kind"] = "text" if prompts.is_text else "token ids: says little about a draft"
    everything = {arm.name: [run for runs in found.values() for run in runs[arm.name]] for arm in arms}
    report["overall"] = _summary(arms, everything)
    return report


def _summary(arms: Sequence[Arm], runs: dict[str, list[Run]]) -> dict[str, Any]:
    plain = next(arm.name for arm in arms if arm.group == "plain")
    own = next(arm.name for arm in arms if arm.group == "own")
    peers = [arm.name for arm in arms if arm.group == "peer"]
    summary: dict[str, Any] = {"arms": {arm.name: _arm(runs[arm.name], runs[plain], runs[own]) for arm in arms}}
    summary["speedup_vs_plain"] = summary["arms"]["auto"]["speedup_vs_plain"]
    summary["speedup_vs_no_draft"] = summary["arms"]["auto"]["speedup_vs_no_draft"]
    if peers:
        best = max(peers, key=lambda name: _geometric_mean([run.rate for run in runs[name]]))
        summary["best_peer"] = best
        summary["speedup_vs_peer"] = _ratio(runs["auto"], runs[best])
    drafted = [arm for arm in arms if arm.group == "own" and arm.name != own]
    pairs = [(a.ids, b.ids) for arm in drafted for a, b in zip(runs[arm.name], runs[own], strict=True)]
    summary["tokens_compared"] = sum(len(b) for _, b in pairs)
    summary["texts_that_differ"] = sum(a != b for a, b in pairs)
    summary["acceptance"] = summary["arms"][drafted[-2].name]["acceptance_per_position"] if len(drafted) > 1 else []
    return summary


def _arm(runs: list[Run], plain: list[Run], own: list[Run]) -> dict[str, Any]:
    rates = [run.rate for run in runs if len(run.ids) > 1]
    stats = [run.stats for run in runs if run.stats is not None]
    row: dict[str, Any] = {
        "tokens_per_second": round(_geometric_mean(rates), 2),
        "speedup_vs_plain": _ratio(runs, plain),
        "speedup_vs_no_draft": _ratio(runs, own),
        "prefill_ratio": round(
            statistics.median(a.prefill_seconds / b.prefill_seconds for a, b in zip(runs, plain, strict=True)), 3
        ),
        "draft_n": sum(run.draft_n for run in runs),
        "draft_n_accepted": sum(run.draft_n_accepted for run in runs),
    }
    rounds = sum(s.n_rounds for s in stats)
    if rounds:
        drafted = [sum(column) for column in zip(*(s.n_drafted_at for s in stats), strict=True)]
        accepted = [sum(column) for column in zip(*(s.n_accepted_at for s in stats), strict=True)]
        row["tokens_per_round"] = round(sum(s.n_emitted for s in stats) / rounds, 3)
        row["mean_draft_length"] = round(row["draft_n"] / rounds, 3)
        row["acceptance_per_position"] = [round(a / d, 3) for a, d in zip(accepted, drafted, strict=True) if d]
        row["ms_per_round"] = {
            phase: round(1e3 * sum(getattr(s, f"t_{phase}") for s in stats) / rounds, 3)
            for phase in ("draft", "verify", "sample")
        }
    elif row["draft_n"]:
        # every pass of the peer gives one token of its own; so does every pass of the prompt lookup
        n_passes = sum(len(run.ids) - run.draft_n_accepted for run in runs)
        row["tokens_per_round"] = round(sum(len(run.ids) for run in runs) / n_passes, 3)
        row["mean_draft_length"] = round(row["draft_n"] / n_passes, 3)
    return row


def _ratio(runs: list[Run], base: list[Run]) -> float:
    pairs = [(a.rate, b.rate) for a, b in zip(runs, base, strict=True) if len(a.ids) > 1 and len(b.ids) > 1]
    return round(_geometric_mean([a / b for a, b in pairs]), 3)


def _geometric_mean(values: Sequence[float]) -> float:
    return math.exp(statistics.fmean(math.log(v) for v in values)) if values else float("nan")


def measure_t_n(arms: Sequence[Arm], n_max: int, repeats: int = 15) -> dict[str, dict[int, float]]:
    """Milliseconds of decoding n tokens behind a short prompt, by llama.cpp's kernels and by ours; medians."""
    models = [arm for arm in arms if isinstance(arm, LlamaArm) and arm.name in ("llama-cpp-python", "no draft")]
    sizes = sorted({1, 2, 3, 4, 6, 8, 1 + n_max})
    took: dict[str, dict[int, list[float]]] = {arm.name: {n: [] for n in sizes} for arm in models}
    for _ in range(repeats):
        for arm in models:
            llm = arm.llm
            kernels.install("off" if arm.group == "plain" else "auto")
            memory = llama_cpp.llama_get_memory(llm.ctx)
            token = llm.token_bos() if llm.token_bos() >= 0 else 0
            llm.reset()
            llm.eval([token] * 16)
            for n in sizes:
                llama_cpp.llama_memory_seq_rm(memory, 0, 16, -1)
                llm._batch.set_batch(batch=[token] * n, n_past=16, logits_all=True)
                start = time.perf_counter()
                llm._ctx.decode(llm._batch)
                took[arm.name][n].append(1e3 * (time.perf_counter() - start))
            llama_cpp.llama_memory_seq_rm(memory, 0, 16, -1)
            llm.reset()
    return {name: {n: round(statistics.median(v), 3) for n, v in times.items()} for name, times in took.items()}
