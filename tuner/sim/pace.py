"""How fast simulated time runs."""

from __future__ import annotations

import asyncio
import time

import msgspec

#: Recorded seconds of a start are shortened by this at speed 1: the 57 s of a 27B with graphs take about 4 s.
START_SCALE = 0.07


class Pace(msgspec.Struct, frozen=True):
    """``factor`` 1: a start in about 4 s, serving as recorded; 0: everything at once; 14: a start as recorded."""

    factor: float = 1.0

    def start_s(self, recorded: float) -> float:
        """Seconds that something of a start or a stop takes, given the recorded seconds."""
        return recorded * START_SCALE * self.factor

    def serve_s(self, recorded: float) -> float:
        """Seconds that something takes while serving, given the recorded seconds."""
        return recorded * self.factor

    def sleep_start(self, recorded: float) -> None:
        """Waits inside a start."""
        if self.factor > 0 and recorded > 0:
            time.sleep(self.start_s(recorded))

    async def serve(self, recorded: float) -> None:
        """Waits while serving; always lets other tasks run."""
        await asyncio.sleep(self.serve_s(recorded))

    async def stop(self, recorded: float) -> None:
        """Waits inside a stop."""
        await asyncio.sleep(self.start_s(recorded))
