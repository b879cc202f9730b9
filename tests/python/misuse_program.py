# ruff: noqa: E501
"""Calls everything that is public with arguments that make no sense; run in a process of its own by test_misuse.py.

usage: misuse_program.py GROUP TARGET DRAFT SEED SHARE, where SHARE is the part of the wrong values that is tried.
Prints a line before each call if asked to (MISUSE_TRACE), and the
number of calls at the end. Every exception of Python is fine; whatever ends the process is not.
"""

from __future__ import annotations

import contextlib
import faulthandler
import inspect
import itertools
import math
import os
import random
import resource
import sys
from collections.abc import Callable, Iterator
from typing import Any

import dspark_cpp
import llama_cpp
import numpy as np
from dspark_cpp import kernels

SETTINGS: dict[str, Any] = {"n_ctx": 64, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
# calls that would do as they are told
EXCUSED = {"from_pretrained"}  # fetches files

faulthandler.enable()
faulthandler.dump_traceback_later(800, exit=True)
# an argument that asks for terabytes is refused by the system then
resource.setrlimit(resource.RLIMIT_AS, (6 << 30, resource.getrlimit(resource.RLIMIT_AS)[1]))

group, target, draft_path, seed, share = sys.argv[1:]
rng = random.Random(int(seed))
SHARE = float(share)


class Odd:
    """Has nothing that anybody could want."""


class Lying:
    """A sequence, an array and a number, none of them as it says."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, i: Any) -> Any:
        raise KeyError(i)

    def __index__(self) -> int:
        raise OverflowError("no")

    def __float__(self) -> float:
        raise ZeroDivisionError

    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise MemoryError


class Drafter:
    n_draft_max = 3

    def propose(self, anchor: int, position: int, n_max: int) -> Any:
        return rng.choice([[7], [], None, [-1], [2**40], ["x"], [7] * 99, 5, np.zeros((2, 2))])


def open_llama(**more: Any) -> Any:
    return llama_cpp.Llama(target, **{**SETTINGS, **more})


def open_ours(**more: Any) -> Any:
    return dspark_cpp.Llama(target, **{**SETTINGS, "draft": draft_path, "kernels": "off", **more})


def closed(thing: Any) -> Any:
    thing.close()
    return thing


llm = open_llama()
closed_llm = closed(open_llama())
draft = dspark_cpp.Draft(draft_path, target=llm)
inspected = dspark_cpp.Draft(draft_path, inspect=True)
closed_draft = closed(dspark_cpp.Draft(draft_path))

VALUES: list[Callable[[], Any]] = [
    lambda: None, lambda: True, lambda: False,
    *[(lambda v=v: v) for v in (
        0, 1, -1, 2, 7, 63, 64, 65, 319, 320, 2**15, 2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 2**32, 2**63, -(2**63), 2**64, 10**30,
        0.0, 0.5, -0.5, 1.0, 1e38, 1e308, -1e308, math.nan, math.inf, -math.inf, 5e-324,
        "", "x", "\0", "a\0b", "\ud800", "f16", "q4_0", "on", "CPU", "nowhere.gguf", "é" * 3000, "/dev/null", "/proc/self/mem", ".", target, draft_path,
        b"", b"x", b"\0", b"\xff\xfe", b"y" * 5000,
        (), [], [[]], [None], [-1], [0], [256, 65], [319], [320], [2**31], [2**63], [-(2**63)], [2**70], [1.5], ["x"], [[1, 2]], [True],
        [65] * 63, [65] * 64, [65] * 65, [65] * 5000, {}, {"role": "user"}, [{"role": "user", "content": "x"}], [{"role": 5}], set(), range(5), range(2**18),
        1j, ..., NotImplemented, type, len, print,
    )],
    Odd, Lying, Drafter,
    lambda: iter([256, 65]), lambda: (x for x in [65]), lambda: bytearray(b"DSPARKst" + bytes(64)), lambda: memoryview(b"x" * 100)[::2],
    lambda: np.zeros(0), lambda: np.zeros((0, 192), np.float32), lambda: np.zeros((1, 192), np.float32), lambda: np.zeros((3, 192))[:, ::-1],
    lambda: np.full((2, 192), np.nan, np.float32), lambda: np.full((2, 192), np.inf, np.float32), lambda: np.zeros((2, 191)), lambda: np.zeros(192),
    lambda: np.array([256, 65], np.uint64), lambda: np.array([2**63], np.uint64), lambda: np.array([65, 66, 67], np.int8)[::2],
    lambda: np.array(["a"]), lambda: np.array([None]), lambda: np.array(5), lambda: np.zeros(320), lambda: np.zeros((2, 320), np.float16),
    lambda: np.broadcast_to(np.float32(1), (4, 192)), lambda: np.lib.stride_tricks.as_strided(np.zeros(1, np.int32), (9,), (0,)),
    lambda: llm, lambda: closed_llm, lambda: draft, lambda: inspected, lambda: closed_draft,
    lambda: closed(dspark_cpp.Sampler()), lambda: dspark_cpp.Sampler(seed=1), lambda: closed(dspark_cpp.DraftContext(draft, llm)),
    lambda: llama_cpp.LogitsProcessorList([lambda *a: 5]), lambda: llama_cpp.StoppingCriteriaList([lambda *a: 1 / 0]),
]  # fmt: skip

# what each parameter should have been, so that the other ones are reached
RIGHT: dict[str, Callable[[], Any]] = {
    "path": lambda: draft_path, "model_path": lambda: target, "target": lambda: llm, "draft": lambda: draft, "llm": lambda: llm,
    "layers": lambda: [1, 2],
    "tokens": lambda: [256, 65], "prompt": lambda: [256, 65], "text": lambda: b"x", "anchor": lambda: 65, "features": lambda: np.ones((3, 192), np.float32),
    "n_tokens": lambda: 0, "n_past": lambda: 0, "token": lambda: 65, "messages": lambda: [{"role": "user", "content": "x"}], "key": lambda: "general.name",
    "state": lambda: b"", "logits": lambda: np.zeros(320), "input": lambda: "x", "suffix": lambda: None, "sampler": lambda: None,
    "max_tokens": lambda: 3, "n_max": lambda: 2, "mode": lambda: "auto", "seed": lambda: 1, "cache": lambda: None, "idx": lambda: None,
}  # fmt: skip


def arguments(call: Callable[..., Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """Sets of arguments: none, each one wrong in turn, some wrong at once."""
    try:
        parameters = [p for p in inspect.signature(call).parameters.values() if p.name != "self"]
    except (TypeError, ValueError):
        parameters = []
    plain = [p for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]

    def right() -> dict[str, Any]:
        return {p.name: RIGHT[p.name]() for p in plain if p.default is p.empty and p.name in RIGHT}

    def split(values: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        first = [values.pop(p.name) for p in plain if p.kind is p.POSITIONAL_ONLY and p.name in values]
        return first, values

    yield [], {}
    yield split(right())
    yield [VALUES[0]() for _ in range(9)], {}
    for p in plain:
        for value in rng.sample(VALUES, max(6, int(SHARE * len(VALUES) / max(1, len(plain) - 2)))):
            yield split({**right(), p.name: value()})
    for _ in range(int(40 * SHARE) if plain else 0):
        yield split(
            {**right(), **{p.name: rng.choice(VALUES)() for p in rng.sample(plain, rng.randint(1, len(plain)))}}
        )


n_calls = 0
trace = os.environ.get("MISUSE_TRACE")


def attempt(name: str, call: Callable[..., Any], args: list[Any], kwargs: dict[str, Any]) -> Any:
    global n_calls
    n_calls += 1
    if trace:
        print(name, f"{args!r:.200}", f"{kwargs!r:.300}", file=sys.stderr, flush=True)
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            result = call(*args, **kwargs)
            if hasattr(result, "__next__"):
                steps, result = result, None
                list(itertools.islice(steps, 4))
                if rng.random() < 0.5 and hasattr(steps, "close"):
                    steps.close()
        return result
    except Exception:
        return None


def members(thing: Any) -> list[str]:
    return [name for name in dir(type(thing)) if name not in EXCUSED and (not name.startswith("_") or name in (
        "__call__", "__len__", "__enter__", "__exit__", "__repr__", "__getstate__", "__setstate__"))]  # fmt: skip


def misuse(label: str, make: Callable[[], Any], only: set[str] | None = None) -> None:
    """Every public member of an object: called, read, assigned; on a living one and on a closed one."""
    for name in members(make()):
        if only is not None and name not in only:
            continue
        kind = inspect.getattr_static(type(make()), name)
        for state in ("alive", "used", "closed"):
            thing = make()
            if state == "used":
                use(thing)
            elif state == "closed":
                if not hasattr(thing, "close"):
                    continue
                thing.close()
            where = f"{label}[{state}].{name}"
            if isinstance(kind, property):
                attempt(where, getattr, [thing, name], {})
                for value in rng.sample(VALUES, int(SHARE * len(VALUES))) if kind.fset else VALUES[:1]:
                    attempt(f"{where} =", setattr, [thing, name, value()], {})
                continue
            if not callable(getattr(type(thing), name)):
                continue
            for i, (args, kwargs) in enumerate(arguments(getattr(thing, name))):
                attempt(where, getattr(thing, name), args, kwargs)
                if i % 8 == 7:
                    if state != "closed" and getattr(thing, "closed", False):
                        thing = make()
                    if state != "closed":
                        use(thing)


def use(thing: Any) -> None:
    with contextlib.suppress(Exception):
        if isinstance(thing, dspark_cpp.Session):
            thing.append([256, 65])
            thing.next(), thing.next(), thing.next()
        elif isinstance(thing, dspark_cpp.DraftContext):
            thing.append(np.ones((3, 192), np.float32))
        elif isinstance(thing, llama_cpp.Llama):
            list(itertools.islice(thing.generate([256, 65], temp=0.0), 5))


def make_session(drafter: Any) -> Callable[[], Any]:
    def make() -> Any:
        sessions.append(dspark_cpp.Session(open_llama(), drafter() if callable(drafter) else drafter, n_threads=1))
        while len(sessions) > 3:
            old = sessions.pop(0)
            old.close(), old.target.close()
        return sessions[-1]

    return make


def make_reader() -> Any:
    readers.append(dspark_cpp.FeatureReader(open_llama(), [1, 2]))
    while len(readers) > 3:
        readers.pop(0).close()
    return readers[-1]


sessions: list[Any] = []
readers: list[Any] = []


def make_llama(**more: Any) -> Callable[[], Any]:
    def make() -> Any:
        llamas.append(open_ours(**more))
        while len(llamas) > 3:
            llamas.pop(0).close()
        return llamas[-1]

    return make


llamas: list[Any] = []
# of llama_cpp's own, whatever they are given goes to llama_cpp's own code; these we answer for
OURS = {name for name, value in vars(dspark_cpp.Llama).items() if not name.startswith("_")} | {"__call__"}


def functions() -> None:
    for name in dspark_cpp.__all__:
        thing = getattr(dspark_cpp, name)
        if inspect.isclass(thing) and issubclass(thing, BaseException) or not callable(thing):
            continue
        if name == "Llama":
            continue
        for args, kwargs in arguments(thing):
            made = attempt(name, thing, args, kwargs)
            if hasattr(made, "close") and made is not llm and made is not draft:
                attempt(f"{name}().close", made.close, [], {})
        dspark_cpp.uninstall()
        if llm._model.model is None:
            raise SystemExit(f"{name} closed the target")
    for name in ("install", "state"):
        for args, kwargs in arguments(getattr(kernels, name)):
            attempt(f"kernels.{name}", getattr(kernels, name), args, kwargs)
    kernels.install("off")


def constructor() -> None:
    ours = [p for p in inspect.signature(dspark_cpp.Llama).parameters if p not in ("model_path", "kwargs")]
    for name in ours:
        for value in rng.sample(VALUES, int(SHARE * len(VALUES))):
            made = attempt(f"Llama({name})", open_ours, [], {name: value()})
            if made is not None:
                attempt(f"Llama({name}) used", use, [made], {})
                made.close()
    for value in VALUES:
        attempt("Llama(model_path)", dspark_cpp.Llama, [value()], dict(SETTINGS))


GROUPS: dict[str, Callable[[], None]] = {
    "functions": functions,
    "Llama()": constructor,
    "Draft": lambda: misuse("Draft", lambda: dspark_cpp.Draft(draft_path)),
    "Draft, inspected": lambda: misuse("Draft", lambda: dspark_cpp.Draft(draft_path, inspect=True)),
    "DraftContext": lambda: misuse("DraftContext", lambda: dspark_cpp.DraftContext(draft, llm, n_threads=1)),
    "Session": lambda: misuse("Session", make_session(draft)),
    "Session, plain": lambda: misuse("Session", make_session(None)),
    "Session, odd drafter": lambda: misuse("Session", make_session(Drafter)),
    "FeatureReader": lambda: misuse("FeatureReader", make_reader),
    "Sampler": lambda: misuse("Sampler", lambda: dspark_cpp.Sampler(llm, repeat_penalty=1.1)),
    "TextStream": lambda: misuse("TextStream", lambda: dspark_cpp.TextStream(rng.choice([llm, closed_llm, 5]))),
    "Speculation": lambda: misuse("Speculation", lambda: make_llama()().speculation),
    "Llama": lambda: misuse("Llama", make_llama(), OURS),
    "Llama, plain": lambda: misuse("Llama", make_llama(draft=None), OURS),
    "Llama, inherited": lambda: misuse("Llama", make_llama(), {m for m in members(llm)} - OURS),
}

if __name__ == "__main__":
    GROUPS[group]()
    print(f"done: {n_calls} calls")
