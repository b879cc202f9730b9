"""Work spread over processes, whose results come back in order."""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from ..errors import BackendError

__all__ = ["default_workers", "ordered"]

#: runs in each process: takes (index, item) pairs, yields (index, result) pairs in any order
Worker = Callable[[Iterator[tuple[int, Any]]], Iterator[tuple[int, Any]]]


def default_workers(model_path: str | os.PathLike[str]) -> int:
    """A process for each core where so many copies of the target fit into a quarter of the memory that is free.

    Processes of one thread each do not wait for each other at every operation, as threads of one process do.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return 1
    return max(1, min(cores, free // 4 // max(1, 2 * Path(model_path).stat().st_size)))


def ordered(worker: Worker, items: Iterable[Any], n_workers: int) -> Iterator[Any]:
    """Yields worker's result of every item, in the items' order. worker is picklable; with n_workers 1 it runs here.

    Raises: What the worker raises, or BackendError: a process has died.
    """
    results = worker(enumerate(items)) if n_workers == 1 else _from_processes(worker, items, n_workers)
    done: dict[int, Any] = {}
    following = 0
    for index, result in results:
        done[index] = result
        while following in done:
            yield done.pop(following)
            following += 1


def _from_processes(worker: Worker, items: Iterable[Any], n_workers: int) -> Iterator[tuple[int, Any]]:
    spawn = multiprocessing.get_context("spawn")  # a process forked beside OpenMP's threads would hang
    tasks, results = spawn.Queue(), spawn.Queue(maxsize=64)
    processes = [spawn.Process(target=_serve, args=(worker, tasks, results), daemon=True) for _ in range(n_workers)]
    try:
        for process in processes:
            process.start()
        # all at once: a worker that had to wait for another item would hold up those it has begun
        n_left = 0
        for pair in enumerate(items):
            tasks.put(pair)
            n_left += 1
        for _ in processes:
            tasks.put(None)
        while n_left:
            try:
                index, result = results.get(timeout=5)
            except queue.Empty:
                if any(process.exitcode not in (None, 0) for process in processes):
                    raise BackendError("a worker process has died; what was finished before is kept") from None
                continue
            if isinstance(result, BaseException):
                raise result
            n_left -= 1
            yield index, result
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


def _serve(worker: Worker, tasks: Any, results: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        for pair in worker(iter(tasks.get, None)):
            results.put(pair)
    except KeyboardInterrupt:
        pass
    except BaseException as e:
        results.put((-1, e))


def _end_with_parent() -> None:
    """A run that is killed cannot end its processes; they would wait for ever to hand over what they have."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
