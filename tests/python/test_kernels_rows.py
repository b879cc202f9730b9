"""Logits of whole models with the kernels on: a row has the same bits alone and in any batch, with any threads."""

from __future__ import annotations

from collections.abc import Callable

import pytest

PROGRAM = """
import ctypes, hashlib, sys
import llama_cpp
import numpy as np
from dspark_cpp import kernels

path, flash, mode = sys.argv[1], sys.argv[2] == "flash", sys.argv[3]
installed = kernels.install(mode)
print(installed.reason, file=sys.stderr)
quiet = llama_cpp.llama_log_callback(lambda *_: None)
llama_cpp.llama_log_set(quiet, ctypes.c_void_p(0))
model = llama_cpp.llama_model_load_from_file(path.encode(), llama_cpp.llama_model_default_params())
n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
ids = np.random.default_rng(3).integers(5, min(n_vocab, 40000), 1200)
settings = llama_cpp.llama_context_default_params()
settings.n_ctx, settings.n_batch, settings.n_ubatch = 1536, 512, 512
settings.flash_attn_type = int(flash)
ctx = llama_cpp.llama_init_from_model(model, settings)
memory = llama_cpp.llama_get_memory(ctx)
batch = llama_cpp.llama_batch_init(512, 0, 1)

def decode(tokens, pos, n_threads):
    "The logits of every row."
    llama_cpp.llama_set_n_threads(ctx, n_threads, n_threads)
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = int(token), pos + i, 1, len(tokens) <= 16
        batch.seq_id[i][0] = 0
    assert llama_cpp.llama_decode(ctx, batch) == 0
    return [hashlib.sha256(ctypes.string_at(llama_cpp.llama_get_logits_ith(ctx, i), 4 * n_vocab)).hexdigest()
            for i in range(len(tokens)) if len(tokens) <= 16]

def forget(pos):
    llama_cpp.llama_memory_seq_rm(memory, 0, pos, -1)

filled = 0
for context in map(int, sys.argv[4:]):
    while filled < context:
        n = min(512, context - filled)
        decode(ids[filled : filled + n], filled, 2)
        filled += n
    alone = [decode(ids[context + i : context + i + 1], context + i, 1)[0] for i in range(16)]
    wrong = []
    for n in (2, 3, 5, 8, 16):
        for n_threads in (1, 2, 3):
            forget(context)
            got = decode(ids[context : context + n], context, n_threads)
            if got != alone[:n]:
                wrong.append((n, n_threads))
    # rejected drafts leave cells behind them; then the same tokens one or some at a time
    forget(context + 1)
    decode(ids[:7], context + 1, 2)
    forget(context + 3)
    forget(context + 1)
    got = decode(ids[context + 1 : context + 3], context + 1, 2)
    decode(ids[100:104], context + 3, 1)
    forget(context + 3)
    got += decode(ids[context + 3 : context + 9], context + 3, 2)
    if got != alone[1:9]:
        wrong.append("rollback")
    forget(context)
    print(context, wrong or "same")
    state = kernels.state()
print(state.n_attention > installed.n_attention or not flash, file=sys.stderr)
"""


@pytest.mark.parametrize("flash", ["flash", "plain"])
@pytest.mark.parametrize("model", ["smollm_f16", "smollm", "gemma3"])  # Gemma: a sliding window of 512 in most layers
def test_every_row_has_the_logits_that_it_has_alone(
    run_python: Callable[..., object], request: pytest.FixtureRequest, model: str, flash: str
) -> None:
    path = request.getfixturevalue(model + "_path")
    done = run_python(PROGRAM, path, flash, "auto", 64, 600, 1100, timeout=600)
    assert done.returncode == 0, done.stderr  # type: ignore[attr-defined]
    reason, hooked = done.stderr.splitlines()[-2:]  # type: ignore[attr-defined]
    if reason:
        pytest.skip(f"no kernels here: {reason}")
    assert hooked == "True"
    assert done.stdout.splitlines() == ["64 same", "600 same", "1100 same"]  # type: ignore[attr-defined]
