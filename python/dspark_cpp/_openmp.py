"""llama.cpp's OpenMP threads: how long they spin while they wait for each other, and what a fork finds of them.

Built with GCC, ggml's thread pool is libgomp's, whose threads spin for long before they sleep. Beside another busy
process a decode then waits for a time slice at each of several hundred barriers. A short spin costs nothing on an idle
machine and little on a busy one. Tokens per second of the demo pair, 2 threads on 2 cores, idle and beside two busy
loops: libgomp's default 240 and 13, 1000 turns 290 and 127, sleeping at once 75 and 185.

libgomp reads its variable when it is loaded, so it is set from the import of this package until llama_cpp is there.

A fork copies the record of the threads and not the threads: the child's first decode would wait for them for ever. So
they are let go before a fork; both processes start new ones.
"""

from __future__ import annotations

import os
import sys
from typing import Any

__all__ = ["forget_short_spins", "let_threads_go_before_forks", "want_short_spins"]

_OURS = "1000"
_set = False


def want_short_spins() -> None:
    """Sets the variable, unless the user has decided or llama_cpp is loaded already."""
    global _set
    if "llama_cpp" not in sys.modules and not {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = _OURS
        _set = True


def forget_short_spins() -> None:
    """Takes it away again: programs that are started later are none of our business."""
    global _set
    if _set and os.environ.get("GOMP_SPINCOUNT") == _OURS:
        del os.environ["GOMP_SPINCOUNT"]
    _set = False


def let_threads_go_before_forks(library: Any) -> None:
    """``library``: llama.cpp's, through which the functions of the OpenMP that it uses are found."""
    pause = getattr(library, "omp_pause_resource_all", None)  # OpenMP 5.0
    if pause is not None and hasattr(os, "register_at_fork"):
        os.register_at_fork(before=lambda: pause(1) and None)  # omp_pause_soft
