"""Puts a load on a server: warm-up first, then repeats, each with prompts of its own."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import msgspec

from tuner.measure.events import Exchange, Read, read_exchange
from tuner.measure.model import Ask, Load, Measurement, Progress, Sample, Slo, Timing
from tuner.measure.prompts import made_up, salted
from tuner.measure.stats import by_repeat, good_share, rates, stat
from tuner.measure.watch import Budget
from tuner.measure.wire import Target, Wire, sleep_until, wire_to

OnProgress = Callable[[Progress], None]

#: Warm-up requests for each stream: the first compiles the shape, the second runs it.
_WARM_ROUNDS = 2
_SAY_EVERY_S = 0.5
_MOST_ERRORS = 5


class _Repeat(msgspec.Struct, frozen=True):
    """One repeat as it went. ``seconds``: from the first sending to the last end."""

    exchanges: tuple[Exchange, ...]
    seconds: float
    late_s: float


def measure(
    target: Target,
    load: Load,
    *,
    recorded: Sequence[Ask] = (),
    slo: Slo | None = None,
    budget: Budget,
    on_progress: OnProgress = lambda _: None,
) -> Measurement:
    """Runs a load and returns what came of it, also when it ended early. Blocks: call it from a thread.

    ``recorded`` requests are replayed instead of prompts made up here. Prompts are salted anew for each repeat.
    Never raises for what the server does: failed requests are counted, with the reason.
    """
    return asyncio.run(_measure(target, load, recorded, slo or Slo(), budget, on_progress))


async def _measure(
    target: Target, load: Load, recorded: Sequence[Ask], slo: Slo, budget: Budget, on_progress: OnProgress
) -> Measurement:
    at = time.time()
    salt = secrets.token_hex(4)
    done: list[_Repeat] = []
    async with wire_to(target) as wire:
        warm = _Runner(wire, _warm_up(load, recorded, salt), load, "warm-up", budget, on_progress)
        await warm.closed_loop(load.concurrency)
        warm_s = budget.spent_s
        for number in range(load.repeats):
            if budget.over:
                break
            asks = salted(recorded, f"{salt}-{number}") if recorded else made_up(load, salt, number)
            runner = _Runner(wire, asks, load, f"repeat {number + 1} of {load.repeats}", budget, on_progress)
            done.append(
                await (runner.closed_loop(load.concurrency) if load.timing is Timing.CLOSED_LOOP else runner.recorded())
            )
    return _result(load, at, budget, warm_s, slo, done)


def _warm_up(load: Load, recorded: Sequence[Ask], salt: str) -> list[Ask]:
    count = load.concurrency * _WARM_ROUNDS
    if recorded:
        # Other prompts than the scored ones (by their salt), of the same lengths.
        chosen = [recorded[number % len(recorded)] for number in range(min(count, 2 * len(recorded)))]
        return salted(chosen, f"{salt}-warm-up")
    return made_up(msgspec.structs.replace(load, requests=count), f"{salt} warm-up", -1)


class _Runner:
    """Sends the requests of one repeat and keeps what comes."""

    def __init__(
        self, wire: Wire, asks: Sequence[Ask], load: Load, stage: str, budget: Budget, on_progress: OnProgress
    ) -> None:
        self._wire = wire
        self._asks = asks
        self._load = load
        self._stage = stage
        self._budget = budget
        self._on_progress = on_progress
        self._exchanges: list[Exchange] = []
        self._late_s = 0.0
        self._began = 0.0
        self._said_at = 0.0

    async def closed_loop(self, streams: int) -> _Repeat:
        """So many requests at a time, the next as soon as one has ended."""
        waiting = iter(self._asks)
        return await self._work(*(self._stream(waiting) for _ in range(min(streams, len(self._asks)))))

    async def recorded(self) -> _Repeat:
        """Each request at its recorded time."""
        return await self._work(*(self._timed(ask) for ask in self._asks))

    async def _work(self, *work: Coroutine[Any, Any, None]) -> _Repeat:
        self._began = self._said_at = time.perf_counter()
        self._say()
        await self._budget.run(_all(work))
        self._say()
        return _Repeat(tuple(self._exchanges), time.perf_counter() - self._began, self._late_s)

    async def _stream(self, waiting: Iterator[Ask]) -> None:
        for ask in waiting:
            await self._ask(ask)

    async def _timed(self, ask: Ask) -> None:
        late = await sleep_until(self._began + ask.at_s / self._load.speedup)
        self._late_s = max(self._late_s, late)
        await self._ask(ask)

    async def _ask(self, ask: Ask) -> None:
        self._exchanges.append(await self._wire.chat(ask.body, self._began))
        if time.perf_counter() - self._said_at >= _SAY_EVERY_S:
            self._say()

    def _say(self) -> None:
        self._said_at = time.perf_counter()
        self._on_progress(
            Progress(
                stage=self._stage,
                done=len(self._exchanges),
                of=len(self._asks),
                seconds=self._said_at - self._began,
                left_s=self._budget.left_s,
            )
        )


async def _all(work: Sequence[Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for one in work:
            group.create_task(one)


def _result(load: Load, at: float, budget: Budget, warm_s: float, slo: Slo, done: Sequence[_Repeat]) -> Measurement:
    reads: list[Read] = []
    gaps: list[list[float]] = []
    for number, repeat in enumerate(done):
        mine = [read_exchange(exchange, number) for exchange in repeat.exchanges]
        reads += mine
        gaps.append([gap for read in mine for gap in read.gaps_s])
    samples: tuple[Sample, ...] = tuple(read.sample for read in reads)
    tokens, requests, kept = rates(samples, [repeat.seconds for repeat in done], slo)
    wanted = load.repeats * load.requests
    return Measurement(
        load=load,
        at=at,
        seconds=round(sum(repeat.seconds for repeat in done), 4),
        warm_up_s=round(warm_s, 4),
        ttft_s=stat(by_repeat(samples, "ttft_s")),
        itl_s=stat(by_repeat(samples, "itl_s")),
        gaps_s=stat([repeat for repeat in gaps if repeat]),
        total_s=stat(by_repeat(samples, "total_s")),
        output_tokens_per_s=tuple(tokens),
        requests_per_s=tuple(requests),
        slo=slo,
        good_share=good_share(samples, slo),
        good_per_s=tuple(kept),
        failed=sum(not sample.ok for sample in samples),
        errors=tuple(dict.fromkeys(read.error for read in reads if read.error))[:_MOST_ERRORS],
        ended_early=budget.why if len(samples) < wanted else "",
        late_s=round(max((repeat.late_s for repeat in done), default=0.0), 6),
        samples=samples,
    )
