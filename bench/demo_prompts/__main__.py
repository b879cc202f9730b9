"""Writes the prompts that the demo draft was trained on: python bench/demo_prompts OUT.jsonl [--n 9000] [--seed 1]

40 % code, 30 % mathematics, 30 % chat, shuffled, all of them from the templates in this folder and from docstrings of
the Python standard library. --without FILE...: prompts that share eight words in a row with these files are dropped.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from random import Random

import chat
import code_requests as code
import math_problems as math

#: what benchmarks write around every problem: no part of any
FRAMES = (math.BOXED, code.COMPLETE)


def grams(text: str, n: int = 8) -> set[tuple[str, ...]]:
    for frame in FRAMES:
        text = text.replace(frame, " ")
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {tuple(words[i : i + n]) for i in range(len(words) - n + 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--n", type=int, default=9000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--without", type=Path, nargs="*", default=[])
    args = parser.parse_args()
    held_out: set[tuple[str, ...]] = set()
    for path in args.without:
        for line in path.read_text(encoding="utf-8").splitlines():
            for turn in json.loads(line)["turns"]:
                held_out |= grams(turn)
    rng = Random(args.seed)
    kinds = (
        ("code", 0.4, code.request),
        ("math-words", 0.17, math.word_problem),
        ("math", 0.13, math.exercise),
        ("chat", 0.3, chat.request),
    )
    seen: set[str] = set()
    dropped = {"same": 0, "held out": 0}
    with args.out.open("w", encoding="utf-8") as file:
        while len(seen) < args.n:
            source, _, make = rng.choices(kinds, [share for _, share, _ in kinds])[0]
            prompt = make(rng)
            if prompt in seen:
                dropped["same"] += 1
            elif grams(prompt) & held_out:
                dropped["held out"] += 1
            else:
                seen.add(prompt)
                file.write(json.dumps({"prompt": prompt, "source": source}) + "\n")
    print(f"{len(seen)} prompts; dropped: {dropped}")


if __name__ == "__main__":
    main()
