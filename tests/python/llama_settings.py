"""How the tests of the drop-in open a tiny target, plain or drafted: in f32, where equal means every bit."""

from __future__ import annotations

from typing import Any

F32 = 0  # ggml_type
SETTINGS: dict[str, Any] = {
    "draft_n_max": 31,  # as many as the draft proposes: the automatic length follows the clock
    "n_ctx": 512,
    "n_threads": 1,
    "n_threads_batch": 1,
    "verbose": False,
    "type_k": F32,
    "type_v": F32,
}
