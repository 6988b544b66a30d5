"""Proves a need on a running server: so many inputs of that length at once, and how fast they are answered."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from tuner.measure.physics import alone_ttft_s, lengths_within, physics
from tuner.measure.prompts import token_ids
from tuner.measure.stats import percentile
from tuner.measure.watch import Budget
from tuner.measure.wire import Target, Wire, wire_to
from tuner.planner.solve import Need
from tuner.session.auto.exchange import Answered, answered, overlap, told
from tuner.session.auto.model import Goal, Proof
from tuner.session.vram import VramWatch
from tuner.units import format_seconds, format_tokens

#: Answers shorter than this end before the next request can be seen beside them.
LEAST_OUTPUT = 16
#: Timed requests behind a p95; the first burst is not among them, it compiles.
_TIMED = 20
#: Longest time for one proof, seconds.
BUDGET_S = 1800.0
_P95 = 0.95
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
        answers = asyncio.run(_burst(bench, need, output, budget))
        seen = told(bench.lines())
        timed: list[Answered] = []
        if goal.timed and _served(answers) == need.agents and not budget.over:
            say(f"{_TIMED} requests and more, {need.agents} at a time, for the times")
            timed = asyncio.run(_streams(bench, need, output, budget))
            vram.used_mib()
    times = [a for a in timed if not a.error]
    lowest = bench.card_gib - vram.peak_mib / 1024 if bench.card_gib is not None and vram.peak_mib is not None else None
    proof = Proof(
        asked=need.agents,
        answered=_served(answers),
        together=min(need.agents, max(overlap(answers), seen.together)),
        retracted=seen.retracted,
        lowest_free_gib=lowest,
        timed=len(times),
        ttft_p95_s=_p95([a.ttft_s for a in times]),
        itl_p95_s=_p95([a.itl_s for a in times if a.itl_s is not None]),
        errors=tuple(dict.fromkeys(a.error for a in (*answers, *timed) if a.error)),
        seconds=round(time.monotonic() - began, 3),
        broken_off=budget.over and len(answers) < need.agents,
    )
    return _explained(bench, goal, proof, budget, say)


def _served(answers: Sequence[Answered]) -> int:
    return sum(not answer.error for answer in answers)


def _p95(values: Sequence[float]) -> float | None:
    return round(percentile(sorted(values), _P95), 6) if values else None


async def _burst(bench: Bench, need: Need, output: int, budget: Budget) -> list[Answered]:
    async with wire_to(bench.target) as wire:
        bodies = [_body(bench, need.input_tokens, output) for _ in range(need.agents)]
        return await budget.run(_together(wire, bodies, output)) or []


async def _together(wire: Wire, bodies: Sequence[dict[str, object]], output: int) -> list[Answered]:
    began = time.perf_counter()
    exchanges = await asyncio.gather(*(wire.generate(body, began) for body in bodies))
    return [answered(exchange, output) for exchange in exchanges]


async def _streams(bench: Bench, need: Need, output: int, budget: Budget) -> list[Answered]:
    each = math.ceil(_TIMED / need.agents)
    done: list[Answered] = []

    async def stream(wire: Wire) -> None:
        for _ in range(each):
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
    wanted, need = goal.ttft_p95_s, goal.need
    slow = wanted is not None and proof.ttft_p95_s is not None and proof.ttft_p95_s > wanted
    if not slow or budget.over:
        return proof
    say("one request alone by length, to tell physics from settings")
    alone = physics(bench.target, lengths_within(need.input_tokens), vocab_size=bench.vocab_size, budget=budget)
    seconds = alone_ttft_s(alone, need.input_tokens)
    assert wanted is not None and proof.ttft_p95_s is not None
    words = physics_words(seconds, wanted, proof.ttft_p95_s, need)
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
