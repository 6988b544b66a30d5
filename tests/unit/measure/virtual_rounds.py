"""Rounds on the simulator's scheduler in virtual time: a load of 192 requests takes no second."""

from __future__ import annotations

import random

from tuner.measure.model import Load, Sample
from tuner.sim.answers import babble
from tuner.sim.cache import CacheShape, Keeping, PrefixCache
from tuner.sim.faults import Faults
from tuner.sim.flags import Options
from tuner.sim.limits import Limits
from tuner.sim.requests import Request
from tuner.sim.scheduler import Scheduler
from tuner.sim.speed import Speed
from tuner.sim.stats import Stats

LIMITS = Limits(
    max_running=8, chunk=8_192, policy="fcfs", context_len=262_144, draft_tokens=0, acceptance=0.0,
    decode_graphs=True, prefill_graphs=True, max_queued=None, warmed_up=True,
)  # fmt: skip
SHAPE = CacheShape(keeping=Keeping.EXTRA_BUFFER, kv_tokens=400_000, slots=80)


def virtual_round(load: Load, seed: int, *, noise: float, round_noise: float, slower: float = 1.0) -> list[Sample]:
    """The samples of a closed loop on a fresh server whose every piece of work takes ``slower`` times as long."""
    options = Options(seed=seed, noise=noise, round_noise=round_noise, compile_factor=0.0)
    scheduler = Scheduler(PrefixCache(SHAPE), LIMITS, Speed(options), Stats(), Faults(), 50_000)
    chance = random.Random(seed)
    samples: list[Sample] = []
    for repeat in range(load.repeats):
        samples += _repeat(scheduler, load, repeat, chance, slower)
    return samples


def _repeat(scheduler: Scheduler, load: Load, repeat: int, chance: random.Random, slower: float) -> list[Sample]:
    now = 0.0
    left = load.requests
    running: dict[Request, tuple[float, list[float]]] = {}
    samples: list[Sample] = []
    while left or running:
        while left and len(running) < load.concurrency:
            prompt = [chance.randrange(50_000) for _ in range(load.input_tokens)]
            request = Request(prompt, load.output_tokens, lambda _: babble(b"x", load.output_tokens))
            running[request] = (now, [])
            scheduler.submit(request)
            left -= 1
        work = scheduler.next_work()
        assert work is not None
        now += work.seconds * slower
        before = {request: len(request.output) for request in running}
        work.done()
        for request, (sent, times) in list(running.items()):
            times += [now] * (len(request.output) - before[request])
            if request.finished:
                del running[request]
                itl = (times[-1] - times[0]) / (len(times) - 1)
                samples.append(
                    Sample(
                        repeat, sent, times[0] - sent, now - sent, itl, load.input_tokens, len(times),
                        request.cached_tokens, True,
                    )
                )  # fmt: skip
    return samples
