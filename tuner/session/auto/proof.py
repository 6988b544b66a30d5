"""Proves a need on a running server: so many inputs of that length at once, and how fast they are answered."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tuner.measure.physics import alone_ttft_s, lengths_within, physics
from tuner.measure.prompts import token_ids
from tuner.measure.watch import Budget
from tuner.measure.wire import Target, Wire, wire_to
from tuner.planner.need import Need
from tuner.session.auto.exchange import Answered, Told, answered, overlap, told
from tuner.session.auto.latency import ENOUGH, LEAST, judged_s, latency, seconds_of
from tuner.session.auto.latency import told as told_enough
from tuner.session.auto.model import Goal, Proof
from tuner.session.vram import VramWatch
from tuner.units import format_seconds, format_tokens

#: Answers shorter than this end before the next request can be seen beside them.
LEAST_OUTPUT = 16
#: Longest time for one proof, and of it for the times, seconds. The first burst is not timed: it compiles.
BUDGET_S = 1800.0
_TIMES_S = 600.0
#: Bursts at the most, where the requests of one came apart.
_BURSTS = 4
_LONGEST_LOG = 64 << 20

Say = Callable[[str], None]


class Bench:
    """The server to prove the need on, and what can be read of it meanwhile."""

    def __init__(
        self,
        target: Target,
        log_path: Path,
        used_mib: Callable[[], int | None],
        card_gib: float | None,
        vocab_size: int | None,
    ) -> None:
        self.target = target
        self.used_mib = used_mib
        self.card_gib = card_gib
        self.vocab_size = vocab_size
        self._log = log_path
        self._from = self._size()

    def lines(self) -> list[str]:
        """Log lines since the last look."""
        start, self._from = self._from, self._size()
        try:
            with self._log.open("rb") as file:
                file.seek(start)
                return file.read(min(_LONGEST_LOG, max(0, self._from - start))).decode("utf-8", "replace").splitlines()
        except OSError:
            return []

    def _size(self) -> int:
        try:
            return self._log.stat().st_size
        except OSError:
            return 0


def prove(bench: Bench, goal: Goal, *, budget: Budget, say: Say = lambda _: None) -> Proof:
    """Sends the need and returns what came of it. Blocks; never raises for what the server does."""
    need, began = goal.need, time.monotonic()
    output = max(need.output_tokens, LEAST_OUTPUT)
    many = f"{need.agents} requests" if need.agents > 1 else "a request"
    say(f"{many} of {format_tokens(need.input_tokens)} tokens at once")
    bench.lines()
    with VramWatch(bench.used_mib) as vram:
        for _ in range(_BURSTS):
            answers = asyncio.run(_burst(bench, need, output, budget))
            seen = told(bench.lines())
            together = min(need.agents, max(overlap(answers), seen.together))
            if not came_apart(need.agents, together, _served(answers), seen) or budget.over:
                break
        timed: list[Answered] = []
        if goal.timed and _served(answers) == need.agents and not budget.over:
            say(f"{LEAST} to {ENOUGH} requests, {need.agents} at a time, for the times: a p95 takes {ENOUGH}")
            timed = asyncio.run(_streams(bench, goal, output, budget))
            vram.used_mib()
    ttft, itl = seconds_of(timed)
    lowest = bench.card_gib - vram.peak_mib / 1024 if bench.card_gib is not None and vram.peak_mib is not None else None
    proof = Proof(
        asked=need.agents,
        answered=_served(answers),
        together=together,
        retracted=seen.retracted,
        lowest_free_gib=lowest,
        ttft=latency(ttft, goal.ttft_p95_s),
        itl=latency(itl, goal.itl_p95_s),
        timed_failed=len(timed) - _served(timed),
        errors=tuple(dict.fromkeys(a.error for a in (*answers, *timed) if a.error)),
        seconds=round(time.monotonic() - began, 3),
        broken_off=budget.over and len(answers) < need.agents,
    )
    return _explained(bench, goal, proof, budget, say)


def came_apart(agents: int, together: int, served: int, seen: Told) -> bool:
    """Whether requests that nothing held back were over before the others came: short ones on a quick server. Pure."""
    return together < agents == served and seen.batches > 0 and seen.waited == seen.retracted == 0


def _served(answers: Sequence[Answered]) -> int:
    return sum(not answer.error for answer in answers)


async def _burst(bench: Bench, need: Need, output: int, budget: Budget) -> list[Answered]:
    async with wire_to(bench.target) as wire:
        bodies = [_body(bench, need.input_tokens, output) for _ in range(need.agents)]
        return await budget.run(_together(wire, bodies, output)) or []


async def _together(wire: Wire, bodies: Sequence[dict[str, object]], output: int) -> list[Answered]:
    began = time.perf_counter()
    exchanges = await asyncio.gather(*(wire.generate(body, began) for body in bodies))
    return [answered(exchange, output) for exchange in exchanges]


async def _streams(bench: Bench, goal: Goal, output: int, budget: Budget) -> list[Answered]:
    """Requests as streams get free, until they tell enough of the wished latencies or the time for them is over."""
    need, done = goal.need, list[Answered]()
    until = budget.spent_s + _TIMES_S

    async def stream(wire: Wire) -> None:
        while not told_enough(goal, done) and (len(done) < LEAST or budget.spent_s < until):
            body = _body(bench, need.input_tokens, output)
            done.append(answered(await wire.generate(body, time.perf_counter()), output))

    async def all_streams() -> None:
        async with wire_to(bench.target) as wire:
            await asyncio.gather(*(stream(wire) for _ in range(need.agents)))

    await budget.run(all_streams())
    return done


def _body(bench: Bench, tokens: int, output: int) -> dict[str, object]:
    """A prompt that is fresh from its first token on: nothing cached helps."""
    return {
        "input_ids": token_ids(secrets.token_hex(8), tokens, bench.vocab_size),
        "sampling_params": {"max_new_tokens": output, "temperature": 0, "ignore_eos": True},
    }


def _explained(bench: Bench, goal: Goal, proof: Proof, budget: Budget, say: Say) -> Proof:
    """The proof with what is physics in it, where times are missed."""
    wanted, need, came = goal.ttft_p95_s, goal.need, judged_s(proof.ttft)
    if wanted is None or came is None or came <= wanted or budget.over:
        return proof
    say("one request alone by length, to tell physics from settings")
    alone = physics(bench.target, lengths_within(need.input_tokens), vocab_size=bench.vocab_size, budget=budget)
    seconds = alone_ttft_s(alone, need.input_tokens)
    words = physics_words(seconds, wanted, came, need)
    return msgspec.structs.replace(proof, physics=words)


def physics_words(alone_s: float | None, wanted_s: float, came_s: float, need: Need) -> str:
    """Why a TTFT is missed: the card, the agents that share it, or something that can be set. Pure."""
    tokens = format_tokens(need.input_tokens)
    if alone_s is None:
        return "Too few lengths could be measured to tell what is physics."
    if wanted_s < alone_s:
        return (
            f"{tokens} cold tokens take {format_seconds(alone_s)} alone on this card: physics, not a flag. "
            "Shorter inputs and warm prefixes help."
        )
    together = need.agents * alone_s
    if wanted_s < together:
        return (
            f"{tokens} cold tokens take {format_seconds(alone_s)} alone, and {need.agents} at once wait for each other "
            f"up to {format_seconds(together)}: physics of this load, not a flag. Fewer agents at once or warm "
            "prefixes help."
        )
    return (
        f"{format_seconds(came_s)} is more than the {format_seconds(together)} that {need.agents} cold inputs take in "
        "turn: queueing or a setting, which memory does not mend."
    )
