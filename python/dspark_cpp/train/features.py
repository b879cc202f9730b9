"""Features of the responses: the target is run over them, and what a draft will see is kept in shards."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from .. import kernels
from ..convert.target import open_target as describe_target
from ..convert.target import tokens_sha256
from ..errors import ArgumentError
from ..features import FeatureReader
from ..target import open_target
from .responses import Response
from .shards import Sample, ShardWriter, file_sha256
from .workers import default_workers, ordered

__all__ = ["bytes_per_token", "write_features"]


def bytes_per_token(n_taps: int, n_embd: int, top_k: int) -> int:
    """What a token of prompt or response takes on disk."""
    return 4 + 2 * n_taps * n_embd + 6 * top_k


def _work(
    target: str, taps: Sequence[int], top_k: int, n_ctx: int, n_threads: int, items: Iterator[tuple[int, Response]]
) -> Iterator[tuple[int, Sample]]:
    kernels.install("auto", target)
    # longer sequences are decoded in parts of n_batch; one part is fastest while it stays in the caches
    llm = open_target(
        target, n_ctx=n_ctx, n_batch=512, n_threads=n_threads, n_threads_batch=n_threads, flash_attn=True, verbose=False
    )
    try:
        with FeatureReader(llm, taps) as reader:
            for place, response in items:
                tokens = [*response.prompt, *response.response]
                first = len(response.prompt) - 1  # its distribution is that of the response's first token
                read = reader.read(tokens, first_row=first, top_k=top_k)
                top_ids = np.zeros((len(tokens), top_k), np.int32)
                top_probs = np.zeros((len(tokens), top_k), np.float16)
                top_ids[first:], top_probs[first:] = read.top_ids, read.top_probs
                features = np.clip(read.features, -65504, 65504).astype(np.float16)
                yield place, Sample(np.array(tokens, np.int32), len(response.prompt), features, top_ids, top_probs)
    finally:
        llm.close()


def write_features(
    target: str | os.PathLike[str],
    responses: Iterable[Response],
    folder: str | os.PathLike[str],
    taps: Sequence[int],
    *,
    n_ctx: int,
    top_k: int = 32,
    seed: int = 0,
    settings: dict[str, Any] | None = None,
    max_bytes: int | None = None,
    n_workers: int | None = None,
    n_threads: int | None = None,
) -> Iterator[int]:
    """Writes the features of all responses to shards, and yields the tokens of each sequence that is done.

    What the folder holds already is kept: a run that is started again goes on behind its last whole shard, and the
    shards become the same as those of an uninterrupted run.

    Args:
        taps: Layers whose inputs are kept, as in a draft's file.
        n_ctx: Longest prompt and response together.
        top_k: Kept probabilities of each row of a response.
        seed: Of the responses, noted in the manifest, as the settings are.
        max_bytes: The folder gets no more sequences once it would be larger.
        n_workers, n_threads: As in generate_responses().

    Raises:
        MismatchError: The folder holds features of another target, or other ones; the target hands out no features.
        FileError: The folder cannot be written, or the disk is full; whole shards stay.
    """
    target = os.fspath(target)
    about = describe_target(Path(target))
    if not taps or min(taps) < 0 or max(taps) > about.n_layer:
        raise ArgumentError(f"the taps are {list(taps)}, expected layers from 0 to {about.n_layer}")
    writer = ShardWriter(
        folder,
        target_sha256=file_sha256(target),
        tokenizer_sha256=tokens_sha256(about.tokens),
        taps=taps,
        n_embd=about.hidden_size,
        n_vocab=about.n_vocab,
        top_k=top_k,
        seed=seed,
        settings={**(settings or {}), "target": Path(target).name},
    )
    workers = n_workers or default_workers(target)
    threads = n_threads or max(1, (os.cpu_count() or 1) // workers)
    room = None if max_bytes is None else max_bytes // bytes_per_token(len(taps), about.hidden_size, top_k)
    todo = islice(_that_fit(responses, room), writer.n_sequences, None)
    work = functools.partial(_work, target, tuple(taps), top_k, n_ctx, threads)
    with writer:
        for sample in ordered(work, todo, workers):
            writer.add(sample)
            yield len(sample.tokens)


def _that_fit(responses: Iterable[Response], n_tokens: int | None) -> Iterator[Response]:
    for response in responses:
        if n_tokens is not None:
            n_tokens -= len(response.prompt) + len(response.response)
            if n_tokens < 0:
                return
        yield response
