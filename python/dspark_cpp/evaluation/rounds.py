"""Rounds as they were seen: a target driven with a draft of full length over prompts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import llama_cpp
import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..sampling import Sampler
from ..session import Session

__all__ = ["Rounds", "observe"]

_Ints = npt.NDArray[np.int64]
_Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rounds:
    """R rounds of up to K drafted tokens each.

    A draft behind the end of the text is nobody's mistake: it is not seen.

    Shapes:
        prompt: (R,) index of the prompt. position: (R,) of the anchor. n_seen: (R,) drafts put before the target.
        n_accepted: (R,) of these, the ones that stood. confidence: (R, K), P(stands | all before it stand), NaN where
        nothing was seen; None without a confidence head.
    """

    prompt: _Ints
    position: _Ints
    n_seen: _Ints
    n_accepted: _Ints
    confidence: _Floats | None

    def __len__(self) -> int:
        return len(self.prompt)

    def where(self, mask: npt.NDArray[np.bool_]) -> Rounds:
        """Those of the rounds."""
        confidence = None if self.confidence is None else self.confidence[mask]
        return Rounds(self.prompt[mask], self.position[mask], self.n_seen[mask], self.n_accepted[mask], confidence)

    @staticmethod
    def together(parts: Sequence[Rounds]) -> Rounds:
        """Rounds of several sets; prompts are numbered on."""
        starts = np.cumsum([0, *(p.prompt.max(initial=-1) + 1 for p in parts)])
        heads = [p.confidence for p in parts if p.confidence is not None]
        return Rounds(
            np.concatenate([p.prompt + start for p, start in zip(parts, starts, strict=False)]),
            np.concatenate([p.position for p in parts]),
            np.concatenate([p.n_seen for p in parts]),
            np.concatenate([p.n_accepted for p in parts]),
            np.concatenate(heads) if len(heads) == len(parts) else None,
        )


@dataclass(frozen=True)
class _Round:
    prompt: int
    position: int
    n_seen: int
    n_accepted: int
    confidence: tuple[float, ...] | None


def observe(
    session: Session,
    prompts: Sequence[Sequence[int]],
    n_predict: int,
    n_draft_max: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    tell: Callable[[int], None] = lambda n_done: None,
) -> Rounds:
    """The rounds of a session over prompts: of each n_predict tokens and the rest of the last round, or all to its end.

    At a temperature tokens are drawn from the target's whole distribution, from one seed a prompt.

    Raises: ArgumentError: a prompt leaves no room in the context, or the session does not draft.
    """
    found: list[_Round] = []
    for index, prompt in enumerate(prompts):
        room = session.n_ctx - len(prompt) - n_draft_max - 1
        if room < 1:
            raise ArgumentError(
                f"prompt {index + 1} has {len(prompt)} tokens, expected {session.n_ctx - n_draft_max - 2} or fewer "
                f"in a context of {session.n_ctx}"
            )
        sampler = None
        if temperature > 0:
            sampler = Sampler(temp=temperature, top_k=0, top_p=1.0, min_p=0.0, seed=seed + index)
        found += _follow(session, index, prompt, min(n_predict, room), sampler)
        tell(index + 1)
    if session.disabled_reason is not None:
        raise ArgumentError(f"nothing is drafted for this target: {session.disabled_reason}")
    if temperature > 0 and session.match_reason is not None:
        raise ArgumentError(f"drafts are not verified by rejection sampling: {session.match_reason}")
    confidence = None
    if found and all(r.confidence is not None for r in found):
        confidence = np.full((len(found), n_draft_max), np.nan)
        for row, r in zip(confidence, found, strict=True):
            row[: r.n_seen] = (r.confidence or ())[: r.n_seen]
    columns = np.array([(r.prompt, r.position, r.n_seen, r.n_accepted) for r in found], np.int64).reshape(-1, 4)
    return Rounds(columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3], confidence)


def _follow(session: Session, index: int, prompt: Sequence[int], n_predict: int, sampler: Any) -> list[_Round]:
    vocab = session.target._model.vocab

    def ends(token: int) -> bool:
        return bool(llama_cpp.llama_vocab_is_eog(vocab, token))

    session.reset()
    session.append(prompt)
    token, n = session.next(sampler), 1
    rounds: list[_Round] = []
    while n < n_predict and not ends(token):
        token = session.next(sampler)
        current = session.last_round
        assert current is not None  # the call above began it
        drafted, n_accepted = current.drafted, 0
        while n_accepted < len(drafted) and token == drafted[n_accepted]:
            n_accepted += 1
            if ends(token):
                drafted = drafted[:n_accepted]
                break
            token = session.next(sampler)
        n += n_accepted + 1
        if drafted:  # else there was no room for a block
            rounds.append(_Round(index, current.position, len(drafted), n_accepted, current.confidence))
    session.settle()
    return rounds
