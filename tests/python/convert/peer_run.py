"""One run of xllamacpp (llama.cpp's own server code) with a draft, in a process of its own: it may abort.

Arguments: target.gguf draft.gguf n_max; a JSON list of {"prompt": ids, "n": tokens} on stdin. Prints a JSON list of
[drafted, accepted, text], or {"refused": reason}.
"""

from __future__ import annotations

import json
import sys

import xllamacpp


def main() -> None:
    target, draft, n_max = sys.argv[1:4]
    params = xllamacpp.CommonParams()
    params.model.path = target
    params.n_ctx = 512
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = 2
    params.speculative.types = [xllamacpp.common_speculative_type.COMMON_SPECULATIVE_TYPE_DRAFT_DSPARK]
    params.speculative.draft.mparams.path = draft
    params.speculative.draft.n_max = int(n_max)
    params.speculative.draft.n_min = 0
    params.speculative.draft.p_min = 0.0
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as e:
        print(json.dumps({"refused": str(e)}))
        return
    runs = []
    for job in json.load(sys.stdin):
        request = {
            "prompt": job["prompt"],
            "n_predict": job["n"],
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        reply = server.handle_completions(request)
        timings = reply["timings"]
        runs.append([timings.get("draft_n", 0), timings.get("draft_n_accepted", 0), reply["choices"][0]["text"]])
    print(json.dumps(runs))


if __name__ == "__main__":
    main()
