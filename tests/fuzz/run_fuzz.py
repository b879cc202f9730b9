"""python run_fuzz.py BUILD_FOLDER SECONDS [TARGET...]: every fuzz target for so many seconds, and what came of it.

The corpus is kept in BUILD_FOLDER/corpus and grows from run to run. An input that ends a target is written to
BUILD_FOLDER/findings: minimise it (-minimize_crash=1), put it into regressions/<target>/, fix the kind.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NATIVE = ("draft", "saved", "capi")
READERS = ("safetensors", "config", "pickle", "sentencepiece", "tokenizer", "target_config", "gguf")


def command(target: str, build: Path) -> list[str]:
    """What runs the target, without options; its corpus has the seeds afterwards."""
    corpus = build / "corpus" / target
    corpus.mkdir(parents=True, exist_ok=True)
    if target in NATIVE:
        return [str(build / "tests" / "fuzz" / f"fuzz_{target}"), str(corpus), str(build / "corpus" / "seeds" / target)]
    import converter_readers

    for i, seed in enumerate(converter_readers.SEEDS[target]):
        (corpus / f"seed-{i}").write_bytes(seed)
    return [sys.executable, str(HERE / "fuzz_converter.py"), target, str(corpus)]


def main() -> int:
    build, seconds = Path(sys.argv[1]).resolve(), int(sys.argv[2])
    targets = sys.argv[3:] or [*NATIVE, *READERS]
    (build / "findings").mkdir(exist_ok=True)
    if set(targets) & set(NATIVE):
        subprocess.run([build / "tests" / "fuzz" / "write_seeds", build / "corpus" / "seeds"], check=True)
    failed = 0
    for target in targets:
        regressions = [str(HERE / "regressions" / target)] if (HERE / "regressions" / target).is_dir() else []
        options = [
            f"-max_total_time={seconds}",
            "-max_len=16384" if target == "draft" else "-max_len=4096",
            "-rss_limit_mb=4096",  # nothing may take memory out of proportion to the input
            "-timeout=120",
            f"-artifact_prefix={build}/findings/{target}-",
        ]
        run = subprocess.run(
            [*command(target, build), *regressions, *options],
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            env={**os.environ, "GOMP_SPINCOUNT": "1000"},
        )
        n_runs = re.findall(r"^(?:Done |#)(\d+)", run.stderr, re.M)
        coverage = re.findall(r"cov: (\d+)", run.stderr)
        print(
            f"{target:16} {n_runs[-1] if n_runs else 0:>10} inputs, {coverage[-1] if coverage else 0:>6} edges", end=""
        )
        print("" if run.returncode == 0 else f", ended with {run.returncode}", flush=True)
        if run.returncode:
            failed += 1
            print(run.stderr[-4000:], file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
