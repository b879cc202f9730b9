"""Speed and acceptance of a draft on real prompts: plain decoding and several draft lengths, prompt by prompt.

PROMPTS is a JSON-lines file; each line has "prompt" or "turns" (text, put into the model's chat template) or "ids"
(token ids). Acceptance depends on what is written, so results from token ids are labelled: random ids say nothing
about a draft.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from dspark_cpp import Draft, Session, demo, encode_chat, open_target


def read_prompts(path: Path, limit: int | None) -> list[dict[str, Any]]:
    """The rows of a prompt file; exits with a sentence where one is not usable."""
    rows = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        row = json.loads(line)
        if "ids" in row:
            rows.append({"ids": row["ids"]})
        elif "prompt" in row or row.get("turns"):
            rows.append({"text": row["prompt"] if "prompt" in row else row["turns"][0]})
        else:
            raise SystemExit(f"{path}:{number}: no prompt, turns or ids in this line")
    if not rows:
        raise SystemExit(f"{path} has no prompts")
    return rows[:limit]


def measure(session: Session, ids: list[int], n: int, n_draft_max: int) -> dict[str, Any]:
    session.reset()
    session.reset_stats()
    tokens = session.generate(ids, max_tokens=n, n_draft_max=n_draft_max)
    start = time.perf_counter()
    out = list(tokens)
    return {"seconds": time.perf_counter() - start, "ids": out, "stats": session.stats}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompts", type=Path, nargs="+", metavar="PROMPTS")
    parser.add_argument("-m", "--model", help="target; default: the demo pair")
    parser.add_argument("-md", "--draft")
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("-n", "--n-predict", type=int, default=96)
    parser.add_argument(
        "--n-max", default="", help="draft lengths, comma separated; default: 1, 2, 3 and the draft's own"
    )
    parser.add_argument("--limit", type=int, help="prompts of each file")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()

    llm = open_target(args.model or demo.target_path(), n_ctx=2048, n_threads=args.threads, verbose=False)
    draft = Draft(args.draft or demo.draft_path(), target=llm)
    lengths = [int(k) for k in args.n_max.split(",")] if args.n_max else sorted({1, 2, 3, draft.n_draft_max})
    report = []
    with Session(llm, draft) as session:
        for path in args.prompts:
            rows = read_prompts(path, args.limit)
            ratios: dict[int, list[float]] = {k: [] for k in lengths}
            totals = {
                k: {"draft_n": 0, "accepted": 0, "rounds": 0, "same": 0, "at": [[0, 0] for _ in range(32)]}
                for k in lengths
            }
            plain_rate = []
            for row in rows:
                ids = row["ids"] if "ids" in row else encode_chat(llm, [{"role": "user", "content": row["text"]}])
                plain = measure(session, ids, args.n_predict, 0)
                plain_rate.append(len(plain["ids"]) / plain["seconds"])
                for k in lengths:
                    run = measure(session, ids, args.n_predict, k)
                    stats, total = run["stats"], totals[k]
                    ratios[k].append(len(run["ids"]) / run["seconds"] / plain_rate[-1])
                    total["draft_n"] += stats.draft_n
                    total["accepted"] += stats.draft_n_accepted
                    total["rounds"] += stats.n_rounds_drafted
                    total["same"] += run["ids"] == plain["ids"]
                    for pair, d, a in zip(total["at"], stats.n_drafted_at, stats.n_accepted_at, strict=True):
                        pair[0] += d
                        pair[1] += a
                print(".", end="", file=sys.stderr, flush=True)
            for k in lengths:
                total = totals[k]
                report.append(
                    {
                        "prompts": path.stem,
                        "kind": "text"
                        if all("text" in row for row in rows)
                        else "token ids: acceptance not representative",
                        "n_max": k,
                        "plain_tokens_per_second": statistics.median(plain_rate),
                        "speed_ratio": statistics.median(ratios[k]),
                        "mean_accepted_length": 1 + total["accepted"] / max(1, total["rounds"]),
                        "acceptance_per_position": [round(a / d, 3) for d, a in total["at"] if d],
                        "same_text": f"{total['same']}/{len(rows)}",
                    }
                )
    print(file=sys.stderr)
    if args.json:
        print(json.dumps(report))
        return
    for row in report:
        rates = " ".join(f"{rate:.2f}" for rate in row["acceptance_per_position"])
        label = "" if row["kind"] == "text" else f"  [{row['kind']}]"
        print(
            f"{row['prompts']:10} n_max {row['n_max']}: {row['speed_ratio']:.2f}x of "
            f"{row['plain_tokens_per_second']:.0f} tokens/s, "
            f"{row['mean_accepted_length']:.2f} tokens a round ({rates}), same text {row['same_text']}{label}"
        )


if __name__ == "__main__":
    main()
