"""Who drives a Llama now: calls of several threads are served in turn; a suspended stream is told of the others."""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from . import errors

__all__ = ["Turns"]

T = TypeVar("T")

#: seconds for which a stream that nobody asks for its next token keeps the calls of other threads waiting
PATIENCE = 1.0


class _Owner:
    """Whoever has the turn; gone with the frame that made it, even if an exception came before it could be returned."""


class Turns:
    """One turn for each Llama.

    A turn is held by a whole call or stream, not by a thread: a stream may be made in one thread and read in another.
    Calls made while the holder computes, in its own thread, belong to it. A holder that is suspended (a stream between
    two tokens) loses the turn at once to a call of the thread that read it last, which could never be served
    otherwise, and to others after a second; ``epoch`` tells it.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._owner: Callable[[], _Owner | None] = lambda: None
        self._running: int | None = None  # the thread in which the holder computes now
        self._reader: int | None = None  # the thread in which it last did
        self._since = 0.0
        self._process = os.getpid()
        #: counts the changes of hands
        self.epoch = 0

    def inside(self) -> bool:
        """True in a call made by the holder's own computation."""
        return self._running == threading.get_ident() and self._owner() is not None

    def _free_for(self, owner: _Owner, me: int) -> bool:
        holder = self._owner()
        if holder is None or (holder is owner and self._running is None):
            return True
        if self._running is not None:
            return False
        return self._reader == me or time.monotonic() - self._since > PATIENCE

    @contextmanager
    def step(self, owner: _Owner) -> Iterator[None]:
        """The body computes for the owner."""
        if self.inside():
            yield
            return
        me = threading.get_ident()
        if self._process != os.getpid():
            self._enter_child()
        with self._changed:
            while not self._free_for(owner, me):
                self._changed.wait(0.05)
            if self._owner() is not owner:
                self.epoch += 1
                self._owner = weakref.ref(owner)
            self._running = self._reader = me
        try:
            yield
        finally:
            self._running = None
            self._since = time.monotonic()

    def _enter_child(self) -> None:
        """This process was forked from the one that made the object: threads that computed there do not exist here."""
        if self._running is not None:
            raise errors.StateError(
                "the Llama was in use by another thread when this process was forked; make a new one here"
            )
        self._changed = threading.Condition()  # the old one may have been held
        self._process = os.getpid()

    def _release(self, owner: _Owner) -> None:
        if self._owner() is owner:
            self._owner = lambda: None
            with self._changed:
                self._changed.notify_all()

    @contextmanager
    def call(self) -> Iterator[None]:
        """The body is one call."""
        owner = _Owner()
        with self.step(owner):
            yield
        self._release(owner)

    def serve(self, steps: Generator[T, Any, None]) -> Generator[T, Any, None]:
        """The same generator, taking its turn for every item."""
        owner = _Owner()
        sent = None
        try:
            while True:
                with self.step(owner):
                    try:
                        item = steps.send(sent)
                    except StopIteration:
                        return
                sent = yield item
        finally:
            # one that lost the turn has nothing to tidy up, and must not wait here
            if self._owner() is owner:
                with self.step(owner):
                    steps.close()
                self._release(owner)
            else:
                steps.close()
