"""The peer's side of a benchmark: xllamacpp as a process that answers one JSON line with one."""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def main() -> None:
    """Reads its settings from the argument, then {"prompt": [ids], "n_predict": n} line by line from stdin."""
    import xllamacpp as x  # type: ignore[import-untyped, import-not-found, unused-ignore]

    settings = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints is not an answer
    p = x.CommonParams()
    p.model.path = settings["target"]
    p.n_ctx, p.n_parallel = 2048, 1
    p.cpuparams.n_threads = p.cpuparams_batch.n_threads = settings["n_threads"]
    p.sampling.temp, p.sampling.top_k, p.sampling.seed = 0.0, 1, 1
    p.cache_prompt = False
    p.verbosity = -1
    if settings["draft"]:
        s = p.speculative
        s.types = [x.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK]
        s.draft.mparams.path = settings["draft"]
        s.draft.n_max, s.draft.n_min, s.draft.p_min = settings["n_max"], 0, settings["p_min"]
        s.draft.cpuparams.n_threads = s.draft.cpuparams_batch.n_threads = settings["n_threads"]
    server = x.Server(p)
    for line in sys.stdin:
        job = json.loads(line)
        request: dict[str, Any] = {
            "prompt": job["prompt"],
            "max_tokens": job["n_predict"],
            "temperature": 0.0,
            "top_k": 1,
            "seed": 1,
            "cache_prompt": False,
        }
        answer = server.handle_completions(request)
        timings = (json.loads(answer) if isinstance(answer, (str, bytes)) else answer)["timings"]
        found = {
            "n": timings["predicted_n"],
            "ms": timings["predicted_ms"],
            "prompt_ms": timings["prompt_ms"],
            "draft_n": timings.get("draft_n", 0),
            "draft_n_accepted": timings.get("draft_n_accepted", 0),
        }
        print(json.dumps(found), file=answers, flush=True)
    os._exit(0)  # its threads do not end by themselves


if __name__ == "__main__":
    main()
