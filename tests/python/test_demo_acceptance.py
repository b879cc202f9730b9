"""What rejection sampling is for: of the trained draft's tokens more stand by it than by match, when sampling."""

from __future__ import annotations

from pathlib import Path

from dspark_cpp import Sampler, Session, encode_chat, kernels, open_target

QUESTIONS = [
    "Write a haiku about rivers.",
    "Explain why the sky is blue.",
    "Natalia sold 48 clips in April and half as many in May. How many did she sell altogether?",
    "Write a Python function that reverses a list.",
]


def test_more_drafts_stand_by_rejection_than_by_match(smollm_path: Path, demo_draft_path: str) -> None:
    active = kernels.install("auto", smollm_path).active
    llm = open_target(smollm_path, n_ctx=512, n_threads=2, n_threads_batch=2, flash_attn=active, verbose=False)
    stats = {}
    for rule in ("match", "rejection"):
        with Session(llm, demo_draft_path, n_draft_max=3, verify=rule) as session:
            # texts differ between the rules, and some are easier than others: twelve of them
            for i, question in enumerate(3 * QUESTIONS):
                with Sampler(temp=1.0, top_k=0, top_p=1.0, min_p=0.0, seed=i) as sampler:
                    prompt = encode_chat(llm, [{"role": "user", "content": question}])
                    list(session.generate(prompt, max_tokens=100, sampler=sampler, stop_at_eog=False))
            stats[rule] = session.stats
    llm.close()
    assert stats["match"].n_by_rejection == 0 < stats["rejection"].n_by_rejection
    first = {rule: s.acceptance_per_position[0] for rule, s in stats.items()}
    assert first["rejection"] >= first["match"], first
    lengths = {rule: s.mean_accepted_length for rule, s in stats.items()}
    assert lengths["rejection"] >= lengths["match"], lengths
