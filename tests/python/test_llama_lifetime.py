"""Closing, leaking, forking and leaving a Llama with a draft."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from dspark_cpp import Draft, Llama, Session, StateError, attach, detach
from scripted import PROMPT

SETTINGS: dict[str, Any] = {"n_ctx": 512, "n_threads": 1, "n_threads_batch": 1, "verbose": False}
posix = pytest.mark.skipif(os.name != "posix", reason="needs fork")


@pytest.fixture
def make(tiny_path: Callable[[str], Path], converted: Callable[..., Path]) -> Callable[..., Llama]:
    """make(draft=True, **settings): a tiny Llama, with a draft or without."""

    def make_one(draft: bool = True, **settings: Any) -> Llama:
        path = str(converted("deepspec-qwen3-vanilla")) if draft else None
        return Llama(str(tiny_path("target-qwen3")), draft=path, **{**SETTINGS, **settings})

    return make_one


@pytest.fixture
def llm(make: Callable[..., Llama]) -> Iterator[Llama]:
    llm = make()
    yield llm
    llm.close()


# --- E2: after close --------------------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Llama], object]] = {
    "call": lambda llm: llm("x"),
    "create_completion": lambda llm: llm.create_completion("x"),
    "stream": lambda llm: next(llm.create_completion("x", stream=True)),
    "create_chat_completion": lambda llm: llm.create_chat_completion([{"role": "user", "content": "x"}]),
    "create_embedding": lambda llm: llm.create_embedding("x"),
    "embed": lambda llm: llm.embed("x"),
    "generate": lambda llm: next(llm.generate([256])),
    "eval": lambda llm: llm.eval([256]),
    "sample": lambda llm: llm.sample(),
    "reset": lambda llm: llm.reset(),
    "save_state": lambda llm: llm.save_state(),
    "tokenize": lambda llm: llm.tokenize(b"x"),
    "detokenize": lambda llm: llm.detokenize([65]),
    "tokenizer": lambda llm: llm.tokenizer(),
    "n_ctx": lambda llm: llm.n_ctx(),
    "n_embd": lambda llm: llm.n_embd(),
    "n_vocab": lambda llm: llm.n_vocab(),
    "token_eos": lambda llm: llm.token_eos(),
    "token_bos": lambda llm: llm.token_bos(),
    "token_nl": lambda llm: llm.token_nl(),
    "pooling_type": lambda llm: llm.pooling_type(),
    "attach": lambda llm: attach(llm, None),
    "detach": lambda llm: detach(llm),
    "Session": lambda llm: Session(llm),
    "ctx": lambda llm: llm.ctx,
    "model": lambda llm: llm.model,
    "draft_model": lambda llm: setattr(llm, "draft_model", None),
    "draft_n_max": lambda llm: setattr(llm, "draft_n_max", 1),
    "drafting": lambda llm: llm.drafting(n_max=1).__enter__(),
    "set_seed": lambda llm: llm.set_seed(1),
    "set_cache": lambda llm: llm.set_cache(None),
}


@pytest.mark.parametrize("draft", [True, False], ids=["drafted", "plain"])
def test_e2_a_closed_llama_refuses_every_call(draft: bool, make: Callable[..., Llama]) -> None:
    """The base crashes in tokenize() and n_ctx()."""
    llm = make(draft)
    llm.create_completion("The light", max_tokens=12)
    state = llm.save_state()
    counts = llm.speculation.total
    llm.close()
    for name, call in {**CALLS, "load_state": lambda llm: llm.load_state(state)}.items():
        with pytest.raises(StateError, match="^the Llama is closed$"):
            call(llm)
            pytest.fail(f"{name} worked")
    assert llm.speculation.total == counts and llm.speculation.last == counts
    assert (llm.speculation.disabled_reason or "").startswith("the Llama is closed" if draft else "no draft")
    assert "off" in repr(llm.speculation)
    llm.close()
    del llm


def test_e2_a_tokenizer_outlives_its_llama_and_says_so(make: Callable[..., Llama]) -> None:
    """The base's ended the process: the vocabulary was gone."""
    llm = make(False)
    tokenizers = [llm.tokenizer(), llm.tokenizer_]
    ids = llm.tokenize(b"The light")
    assert [t.tokenize(b"The light") for t in tokenizers] == [ids, ids]
    llm.close()
    for tokenizer in tokenizers:
        for call in (
            lambda t: t.tokenize(b"x"),
            lambda t: t.encode("x"),
            lambda t: t.detokenize([120]),
            lambda t: t.decode([120]),
        ):
            with pytest.raises(StateError, match="^the Llama is closed$"):
                call(tokenizer)


