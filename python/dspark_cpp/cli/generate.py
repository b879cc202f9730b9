"""dspark-cpp generate: text from a target, with or without a draft."""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from .. import errors

__all__ = ["add_parser", "run"]


def add_parser(subparsers: Any) -> None:
    p = subparsers.add_parser(
        "generate",
        help="generate text, with a draft or without",
        description="Generates text, with the demo pair unless -m is given. Text on stdout, a summary on stderr.",
    )
    p.add_argument("-m", "--model", metavar="GGUF", help="target model; default: the demo target")
    p.add_argument("-md", "--model-draft", metavar="GGUF", help="draft; default: the demo draft if -m is not given")
    prompt = p.add_mutually_exclusive_group(required=True)
    prompt.add_argument("-p", "--prompt", help="raw prompt")
    prompt.add_argument("--chat", metavar="TEXT", help="a user's message, put into the model's chat template")
    prompt.add_argument("--prompt-ids", metavar="1,2,3", help="token ids of the prompt")
    p.add_argument("-n", "--n-predict", type=int, default=256, metavar="N", help="most tokens to generate (256)")
    p.add_argument("-c", "--ctx-size", type=int, default=2048, metavar="N", help="context size (2048)")
    p.add_argument("-b", "--batch-size", type=int, default=512, metavar="N", help="tokens of one prompt batch (512)")
    p.add_argument("-t", "--threads", type=int, metavar="N", help="threads; default: llama-cpp-python's choice")
    p.add_argument(
        "-ngl", "--gpu-layers", type=int, default=0, metavar="N", help="target layers on the GPU, -1: all (0)"
    )
    p.add_argument(
        "-ngld", "--gpu-layers-draft", type=int, metavar="N", help="0: draft on the CPU; default: as the target"
    )
    p.add_argument("--temp", type=float, default=0.0, help="temperature; 0: greedy (0)")
    p.add_argument("--top-k", type=int, default=40)
    p.add_argument("--top-p", type=float, default=0.95)
    p.add_argument("--min-p", type=float, default=0.05)
    p.add_argument("--seed", type=int, help="seed of the draws; default: random")
    p.add_argument("--no-draft", action="store_true", help="decode plainly")
    p.add_argument("--n-max", type=int, metavar="K", help="most drafted tokens a round; default: automatic")
    p.add_argument(
        "--confidence-min", type=float, default=0.0, metavar="P", help="end a proposal at a lower confidence (0)"
    )
    p.add_argument(
        "--verify",
        choices=("match", "rejection"),
        default="match",
        help="how drafts are verified when sampling: rejection accepts more, match keeps seeds (match)",
    )
    p.add_argument(
        "--kernels",
        choices=("auto", "on", "off"),
        default="auto",
        help="this package's CPU kernels, or llama.cpp's (auto)",
    )
    p.add_argument("--ignore-eos", action="store_true", help="do not stop at end-of-generation tokens")
    p.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    p.add_argument("--trace", action="store_true", help="with --json: every round")
    p.add_argument("-v", "--verbose", action="store_true", help="llama.cpp's log on stderr")
    p.set_defaults(func=run)


def _prompt_ids(args: argparse.Namespace, llm: Any) -> list[int]:
    from ..tokens import encode, encode_chat

    if args.prompt is not None:
        return encode(llm, args.prompt)
    if args.chat is not None:
        return encode_chat(llm, [{"role": "user", "content": args.chat}])
    try:
        return [int(part) for part in args.prompt_ids.split(",")]
    except ValueError:
        raise errors.ArgumentError(f"--prompt-ids is {args.prompt_ids!r}, expected integers with commas") from None


def _check(args: argparse.Namespace) -> None:
    for name, value, low in (
        ("-n", args.n_predict, 0),
        ("-c", args.ctx_size, 1),
        ("-b", args.batch_size, 1),
        ("-t", args.threads, 1),
        ("--n-max", args.n_max, 0),
    ):
        if value is not None and value < low:
            raise errors.ArgumentError(f"{name} is {value}, expected {low} or more")
    if args.trace and not args.json:
        raise errors.ArgumentError("--trace adds rounds to the JSON object, so it needs --json")
    if args.model_draft and not args.model:
        raise errors.ArgumentError("-md needs the draft's target: give it with -m")


