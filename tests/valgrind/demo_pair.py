"""The demo pair for valgrind: a few tokens plain, drafted, by rejection, saved and restored; greedy texts are the same.

    python demo_pair.py on|off        (this package's kernels)

A short program: memcheck takes some fifty times as long.
"""

from __future__ import annotations

import sys
from typing import Any

import llama_cpp
from dspark_cpp import Draft, Sampler, Session, demo, kernels

N = 6


def main(mode: str) -> None:
    state = kernels.install(mode)
    assert mode == "off" or state.active, state.reason
    llm: Any = llama_cpp.Llama(
        demo.target_path(), n_ctx=64, n_batch=16, n_threads=1, n_threads_batch=1, verbose=False, flash_attn=mode == "on"
    )
    draft = Draft(demo.draft_path(), target=llm)
    prompt = llm.tokenize(b"1 2 3 4 5 6")
    with Session(llm, None) as plain:
        text = list(plain.generate(prompt, max_tokens=N))
    with Session(llm, draft, n_threads=1) as session:
        stream = session.generate(prompt, max_tokens=N)
        drafted = [next(stream) for _ in range(3)]
        stream.close()  # amid a round
        saved, held, memory = session.save_state(), session.tokens, llm.save_state()
        session.append(drafted[-1:])
        drafted += [session.next() for _ in range(N - 3)]
        assert drafted == text, (drafted, text)
        assert session.stats.n_rounds_drafted, "nothing was drafted"
        session.rewind(2)
    llm.load_state(memory)
    with Session(llm, draft, n_threads=1, verify="rejection", tokens=held) as session:
        session.load_state(saved)
        session.append(drafted[2:3])
        assert [session.next() for _ in range(N - 3)] == text[3:]
        with Sampler(temp=1.0, seed=1) as sampler:
            session.append(text[:1])
            for _ in range(N):
                session.next(sampler)
        assert session.stats.n_by_rejection, "nothing was decided by rejection"
    llm.close()
    print(f"kernels {mode}: as plain decoding")


if __name__ == "__main__":
    main(sys.argv[1])