def test_e2_a_llama_may_be_closed_inside_of_drafting(make: Callable[..., Llama]) -> None:
    llm = make()
    with llm.drafting(n_max=0):
        llm.close()


@pytest.mark.parametrize("draft", [True, False], ids=["drafted", "plain"])
@pytest.mark.parametrize("n", [0, 1, 3])
def test_e2_closing_during_iteration_ends_it_with_an_error(n: int, draft: bool, make: Callable[..., Llama]) -> None:
    llm = make(draft)
    generator = llm.generate(PROMPT, temp=0.0)
    list(itertools.islice(generator, n))
    llm.close()
    with pytest.raises(StateError, match="closed"):
        next(generator)
    assert list(generator) == []


def test_e2_closing_from_inside_of_a_call_is_refused(llm: Llama) -> None:
    def processor(ids: Any, scores: Any) -> Any:
        llm.close()
        return scores

    with pytest.raises(StateError, match="cannot be closed from inside one of its own calls"):
        llm.create_completion("x", logits_processor=llama_cpp.LogitsProcessorList([processor]))
    assert len(list(itertools.islice(llm.generate(PROMPT, temp=0.0), 5))) == 5


def test_target_and_draft_may_go_in_any_order(
    make: Callable[..., Llama], tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    draft = Draft(converted("deepspec-qwen3-vanilla"))
    first = Llama(str(tiny_path("target-qwen3")), draft=draft, **SETTINGS)
    second = Llama(str(tiny_path("target-qwen3")), draft=draft, **SETTINGS)
    want = list(itertools.islice(first.generate(PROMPT, temp=0.0), 20))
    first.close()
    draft.close()
    del draft
    assert list(itertools.islice(second.generate(PROMPT, temp=0.0), 20)) == want, "a session keeps its weights"
    del second


# --- E3: memory -------------------------------------------------------------------------------------------------------


def resident() -> int:
    if not Path("/proc/self/statm").exists():
        pytest.skip("reads /proc")
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)  # what is free already, and lies between what is not
    with open("/proc/self/statm") as f:
        return int(f.read().split()[1]) * 4096


@pytest.mark.parametrize("draft", [True, False], ids=["drafted", "plain"])
def test_e3_a_llama_is_gone_with_its_last_reference(draft: bool, make: Callable[..., Llama]) -> None:
    """A cycle would keep gigabytes until the collector runs."""
    gc.collect()
    gc.disable()
    try:
        llm = make(draft)
        list(itertools.islice(llm.generate(PROMPT), 10))
        llm.save_state()
        stream = llm.create_completion("The", stream=True, max_tokens=5)
        next(stream)
        model = weakref.ref(llm._model)
        seen = weakref.ref(llm)
        del llm, stream
        assert seen() is None and model() is None
    finally:
        gc.enable()


def test_e3_fifty_made_and_dropped_do_not_grow(make: Callable[..., Llama]) -> None:
    def once() -> None:
        llm = make()
        list(itertools.islice(llm.generate(PROMPT), 10))
        del llm

    gc.collect()
    gc.disable()
    try:
        for _ in range(15):
            once()
        before = resident()
        for _ in range(50):
            once()
        assert resident() - before < 2 << 20
    finally:
        gc.enable()


def test_e3_two_hundred_prompts_on_one_object_do_not_grow(llm: Llama) -> None:
    def once(i: int) -> None:
        llm.create_completion(f"{i} The lighthouse", max_tokens=10, seed=i)

    for i in range(60):
        once(i)
    before = resident()
    for i in range(200):
        once(i)
    assert resident() - before < 2 << 20


