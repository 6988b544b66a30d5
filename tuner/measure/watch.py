"""A time budget and the operator's wish to stop, for work that runs on an event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

_LOOK_S = 0.05


class Budget:
    """``left_s`` of ``seconds`` counts down from the creation on; ``cancel`` ends it at once."""

    def __init__(self, seconds: float, cancel: threading.Event | None = None) -> None:
        self._seconds = seconds
        self._cancel = cancel or threading.Event()
        self._began = time.monotonic()

    @property
    def spent_s(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._began

    @property
    def left_s(self) -> float:
        """Seconds that are left, at least 0."""
        return max(0.0, self._seconds - self.spent_s)

    @property
    def over(self) -> bool:
        """Whether to stop."""
        return self._cancel.is_set() or self.left_s == 0.0

    @property
    def why(self) -> str:
        """Why to stop, one sentence; empty while there is time."""
        if self._cancel.is_set():
            return "It was broken off."
        return "" if self.left_s else f"The time for it ({self._seconds:g} s) was used up."

    async def run(self, work: Coroutine[Any, Any, T]) -> T | None:
        """``work``'s result, or None when it had to be stopped: then it is cancelled, and awaited."""
        task = asyncio.ensure_future(work)
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_S)
            if self.over and not task.done():
                task.cancel()
                await asyncio.wait({task})
        return None if task.cancelled() else task.result()
