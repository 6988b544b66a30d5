"""Signals that end the app."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from typing import Any

_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


class Handlers:
    """What was there before; ``restore`` puts it back."""

    def __init__(self, before: dict[signal.Signals, Any]) -> None:
        self._before = before

    def restore(self) -> None:
        """Back to the handlers of before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)


def on_signals(at_once: Callable[[], None], then: Callable[[], None]) -> Handlers:
    """At each signal that asks to go: ``at_once`` in its handler, ``then`` in the loop. For the main thread, in a loop.

    The loop's own handlers run as callbacks of the loop, so not while something holds it up; these run at once, also
    while it waits for a lock. ``at_once`` must only do what is safe there.
    """
    loop = asyncio.get_running_loop()

    def handle(number: int, frame: object) -> None:
        del number, frame
        at_once()
        loop.call_soon_threadsafe(then)

    # A handler that C code has set cannot be put back: then the default is.
    return Handlers({number: signal.signal(number, handle) or signal.SIG_DFL for number in _ENDING})