def run(args: argparse.Namespace) -> int:
    from .. import demo, kernels
    from ..draft import Draft
    from ..sampling import Sampler
    from ..session import Session
    from ..target import open_target
    from ..tokens import TextStream

    _check(args)
    target_path = args.model or demo.target_path()
    draft_path = args.model_draft or (None if args.model else demo.draft_path())
    threads = {} if args.threads is None else {"n_threads": args.threads, "n_threads_batch": args.threads}
    # before the target, which takes longer: a wrong draft is then known at once
    if draft_path and not args.no_draft:
        Draft(draft_path, inspect=True).close()
    active = kernels.install(args.kernels, target_path).active
    try:
        llm = open_target(
            target_path,
            flash_attn=active and args.gpu_layers == 0,
            n_ctx=args.ctx_size,
            n_batch=args.batch_size,
            n_gpu_layers=args.gpu_layers,
            verbose=args.verbose,
            **threads,
        )
    except errors.FormatError:  # it is a draft
        raise
    except ValueError as exc:
        raise errors.FileError(f"cannot load the target {target_path}: {exc}") from None

    draft = None
    if draft_path and not args.no_draft:
        draft = Draft(draft_path, target=llm, device="CPU" if args.gpu_layers_draft == 0 else None)
    sampler = (
        Sampler(llm, temp=args.temp, top_k=args.top_k, top_p=args.top_p, min_p=args.min_p, seed=args.seed)
        if args.temp > 0
        else None
    )
    with Session(
        llm,
        draft,
        n_draft_max=args.n_max,
        auto_depth=args.n_max is None,
        verify=args.verify,
        confidence_min=args.confidence_min,
    ) as session:
        stream = TextStream(llm)
        ids: list[int] = []
        pieces: list[str] = []
        rounds: list[dict[str, Any]] = []
        prompt = _prompt_ids(args, llm)
        tokens = session.generate(prompt, max_tokens=args.n_predict, sampler=sampler, stop_at_eog=not args.ignore_eos)
        start = time.perf_counter()
        for token in tokens:
            ids.append(token)
            pieces.append(stream.push(token))
            if not args.json:
                print(pieces[-1], end="", flush=True)
            if args.trace:
                _trace(rounds, session, token)
        seconds = time.perf_counter() - start
        pieces.append(stream.flush())
        if not args.json:
            print(pieces[-1])

        stats = session.stats
        result: dict[str, Any] = {
            "text": "".join(pieces),
            "tokens": ids,
            "finish_reason": session.finish_reason,
            "n_prompt": len(prompt),
            "draft_n": stats.draft_n,
            "draft_n_accepted": stats.draft_n_accepted,
            "n_by_rejection": stats.n_by_rejection,
            "mean_accepted_length": stats.mean_accepted_length,
            "acceptance_per_position": [round(rate, 4) for rate in stats.acceptance_per_position],
            "tokens_per_second": len(ids) / seconds if seconds > 0 else 0.0,
            "disabled_reason": session.disabled_reason,
            "match_reason": session.match_reason,
            "timings": {
                "prompt_s": stats.t_prompt,
                "inject_s": stats.t_inject,
                "draft_s": stats.t_draft,
                "draft_compute_s": stats.t_draft_compute,
                "verify_s": stats.t_verify,
                "sample_s": stats.t_sample,
                "generate_s": seconds,
                "n_rounds": stats.n_rounds,
                "n_rounds_drafted": stats.n_rounds_drafted,
            },
        }
        if args.trace:
            result["rounds"] = rounds
        if args.json:
            print(json.dumps(result, ensure_ascii=False))
        else:
            _summary(result)
    return 0


def _trace(rounds: list[dict[str, Any]], session: Any, token: int) -> None:
    """Keeps the round that token was sampled from; its last token is the target's own, `next`."""
    current = session.last_round
    if current is None:  # the first token, from the prompt's logits
        return
    entry = {**current.as_dict(), "next": token}
    if rounds and rounds[-1]["position"] == entry["position"]:
        rounds[-1] = entry
    else:
        rounds.append(entry)


def _summary(result: dict[str, Any]) -> None:
    text = f"[{len(result['tokens'])} tokens, {result['tokens_per_second']:.1f} tokens/s, {result['finish_reason']}"
    if result["draft_n"]:
        rate = result["draft_n_accepted"] / result["draft_n"]
        n_rounds, n_drafted = result["timings"]["n_rounds"], result["timings"]["n_rounds_drafted"]
        text += (
            f"; {result['draft_n_accepted']} of {result['draft_n']} drafted tokens accepted ({rate:.0%}); "
            f"{n_drafted} of {n_rounds} rounds drafted, {result['mean_accepted_length']:.2f} tokens in each of those"
        )
    elif result["disabled_reason"]:
        text += f"; plain: {result['disabled_reason']}"
    print(text + "]", file=sys.stderr)
