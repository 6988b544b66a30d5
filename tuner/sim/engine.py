"""Plays the scheduler in time, and lets the card's memory and the faults of serving happen."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from tuner.sim import tracebacks
from tuner.sim.faults import Fault, Faults
from tuner.sim.hardware import ACTIVATIONS_GIB
from tuner.sim.journal import Output, say
from tuner.sim.pace import Pace
from tuner.sim.requests import Request
from tuner.sim.scheduler import Scheduler, Work

#: A prompt from this length on makes activations of a full chunk.
_FULL_CHUNK = 2048
#: Idle gauges are refreshed this often.
_IDLE_REFRESH_S = 30.0
#: A machine that is this late has lost the time for good.
_MOST_LATE_S = 0.1


class CardView:
    """What serving takes of the card: GiB held, and where to say so."""

    def __init__(
        self, held_gib: float, free_gib: float, card_gib: float, others_gib: float, publish: Callable[[float], None]
    ) -> None:
        self.held_gib = held_gib
        self.free_gib = free_gib
        self.card_gib = card_gib
        self.others_gib = others_gib
        self._publish = publish
        self._grown = False

    def activations(self) -> bool:
        """The first long prompt takes memory that stays. False: there is not so much."""
        if self._grown:
            return True
        if self.free_gib < ACTIVATIONS_GIB:
            return False
        self._grown = True
        self.held_gib += ACTIVATIONS_GIB
        self.free_gib -= ACTIVATIONS_GIB
        self._publish(self.held_gib)
        return True


class Engine:
    """One scheduler process: takes requests, works them off, and dies of what its faults say."""

    def __init__(
        self,
        scheduler: Scheduler,
        pace: Pace,
        faults: Faults,
        card: CardView,
        die: Callable[[Output], None],
        *,
        kernel_missing: bool,
    ) -> None:
        self.scheduler = scheduler
        self._pace = pace
        self._faults = faults
        self._card = card
        self._die = die
        self._kernel_missing = kernel_missing or faults.has(Fault.KERNEL_CRASH)
        self._wake = asyncio.Event()
        self.ready_at: float | None = None
        self.alive = True
        self._due = 0.0

    def submit(self, request: Request) -> None:
        """Hands a request over; ``request.changed`` tells of each token."""
        self.scheduler.submit(request)
        self._wake.set()

    def abort(self, request: Request, message: str = "") -> None:
        """Ends a request."""
        self.scheduler.abort(request, message)
        self._wake.set()

    async def run(self) -> None:
        """Works until cancelled or dead."""
        while self.alive:
            if self._hanging():
                await asyncio.Event().wait()
            work = self.scheduler.next_work()
            if work is None:
                self.scheduler.idle()
                self._wake.clear()
                try:
                    await asyncio.wait_for(self._wake.wait(), max(0.5, self._pace.serve_s(_IDLE_REFRESH_S)))
                except TimeoutError:
                    self.scheduler.refresh()
                self._due = asyncio.get_running_loop().time()
                continue
            if not self._possible(work):
                return
            await self._take(work.seconds)
            line = work.done()
            for text in (*self.scheduler.notes, *([line] if line is not None else [])):
                say(text)
            self.scheduler.notes.clear()

    async def _take(self, recorded_s: float) -> None:
        """Lets time pass. Work follows work without a gap, so late wake-ups do not add up."""
        now = asyncio.get_running_loop().time()
        self._due = max(self._due, now - _MOST_LATE_S) + self._pace.serve_s(recorded_s)
        await asyncio.sleep(max(0.0, self._due - now))

    def _hanging(self) -> bool:
        after = self._faults.number(Fault.HANG_WHILE_SERVING)
        return after is not None and self.ready_at is not None and time.monotonic() >= self.ready_at + after

    def _possible(self, work: Work) -> bool:
        """Whether the card takes this work; if not the scheduler dies of it."""
        card = self._card
        if self._kernel_missing:
            self._end(tracebacks.kernel_crash())
            return False
        limit = self._faults.number(Fault.OOM_WHILE_SERVING)
        if (limit is not None and work.prompt_tokens >= limit) or (
            work.new_tokens >= _FULL_CHUNK and not card.activations()
        ):
            self._end(tracebacks.oom_while_serving(ACTIVATIONS_GIB, card.free_gib, card.card_gib, card.others_gib))
            return False
        return True

    def _end(self, error: Output) -> None:
        self.alive = False
        self._die(error)