def test_no_buffer_of_logits_grows_with_the_context(make: Callable[..., Llama]) -> None:
    """The base keeps n_ctx rows of the whole vocabulary wherever a draft model is used."""
    llm = make(n_ctx=32768, n_batch=64)
    assert llm.scores.nbytes == llm.n_vocab() * 4
    before = resident()
    llm.create_completion("The light house. " * 200, max_tokens=100, temperature=0.0)
    state = llm.save_state()
    assert state.scores.nbytes == llm.n_vocab() * 4
    llm.load_state(state)
    assert resident() - before < 40 << 20, "3300 rows of 320 logits alone would be 4 MB, a real vocabulary's 2 GB"
    assert llm.speculation.total.draft_n > 0
    llm.close()


# --- fork and exit ----------------------------------------------------------------------------------------------------


@posix
@pytest.mark.parametrize("child", ["os._exit(0)", "sys.exit(0)", "llm.close(); sys.exit(0)", "del llm; sys.exit(0)"])
def test_a_forked_child_leaves_quietly_and_the_parent_goes_on(
    child: str, run_python: Callable[..., Any], tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    code = f"""
import os, sys, warnings
from dspark_cpp import Llama
warnings.simplefilter("ignore")
llm = Llama(sys.argv[1], draft=sys.argv[2], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
g = llm.generate([256, 65, 66], temp=0.0)
first = [next(g) for _ in range(5)]
pid = os.fork()
if pid == 0:
    {child}
assert os.waitpid(pid, 0)[1] == 0
rest = [next(g) for _ in range(20)]
g.close()
g = llm.generate([256, 65, 66], temp=0.0)
assert [next(g) for _ in range(25)] == first + rest
print("done")
"""
    done = run_python(code, tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla"))
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "done", "")


ENDINGS = {
    "everything alive": "",
    "a stream in the middle of a block": "g = llm.generate([256, 65]); next(g); next(g); next(g)",
    "a completion in the middle": "g = llm('The', stream=True); next(g); next(g)",
    "a cycle": "llm.me = llm",
    "a processor that holds it": """
import llama_cpp
class P:
    def __call__(self, ids, scores): return scores
p = P(); p.llm = llm
llm('x', logits_processor=llama_cpp.LogitsProcessorList([p]))""",
    "an exception": "import os; sys.stderr = open(os.devnull, 'w'); raise SystemExit(0)",
    "attached": "other = llama_cpp.Llama(sys.argv[1], n_ctx=256, verbose=False); attach(other, llm.draft)",
    "installed": "install(); other = llama_cpp.Llama(sys.argv[1], n_ctx=256, verbose=False, draft=sys.argv[2])",
    "half-made objects": """
for arguments in (
    {'draft': 5}, {'draft_n_mx': 3}, {'draft': 'nowhere.gguf'}, {'draft_n_max': -1}, {'draft': sys.argv[1]}
):
    try:
        Llama(sys.argv[1], verbose=False, **arguments)
    except Exception:
        pass
try:
    Llama('nowhere', draft=sys.argv[2], verbose=False)
except ValueError:
    pass
""",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_the_interpreter_exits_quietly_with(
    ending: str, run_python: Callable[..., Any], tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    code = f"""
import sys, llama_cpp
from dspark_cpp import Llama, attach, install
llm = Llama(sys.argv[1], draft=sys.argv[2], n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
llm("The lighthouse", max_tokens=8)
{ENDINGS[ending]}
"""
    done = run_python(code, tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_verbose_false_prints_nothing_from_load_to_close(
    run_python: Callable[..., Any], tiny_path: Callable[[str], Path], converted: Callable[..., Path]
) -> None:
    code = """
import sys
from dspark_cpp import Llama
for draft in (None, sys.argv[2]):
    llm = Llama(sys.argv[1], draft=draft, n_ctx=256, verbose=False)
    llm("The lighthouse", max_tokens=8)
    llm("The lighthouse at", max_tokens=8)
    llm.load_state(llm.save_state())
    llm._ctx.kv_cache_clear()
    llm("The lighthouse at", max_tokens=8)
    llm.close()
"""
    done = run_python(code, tiny_path("target-qwen3"), converted("deepspec-qwen3-vanilla"))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
