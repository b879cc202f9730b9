"""dspark-cpp train: a draft for any target, from the target's own answers, on the user's own machine."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..errors import ArgumentError

__all__ = ["add_parser", "run"]

# option, field of the recipe, metavar, help
_SHAPE = (
    ("--layers", "n_layer", "N", "layers of the draft"),
    ("--block", "block_size", "N", "slots of a block"),
    (
        "--vocab",
        "n_vocab",
        "N",
        "tokens that the draft can propose, the most frequent; 0: all, by the target's head",
    ),
    ("--markov-rank", "markov_rank", "N", "width of the Markov head"),
)
_TRAINING = (
    ("--steps", "steps", "N", "length of the training in steps; 0: in minutes"),
    ("--minutes", "minutes", "N", "length of the training by the clock"),
    ("--sequences", "sequences", "N", "sequences of a step"),
    ("--anchors", "anchors", "N", "blocks of each of them"),
    ("--lr", "learning_rate", "X", "highest learning rate"),
    ("--decay", "decay", "X", "slot k weighs exp(-k / X) in the loss: lower for drafts of which little stands"),
    ("--held-out", "held_out", "X", "share of the prompts that is kept for evaluation"),
    ("--seed", "seed", "N", "seed of everything that is drawn"),
)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> argparse.ArgumentParser:
    """Register the subcommand; the parsed arguments carry `run` as `func`."""
    from ..train.recipe import MARKOV_KINDS, Recipe

    kinds: dict[str, Any] = {f.name: {"int": int, "float": float}.get(str(f.type)) for f in fields(Recipe)}
    default = Recipe()
    parser = subparsers.add_parser(
        "train",
        help="train a draft for a target",
        description="Train a draft for a target: it answers the prompts, its hidden states while it does so are kept, "
        "and a draft is trained on them. The command can be stopped at any time; the same command goes on. "
        "Needs the extra: pip install 'dspark-cpp-python[train]'.",
    )
    parser.add_argument("--target", required=True, type=Path, metavar="TARGET.gguf", help="model to make a draft for")
    parser.add_argument(
        "--prompts",
        nargs="+",
        type=Path,
        default=[],
        metavar="FILE",
        help='what it is asked, a line each: {"prompt": text}, {"turns": [text]}, {"ids": [...]} or plain text; '
        "thousands, of the kind that the draft is to be used for; default: the target writes them itself",
    )
    parser.add_argument("--n-prompts", type=int, default=4000, metavar="N", help="how many it writes (4000)")
    parser.add_argument("-o", "--output", required=True, type=Path, metavar="DIR", help="folder of the run")
    parser.add_argument(
        "--features",
        nargs="+",
        type=Path,
        default=[],
        metavar="DIR",
        help="features of other runs, RUN/features, instead of prompts",
    )
    parser.add_argument("--from", dest="draft", type=Path, metavar="DRAFT.gguf", help="train on an existing draft")
    parser.add_argument(
        "--heads-only",
        action="store_true",
        help="with --from: only its head, Markov and confidence head, to fit it to this target and these prompts",
    )
    shape = parser.add_argument_group("the draft (not with --from)")
    training = parser.add_argument_group("the training")
    for group, options in ((shape, _SHAPE), (training, _TRAINING)):
        for option, name, metavar, text in options:
            group.add_argument(
                option,
                dest=name,
                type=kinds[name],
                metavar=metavar,
                help=f"{text} (default: {getattr(default, name):g})",
            )
    shape.add_argument("--layout", choices=("anchor", "bonus"), help="whether slot 0 predicts (default: anchor)")
    shape.add_argument("--markov", choices=MARKOV_KINDS, help="kind of the Markov head (default: vanilla)")
    shape.add_argument("--no-confidence", action="store_true", help="no confidence head")
    shape.add_argument("--taps", type=int, nargs="+", default=[], metavar="N", help="layers whose inputs it reads")
    training.add_argument("--device", default="auto", help="cpu, cuda, ... (default: cuda where there is one)")
    training.add_argument("-t", "--threads", type=int, default=os.cpu_count() or 1, metavar="N", help="threads")
    data = parser.add_argument_group("the data")
    data.add_argument("--max-prompt", type=int, default=512, metavar="N", help="tokens; longer ones are left out (512)")
    data.add_argument("--max-response", type=int, default=256, metavar="N", help="tokens; longer ones are cut (256)")
    data.add_argument("--max-disk", type=float, default=20.0, metavar="GIB", help="for the features (default: 20)")
    parser.add_argument("--outtype", default="q8_0", choices=("f32", "f16", "bf16", "q8_0", "q4_0"), help="of the file")
    parser.add_argument("--verifier", metavar="NAME", help="name of the target that the checkpoint tells its readers")
    parser.set_defaults(func=run)
    return parser


def run(args: argparse.Namespace) -> int:
    """Train; 0 on success, 130 with everything kept where it is interrupted."""
    from ..train.pipeline import Run, require_torch, run_training
    from ..train.recipe import Recipe

    require_torch()
    chosen = {name: getattr(args, name) for _, name, *_ in (*_SHAPE, *_TRAINING) if getattr(args, name) is not None}
    chosen |= {name: getattr(args, name) for name in ("layout", "markov") if getattr(args, name) is not None}
    if args.no_confidence:
        chosen["confidence"] = False
    shape = {name for _, name, *_ in _SHAPE} | {"layout", "markov", "confidence"}
    if args.draft is not None and shape & chosen.keys():
        raise ArgumentError(f"{min(shape & chosen.keys())} is that of the draft; it cannot be chosen with --from")
    job = Run(
        target=args.target,
        prompts=tuple(args.prompts),
        out=args.output,
        recipe=Recipe(**chosen),
        draft=args.draft,
        heads_only=args.heads_only,
        features=tuple(args.features),
        taps=tuple(args.taps),
        n_prompts=args.n_prompts,
        max_prompt=args.max_prompt,
        max_response=args.max_response,
        max_disk=args.max_disk,
        n_threads=args.threads,
        device=_device(args.device),
        outtype=args.outtype,
        verifier=args.verifier,
    )
    # as SIGINT: what has been begun is ended, worker processes included
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        print(run_training(job, _tell, _bar))
    except KeyboardInterrupt:
        _tell("stopped; the same command goes on")
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def _device(name: str) -> str:
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name)
    except (RuntimeError, AssertionError) as e:
        raise ArgumentError(f"device is {name!r}, which cannot be used: {str(e).splitlines()[0]}") from None
    return name


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _bar(what: str, total: float, unit: str) -> Any:
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]
        """Full at its total: the last step of a run by the clock ends later, and tqdm then forgets the total."""

        def update(self, n: float) -> None:
            super().update(min(n, self.total - self.n))

    form = "{l_bar}{bar}| {n:.0f}/{total:.0f} {unit} [{elapsed}<{remaining}{postfix}]"
    return Bar(total=total, desc=f"{what:12s}", unit=unit, bar_format=form, mininterval=1.0, file=sys.stderr)
