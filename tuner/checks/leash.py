"""What ends a request early: the operator, or a time budget that is used up."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

_LOOK_S = 0.05


class Leash:
    """``stop`` is set as soon as ``cancel`` is or ``budget_s`` seconds have passed."""

    def __init__(self, cancel: threading.Event, budget_s: float) -> None:
        self.stop = threading.Event()
        self._cancel = cancel
        self._budget_s = budget_s

    @property
    def why(self) -> str:
        """Why it was stopped, one sentence."""
        if self._cancel.is_set():
            return "It was broken off."
        return f"The time for the checks ({self._budget_s:g} s) was used up."


@contextmanager
def leash(cancel: threading.Event, budget_s: float) -> Iterator[Leash]:
    """A leash for the requests made inside."""
    held = Leash(cancel, budget_s)
    over = threading.Event()
    deadline = time.monotonic() + budget_s

    def watch() -> None:
        while not cancel.is_set() and time.monotonic() < deadline:
            if over.wait(_LOOK_S):
                return
        held.stop.set()

    if cancel.is_set():
        held.stop.set()
    watcher = threading.Thread(target=watch, name="checks-leash", daemon=True)
    watcher.start()
    try:
        yield held
    finally:
        over.set()
        watcher.join()
