"""How the tests of the drop-in open a tiny target, plain or drafted: in f32, where equal means every bit."""

from __future__ import annotations

from typing import Any

F32 = 0  # ggml_type
PLAIN: dict[str, Any] = {
    "n_ctx": 512,
    "n_threads": 1,
    "n_threads_batch": 1,
    "verbose": False,
    # an f16 cache moves the logits of a block by up to 6e-4, enough to flip a draw now and then
    "type_k": F32,
    "type_v": F32,
}
# as many as the draft proposes: the automatic length follows the clock
SETTINGS: dict[str, Any] = {"draft_n_max": 31, **PLAIN}
