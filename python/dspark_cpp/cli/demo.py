"""dspark-cpp demo: the demo pair with and without the draft, side by side."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from .. import errors

__all__ = ["add_parser", "run"]

PROMPT = "Write a Python function that checks whether a number is prime."


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "demo",
        help="run the demo pair with and without the draft",
        description="Generates with the demo target alone and with its draft, and compares text, speed and acceptance.",
    )
    p.add_argument("-p", "--prompt", default=PROMPT, help="a user's message (default: %(default)s)")
    p.add_argument("-n", "--n-predict", type=int, default=128, metavar="N", help="tokens to generate (%(default)s)")
    p.add_argument("-t", "--threads", type=int, metavar="N", help="threads; default: llama-cpp-python's choice")
    p.add_argument("--n-max", type=int, metavar="K", help="most drafted tokens a round; default: automatic")
    p.add_argument("--repeat", type=int, default=3, metavar="R", help="interleaved runs of each (%(default)s)")
    p.add_argument("--json", action="store_true", help="print one JSON object")
    p.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    from .. import demo, kernels
    from ..draft import Draft
    from ..session import Session
    from ..target import open_target
    from ..tokens import encode_chat, piece

    for name, value in (("-n", args.n_predict), ("--repeat", args.repeat)):
        if value < 1:
            raise errors.ArgumentError(f"{name} is {value}, expected 1 or more")
    threads = {} if args.threads is None else {"n_threads": args.threads}
    active = kernels.install("auto").active
    llm = open_target(demo.target_path(), n_ctx=2048, flash_attn=active, verbose=False, **threads)
    draft = Draft(demo.draft_path(), target=llm)
    prompt = encode_chat(llm, [{"role": "user", "content": args.prompt}])

    def once(drafting: bool) -> dict[str, Any]:
        one = draft if drafting else None
        with Session(llm, one, n_draft_max=args.n_max, auto_depth=args.n_max is None) as session:
            tokens = session.generate(prompt, max_tokens=args.n_predict)
            start = time.perf_counter()
            ids = list(tokens)
            return {"ids": ids, "rate": len(ids) / (time.perf_counter() - start), "stats": session.stats}

    runs: dict[bool, list[dict[str, Any]]] = {False: [], True: []}
    for _ in range(args.repeat):
        for drafting in (False, True):
            runs[drafting].append(once(drafting))

    plain, drafted = runs[False][0], runs[True][0]
    texts = [b"".join(piece(llm, token) for token in r["ids"]).decode("utf-8", "replace") for r in (plain, drafted)]
    rates = [statistics.median(r["rate"] for r in runs[drafting]) for drafting in (False, True)]
    stats = drafted["stats"]
    same = next((i for i, (a, b) in enumerate(zip(plain["ids"], drafted["ids"], strict=False)) if a != b), None)
    identical = plain["ids"] == drafted["ids"]
    if args.json:
        report = {
            "identical": identical,
            "first_difference": same,
            "text_plain": texts[0],
            "text_draft": texts[1],
            "tokens_per_second_plain": rates[0],
            "tokens_per_second_draft": rates[1],
            "ratio": rates[1] / rates[0],
            **stats.as_dict(),
        }
        print(json.dumps(report, ensure_ascii=False))
        return 0

    print(f"--- without draft ---\n{texts[0]}\n")
    print(f"--- with draft ---\n{texts[1] if not identical else '(the same text)'}\n")
    if identical:
        print(f"text:        identical, {len(plain['ids'])} tokens")
    else:
        print(f'text:        differs from token {same} on (two nearly equal logits; see README, "The same text")')
    print(
        f"speed:       {rates[0]:.1f} tokens/s without, {rates[1]:.1f} with: {rates[1] / rates[0]:.2f}x "
        f"(medians of {args.repeat})"
    )
    print(
        f"acceptance:  {stats.draft_n_accepted} of {stats.draft_n} drafted, "
        f"{stats.mean_accepted_length:.2f} tokens a round"
    )
    print(f"by position: {', '.join(f'{rate:.2f}' for rate in stats.acceptance_per_position)}")
    ms = 1e3 / max(1, stats.n_rounds)
    print(f"one round:   draft {stats.t_draft * ms:.2f} ms, target {stats.t_verify * ms:.2f} ms")
    print(f"kernels:     {kernels.state().isa if active else 'of llama.cpp: ' + kernels.state().reason}")
    return 0
