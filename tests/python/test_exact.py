"""Output that is equal bit for bit because no row's logits depend on its neighbours, and when that is not claimed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

PROGRAM = """
import sys, llama_cpp
from dspark_cpp import Session, kernels
mode, path, draft = sys.argv[1], sys.argv[2], sys.argv[3] or None
print(kernels.install(mode).reason)
llm = llama_cpp.Llama(path, n_ctx=512, n_threads=2, verbose=False)
ids = llm.tokenize(b"The lighthouse keeper wrote in his book that")
texts = []
for one in (None, draft):
    with Session(llm, one) as session:
        texts.append(list(session.generate(ids, max_tokens=96, stop_at_eog=False)))
        print(session.exact)
print(texts[0] == texts[1])
"""


def test_a_quantised_target_writes_bit_equal_text_with_a_draft_when_the_kernels_are_on(
    run_python: Callable[..., object], smollm_path: object, demo_draft_path: str
) -> None:
    done = run_python(PROGRAM, "auto", smollm_path, demo_draft_path, timeout=240)
    assert done.returncode == 0 and done.stderr == "", done.stderr  # type: ignore[attr-defined]
    reason, *runs = done.stdout.splitlines()  # type: ignore[attr-defined]
    if reason:
        pytest.skip(f"no kernels here: {reason}")
    assert runs == ["True", "True", "True"]


def claims(done: Any) -> list[str]:
    """What a program prints behind the reason why there are no kernels."""
    assert done.stderr == "", done.stderr
    reason, *seen = done.stdout.strip().split("|")
    if reason:
        pytest.skip(f"no kernels here: {reason}")
    return list(seen)


CACHES = """
import sys, llama_cpp
from dspark_cpp import Llama, kernels
target, draft = sys.argv[1:]
texts = []
for one in (None, draft):
    llm = Llama(target, draft=one, draft_n_max=5, n_ctx=512, n_threads=2, type_k=8, type_v=8, verbose=False)
    texts.append(llm("The lighthouse keeper wrote in his book that", max_tokens=64, temperature=0)["choices"])
print(kernels.state().reason, llm.speculation.exact, texts[0] == texts[1], sep="|")
"""


def test_quantised_caches_keep_the_claim(
    run_python: Callable[..., object], smollm_path: object, demo_draft_path: str
) -> None:
    """The transform of rows that llama.cpp puts before such a cache ended it, though it treats every row for itself."""
    done = run_python(CACHES, smollm_path, demo_draft_path, timeout=240)
    assert claims(done) == ["True", "True"]


def test_without_the_kernels_a_session_does_not_claim_to_be_exact(
    run_python: Callable[..., object], smollm_path: object, demo_draft_path: str
) -> None:
    done = run_python(PROGRAM, "off", smollm_path, demo_draft_path, timeout=240)
    assert done.stdout.splitlines()[1:3] == ["False", "False"]  # type: ignore[attr-defined]


CLAIMS = """
import sys
from dspark_cpp import Llama, kernels
target, draft = sys.argv[1:]
settings = dict(n_ctx=256, n_threads=2, verbose=False, draft=draft, draft_n_max=6)
llm = Llama(target, **settings)
reason = kernels.state().reason
kernels.install("off")
llm("Once upon a time", max_tokens=8, temperature=0)
seen = [llm.speculation.exact]
saved = llm.save_state()
kernels.install("auto")
llm.draft_model = llm.draft  # the sequence is kept
llm.eval([1])
seen.append(llm.speculation.exact)
other = Llama(target, **settings)
other.load_state(saved)
other.eval([1])
seen.append(other.speculation.exact)
llm.close()
seen.append(llm.speculation.exact)
other.reset()
other("Once upon a time", max_tokens=8, temperature=0)
print(reason, *seen, other.speculation.exact, sep="|")
"""


def test_rows_of_other_kernels_in_the_memory_end_the_claim_until_they_are_gone(
    run_python: Callable[..., object], smollm_path: object, demo_draft_path: str
) -> None:
    """A saved state, a new draft or close() made an inexact sequence exact."""
    done = run_python(CLAIMS, smollm_path, demo_draft_path, timeout=240)
    assert claims(done) == ["False"] * 4 + ["True"]
