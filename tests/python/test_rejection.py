"""Rejection sampling, and sample-and-match, against exactly known distributions.

Stands for: verification that biases the text (a residual over the wrong vocabulary, drafts decided with a look at what
follows, a temperature that only one side knows), draws that cannot be seeded, samplers that see a token twice or a
draft that fell, and banned tokens that a draft smuggles in.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import pytest
from dspark_cpp import ArgumentError, Sampler, Session
from scripted import Recorder
from tiny_bigram import LIVE, V, law, random_table, write_draft, write_target

TABLE = random_table(1)
DRAFTS = {
    "good": {"table": TABLE + 0.3 * random_table(2)},
    "equal": {"table": TABLE},
    "bad": {"table": random_table(3)},
    # the likeliest tokens are among those that the draft does not have
    "reduced": {"table": TABLE, "rows": [10, *LIVE[1:4], 200]},
    # cuts its proposals by a confidence that the drafts themselves decide
    "confident": {"table": random_table(4), "confidence": np.resize(np.array([2, -2, 1], np.float32), V)},
}
PLAIN = {"top_k": 0, "top_p": 1.0, "min_p": 0.0}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, tiny_path: Callable[[str], Path]) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("bigram")
    made = {name: write_draft(folder / f"{name}.gguf", **DRAFTS[name]) for name in DRAFTS}  # type: ignore[arg-type]
    return {"target": write_target(tiny_path("target-qwen3"), folder / "target.gguf", TABLE), **made}


@pytest.fixture(scope="module")
def llm(files: dict[str, Path]) -> Iterator[llama_cpp.Llama]:
    one = llama_cpp.Llama(str(files["target"]), n_ctx=1024, n_threads=1, n_threads_batch=1, verbose=False)
    yield one
    one.close()


@pytest.fixture
def session(llm: llama_cpp.Llama, files: dict[str, Path]) -> Iterator[Callable[..., Session]]:
    opened = []

    def open_one(draft: Any, verify: str = "rejection", **settings: Any) -> Session:
        path = str(files[draft]) if isinstance(draft, str) else draft
        opened.append(Session(llm, path, verify=verify, n_threads=1, **settings))
        return opened[-1]

    yield open_one
    for one in opened:
        one.close()


def write(session: Session, n: int, sampler: Any) -> tuple[np.ndarray, np.ndarray]:
    """n tokens, and of each the number of the draft that was decided with it, -1 for none."""
    tokens, slots = [], []
    while len(tokens) < n:
        session.reset()
        session.append([256, LIVE[0]])
        for _ in range(min(1000, n - len(tokens))):
            tokens.append(session.next(sampler))
            r = session.last_round
            slots.append(r.n_accepted if r is not None and r.n_accepted < len(r.drafted) else -1)
        tokens.append(-1)  # the next part does not follow this one
        slots.append(-1)
    return np.array(tokens[:-1]), np.array(slots[:-1])


def chi_square(counts: np.ndarray, p: np.ndarray) -> float:
    """How many deviations the counts [..., next] are too far from their law (Wilson and Hilferty's normal scale)."""
    x, k = 0.0, 0
    for seen, law_of_row in zip(counts.reshape(-1, counts.shape[-1]), p.reshape(-1, counts.shape[-1]), strict=True):
        expected = seen.sum() * law_of_row
        assert not seen[law_of_row == 0].any()
        order = np.argsort(-expected)
        # tokens that are expected seldom count as one
        groups = np.minimum(np.arange(len(order)), max(0, int((expected >= 5).sum()) - 1))
        e, o = np.bincount(groups, expected[order]), np.bincount(groups, seen[order])
        if len(e) > 1:
            x += float(((o - e) ** 2 / e).sum())
            k += len(e) - 1
    return ((x / k) ** (1 / 3) - (1 - 2 / (9 * k))) / (2 / (9 * k)) ** 0.5


def deviations(tokens: np.ndarray, slots: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """Of a token after the last two, and of one at each place of a round after the last."""
    n = len(LIVE)
    id_of = np.full(V, -1)
    id_of[list(LIVE)] = range(n)
    x = np.where(tokens >= 0, id_of[tokens], -2)
    assert (x[tokens >= 0] >= 0).all(), "a token without probability was written"
    a, b, c, s = x[:-2], x[1:-1], x[2:], slots[2:]
    whole = (a >= 0) & (b >= 0) & (c >= 0)
    rows = p[np.ix_(LIVE, LIVE)]
    triples, places = np.zeros((n, n, n)), np.zeros((s.max() + 2, n, n))
    np.add.at(triples, (a[whole], b[whole], c[whole]), 1)
    np.add.at(places, (s[whole] + 1, b[whole], c[whole]), 1)
    return {
        "two": chi_square(triples, rows[None].repeat(n, 0)),
        "place": chi_square(places, rows[None].repeat(len(places), 0)),
    }


SAMPLERS: dict[str, dict[str, Any]] = {
    "cold": {"temp": 0.3, **PLAIN},
    "one": {"temp": 1.0, **PLAIN},
    "hot": {"temp": 1.7, **PLAIN},
    "top_k": {"temp": 1.0, **PLAIN, "top_k": 3},
    "top_p": {"temp": 1.3, **PLAIN, "top_p": 0.8},
    "min_p": {"temp": 0.8, **PLAIN, "min_p": 0.02},
}
CASES = [
    *(f"{draft} rejection {how}" for draft in ("good", "bad") for how in ("cold", "one", "hot")),
    *(f"bad match {how}" for how in ("cold", "one", "hot")),
    *(f"good rejection {how}" for how in ("top_k", "top_p", "min_p")),
    "reduced rejection one",
    "reduced rejection top_k",
    "confident rejection one",
]


@pytest.mark.parametrize("case", CASES)
def test_c4_c5_c6_the_text_has_the_targets_law(session: Callable[..., Session], case: str) -> None:
    draft, verify, how = case.split()
    p = law(TABLE, **SAMPLERS[how])
    one = session(draft, verify, confidence_min=0.5 if draft == "confident" else 0.0)
    with Sampler(seed=11, **SAMPLERS[how]) as sampler:
        tokens, slots = write(one, 6000, sampler)
    for what, z in deviations(tokens, slots, p).items():
        assert z < 2.33, f"{what}: p < 0.01"
    decided = slots >= 0
    assert (one.stats.n_by_rejection == decided.sum()) if verify == "rejection" else one.stats.n_by_rejection == 0

    # as many drafts stand as should: sum min(p, q), or p of the likeliest
    last = np.concatenate([[LIVE[0]], tokens[:-1]])[decided]
    rows = DRAFTS[draft].get("rows", range(V))
    table = np.full((V, V), -np.inf, np.float32)
    table[:, rows] = DRAFTS[draft]["table"][:, rows]  # type: ignore[index]
    q = law(table, **SAMPLERS[how])
    stands = np.minimum(p, q).sum(-1) if verify == "rejection" else p[np.arange(V), q.argmax(-1)]
    expected = stands[last].mean()
    accepted = one.stats.draft_n_accepted / decided.sum()
    assert accepted == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("draft", ["good", "confident"])
def test_automatic_lengths_leave_the_law_as_it_is(session: Callable[..., Session], draft: str) -> None:
    """They follow the clock, so every run draws otherwise: refused is what happens once in 30,000 runs."""
    one = session(draft, auto_depth=True)
    with Sampler(seed=11, **SAMPLERS["one"]) as sampler:
        tokens, slots = write(one, 3000, sampler)
    assert max(deviations(tokens, slots, law(TABLE, **SAMPLERS["one"])).values()) < 4


def words(session: Session, sampler: Any, n: int = 60) -> list[int]:
    session.reset()
    session.append([256, LIVE[0]])
    return [session.next(sampler) for _ in range(n)]


def test_c6_one_seed_gives_one_text_and_another_seed_another(session: Callable[..., Session]) -> None:
    one = session("good", n_draft_max=2)
    with Sampler(temp=1.0, seed=5) as a, Sampler(temp=1.0, seed=5) as b, Sampler(temp=1.0, seed=6) as c:
        text = words(one, a)
        assert words(one, b) == text != words(one, c)
        assert words(one, a) != text, "the draws go on"
        a.reset()
        assert words(one, a) == text
    assert one.stats.n_by_rejection > 0


class Witness:
    """A step of a sampler chain that bans tokens, and counts what it is asked and told."""

    def __init__(self, banned: tuple[int, ...] = ()) -> None:
        self.applied, self.accepted = 0, []

        def apply(_: Any, tokens: Any) -> None:
            self.applied += 1
            for i in range(tokens.contents.size):
                if tokens.contents.data[i].id in banned:
                    tokens.contents.data[i].logit = -np.inf

        self.interface = llama_cpp.llama_sampler_i()
        self.interface.apply = llama_cpp.llama_sampler_i_apply(apply)
        self.interface.accept = llama_cpp.llama_sampler_i_accept(lambda _, token: self.accepted.append(token))
        self.step = llama_cpp.llama_sampler()
        self.step.iface = ctypes.pointer(self.interface)


@pytest.fixture
def chain() -> Iterator[Callable[..., Any]]:
    """chain(step, ...): a sampler chain of these steps; a Witness is taken out before the chain is freed."""
    made = []

    def make(*steps: Any) -> Any:
        one = llama_cpp.llama_sampler_chain_init(llama_cpp.llama_sampler_chain_default_params())
        made.append((one, [i for i, step in enumerate(steps) if isinstance(step, Witness)]))
        for step in steps:
            pointer = ctypes.pointer(step.step) if isinstance(step, Witness) else step
            llama_cpp.llama_sampler_chain_add(one, pointer)
        return one

    yield make
    for one, foreign in made:
        for i in reversed(foreign):
            llama_cpp.llama_sampler_chain_remove(one, i)
        llama_cpp.llama_sampler_free(one)


def dist(seed: int = 3) -> Any:
    return llama_cpp.llama_sampler_init_dist(seed)


def test_c10_a_sampler_sees_each_written_token_once(session: Callable[..., Session], chain: Callable[..., Any]) -> None:
    witness = Witness()
    one = session("good")
    text = words(one, chain(witness, dist()))
    assert 0 < one.stats.draft_n_accepted < one.stats.draft_n, "drafts stood and fell"
    assert witness.accepted == text and witness.applied == len(text)


def test_c8_a_banned_token_that_the_draft_likes_is_never_written(
    session: Callable[..., Session], chain: Callable[..., Any]
) -> None:
    banned = LIVE[:3]
    one = session("good")
    text = words(one, chain(Witness(banned), dist()), 200)
    assert set(text) == set(LIVE[3:]) and one.stats.n_by_rejection > 0


def test_c10_penalties_act_on_what_was_written(llm: llama_cpp.Llama, session: Callable[..., Session]) -> None:
    one = session("good")
    with Sampler(llm, temp=0.3, repeat_penalty=50.0, presence_penalty=50.0, penalty_last_n=2, seed=1) as sampler:
        text = words(one, sampler, 200)
    assert one.stats.n_by_rejection > 0
    assert all(a != b != c != a for a, b, c in zip(text, text[1:], text[2:], strict=False)), "none of the last two"


def fallbacks(chain: Callable[..., Any]) -> dict[str, Callable[[], Any]]:
    init = llama_cpp
    return {
        "greedy": lambda: None,
        "greedy chain": lambda: chain(init.llama_sampler_init_greedy()),
        "mirostat": lambda: chain(init.llama_sampler_init_mirostat_v2(3, 5.0, 0.1)),
        "a draw before the end": lambda: chain(dist(), init.llama_sampler_init_greedy()),
        "no chain": lambda: dist(),
        "no steps": lambda: chain(Witness(), init.llama_sampler_init_mirostat(V, 3, 5.0, 0.1, 100)),
    }


@pytest.mark.parametrize("kind", list(fallbacks(lambda *_: None)))
def test_a_sampler_that_chooses_itself_is_verified_by_match(
    session: Callable[..., Session], chain: Callable[..., Any], kind: str
) -> None:
    one = session("equal")
    sampler = fallbacks(chain)[kind]()
    text = words(one, sampler)
    reason = "decoding is greedy" if sampler is None else "does not end with a draw"
    assert reason in str(one.match_reason)
    assert one.stats.n_by_rejection == 0 < one.stats.draft_n_accepted
    # the next call may have another sampler
    with Sampler(temp=1.0, seed=1) as other:
        words(one, other)
    assert one.match_reason is None and one.stats.n_by_rejection > 0
    one.close()
    again = fallbacks(chain)[kind]()
    assert words(session("equal", "match"), again) == text
    if kind == "no chain":
        llama_cpp.llama_sampler_free(sampler)
        llama_cpp.llama_sampler_free(again)


def test_a_drafter_without_distributions_is_verified_by_match(session: Callable[..., Session]) -> None:
    one = session(Recorder(lambda *_: [LIVE[1], LIVE[2]]))
    with Sampler(temp=1.0, seed=1) as sampler:
        words(one, sampler)
    assert one.match_reason == "the drafter does not tell the distributions of its tokens"
    assert one.stats.n_by_rejection == 0 < one.stats.draft_n_accepted


def test_samplers_may_change_inside_a_round(session: Callable[..., Session], chain: Callable[..., Any]) -> None:
    one = session("good")
    one.append([256, LIVE[0]])
    with Sampler(temp=1.0, seed=1) as a, Sampler(temp=0.3, seed=2) as b:
        # the drafts of a round were drawn for whoever started it, or are the likeliest
        kinds = [a, b, None, chain(llama_cpp.llama_sampler_init_mirostat_v2(3, 5.0, 0.1))]
        text = [one.next(kinds[i // 2 % 4]) for i in range(200)]
    assert set(text) <= set(LIVE)
    assert 0 < one.stats.n_by_rejection < one.stats.draft_n


def test_a_sampler_that_chooses_itself_is_asked_inside_a_round_that_was_drawn_for_another(
    session: Callable[..., Session], chain: Callable[..., Any]
) -> None:
    """The reason of the call that began the round would go on to hold: greedy's tokens would be drawn."""
    one = session("equal")
    one.append([256, LIVE[0]])
    greedy, n_inside = chain(llama_cpp.llama_sampler_init_greedy()), 0
    with Sampler(temp=1.0, seed=1) as drawn:
        last = one.next(drawn)
        for _ in range(100):
            last, written = one.next(drawn), last
            assert one.match_reason is None
            begun, n_drawn = one.last_round, one.stats.n_by_rejection
            last, written = one.next(greedy), last
            assert last == int(np.argmax(TABLE[written]))
            assert one.stats.n_by_rejection == n_drawn
            assert "does not end with a draw" in str(one.match_reason)
            n_inside += begun is not None and one.last_round.position == begun.position
    assert n_inside > 20


def test_c8_a_sampler_that_leaves_no_token_writes_what_it_writes_plainly(
    session: Callable[..., Session], chain: Callable[..., Any]
) -> None:
    """There is no distribution to divide the draft's by."""
    with session("good", "match", n_draft_max=0) as alone:
        plain = words(alone, chain(Witness(tuple(range(V))), dist()), 8)
    one = session("good")
    one.append([256, LIVE[0]])
    everything, written = chain(Witness(tuple(range(V))), dist()), []
    with Sampler(temp=1.0, seed=1) as drawn:
        for _ in range(8):
            for _ in range(2):  # the first of them opens a round of drafts, and the last is banned
                one.next(drawn)
            written.append(one.next(everything))
    assert set(written) <= set(plain)


@pytest.mark.parametrize("rule", ["ratio", None, 1, "Match"])
def test_an_unknown_rule_is_refused(llm: llama_cpp.Llama, rule: Any) -> None:
    with pytest.raises(ArgumentError, match="verify is .*, expected one of match, rejection"):
        Session(llm, verify=rule)
