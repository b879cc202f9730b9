"""The demo draft in a real peer: llama.cpp's own speculative code, driven through xllamacpp, reads the shipped file.

On F16 weights, where rounding rarely decides, both have to write the same text and accept as much of what they draft.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llama_cpp
import pytest
from dspark_cpp import Session, encode_chat
from dspark_cpp.tokens import piece

pytest.importorskip("xllamacpp", reason="the peer is a test extra")
pytestmark = pytest.mark.slow

# their answers are longer than N: the peer never chooses an end of text, we would
QUESTIONS = [
    "Write a Python function that returns the n-th Fibonacci number.",
    "Natalia sold clips to 48 friends in April, and half as many in May. How many clips did she sell altogether?",
    "Write a long story about a lighthouse keeper and a storm.",
]
N = 64
PEER = Path(__file__).with_name("convert") / "peer_run.py"


def test_the_peer_writes_the_same_text_and_accepts_as_much(
    smollm_f16_path: Path, demo_draft_path: str, record_property: Callable[[str, object], None]
) -> None:
    llm = llama_cpp.Llama(str(smollm_f16_path), n_ctx=512, n_threads=1, n_threads_batch=1, verbose=False)
    prompts = [encode_chat(llm, [{"role": "user", "content": question}]) for question in QUESTIONS]
    texts, drafted, accepted = [], 0, 0
    with Session(llm, demo_draft_path, n_threads=1) as session:
        for prompt in prompts:
            ids = session.generate(prompt, max_tokens=N, stop_at_eog=False)
            texts.append(b"".join(piece(llm, token) for token in ids).decode("utf-8", "replace"))
        drafted, accepted = session.stats.draft_n, session.stats.draft_n_accepted
    llm.close()

    jobs = json.dumps([{"prompt": prompt, "n": N} for prompt in prompts])
    argv = [sys.executable, str(PEER), str(smollm_f16_path), demo_draft_path, "6"]
    done = subprocess.run(argv, input=jobs, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    peer: list[Any] = json.loads(done.stdout.strip().splitlines()[-1])
    assert [text for _, _, text in peer] == texts

    ours = accepted / drafted
    theirs = sum(run[1] for run in peer) / sum(run[0] for run in peer)
    record_property("acceptance, ours and the peer's", (ours, theirs))
    assert abs(ours - theirs) < 0.02, f"accepted {ours:.3f} of the drafted tokens, the peer {theirs:.3f}"
