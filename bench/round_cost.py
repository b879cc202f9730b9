"""What one draft round costs, on the demo pair: against a one-token target decode, and what is added outside ggml.

Plain steps and drafted rounds alternate on one sequence, so that both see the same machine; medians are printed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from dspark_cpp import Draft, Session, demo, encode_chat, kernels, open_target

PROMPT = "Write a Python function that returns the n-th Fibonacci number, and explain how it works step by step."


def step(session: Session, n_draft_max: int | None) -> dict[str, float]:
    """Milliseconds of one round by phase; tokens that a round has left over are taken first."""
    while True:
        before, start = session.stats, time.perf_counter()
        session.next(n_draft_max=n_draft_max)
        wall, after = time.perf_counter() - start, session.stats
        if after.n_rounds > before.n_rounds:
            phases = ("t_draft", "t_draft_compute", "t_verify", "t_sample")
            times = {name: 1e3 * (getattr(after, name) - getattr(before, name)) for name in phases}
            return {**times, "wall": 1e3 * wall, "rows": 1 + after.draft_n - before.draft_n}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-n", "--rounds", type=int, default=150)
    parser.add_argument("-md", "--draft", help="another draft for the demo target")
    parser.add_argument("--kernels", choices=("auto", "on", "off"), default="auto")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    kernels.install(args.kernels)

    llm = open_target(demo.target_path(), n_ctx=2048, n_threads=args.threads, verbose=False)
    draft = Draft(args.draft or demo.draft_path(), target=llm)
    plain, drafted = [], []
    with Session(llm, draft) as session:
        session.append(encode_chat(llm, [{"role": "user", "content": PROMPT}]))
        for i in range(args.rounds + 10):
            one, many = step(session, 0), step(session, None)
            if i >= 10:
                plain.append(one)
                drafted.append(many)
        stats = session.stats

    def median(rows: list[dict[str, float]], name: str) -> float:
        return statistics.median(row[name] for row in rows)

    token = median(plain, "t_verify")
    outside = statistics.median(
        (r["wall"] - r["t_draft_compute"] - r["t_verify"] - r["t_sample"]) / r["wall"] for r in drafted
    )
    report = {
        "one_token_decode_ms": token,
        "draft_round_ms": median(drafted, "t_draft"),
        "draft_compute_ms": median(drafted, "t_draft_compute"),
        "verify_ms": median(drafted, "t_verify"),
        "verify_rows": median(drafted, "rows"),
        "draft_to_decode": statistics.median(d["t_draft"] / p["t_verify"] for d, p in zip(drafted, plain, strict=True)),
        "outside_of_draft": statistics.median((r["t_draft"] - r["t_draft_compute"]) / r["t_draft"] for r in drafted),
        "outside_of_round": outside,
        "mean_accepted_length": stats.mean_accepted_length,
        "rounds": len(drafted),
        "threads": args.threads,
        "kernels": kernels.state().isa if kernels.state().active else "off",
    }
    if args.json:
        print(json.dumps(report))
        return
    print(f"kernels                   {report['kernels']:>10}")
    print(f"one-token target decode   {token:7.2f} ms")
    print(f"draft round               {report['draft_round_ms']:7.2f} ms = {report['draft_to_decode']:.3f} of it")
    print(f"  of that in ggml         {report['draft_compute_ms']:7.2f} ms; {report['outside_of_draft']:.1%} outside")
    print(f"verify, {report['verify_rows']:.0f} rows           {report['verify_ms']:7.2f} ms")
    print(f"outside ggml and sampler  {report['outside_of_round']:7.2%} of a whole round")
    print(f"acceptance                {report['mean_accepted_length']:7.2f} tokens a drafted round, bonus included")


if __name__ == "__main__":
    main()
