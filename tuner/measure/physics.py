"""What one request alone gets, by length: so that a slow answer is told from a wrong flag."""

from __future__ import annotations

import asyncio
import secrets
import statistics
import time
from collections.abc import Callable, Sequence

import msgspec

from tuner.measure.events import Exchange, NotGenerated, answer_of, generated
from tuner.measure.model import Physics, Progress, SpeedPoint
from tuner.measure.prompts import token_ids
from tuner.measure.watch import Budget
from tuner.measure.wire import Target, Wire, wire_to

#: Tokens decoded behind each prompt.
_DECODED = 48
_TRIES = 2
#: A prefix that an answer may share by chance, as a share of the prompt, and still count as cold.
_COLD_SHARE = 0.02
#: Lengths measured, as far as they fit.
LENGTHS = (1_024, 4_096, 16_384, 65_536, 131_072)


class Timed(msgspec.Struct, frozen=True):
    """One answer to a prompt of known length."""

    ttft_s: float
    decode_tokens_per_s: float | None
    cached_tokens: int | None


def lengths_within(longest: int | None) -> tuple[int, ...]:
    """The lengths to measure on a server that takes inputs of ``longest`` tokens."""
    most = (longest if longest is not None else LENGTHS[2] + _DECODED) - _DECODED
    return tuple(length for length in LENGTHS if length <= most)


def physics(
    target: Target,
    lengths: Sequence[int],
    *,
    vocab_size: int | None = None,
    budget: Budget,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Physics:
    """Cold prefill and decode speed for each length, one request at a time. Blocks; ends early with the budget."""
    return asyncio.run(_physics(target, lengths, vocab_size, budget, on_progress))


async def _physics(
    target: Target,
    lengths: Sequence[int],
    vocab_size: int | None,
    budget: Budget,
    on_progress: Callable[[Progress], None],
) -> Physics:
    at, points, complaint = time.time(), [], ""
    async with wire_to(target) as wire:
        for number, length in enumerate(sorted(lengths)):
            seen: list[Timed] = []
            # The first request of a length compiles its shape and is not scored.
            for tried in range(_TRIES + 1):
                on_progress(
                    Progress(
                        stage=f"{length:,} tokens",
                        done=number * (_TRIES + 1) + tried,
                        of=len(lengths) * (_TRIES + 1),
                        seconds=budget.spent_s,
                        left_s=budget.left_s,
                    )
                )
                exchange = await budget.run(_ask(wire, length, vocab_size))
                if exchange is None:
                    break
                timed = timed_answer(exchange)
                if timed is None:
                    complaint = f"A prompt of {length:,} tokens got no answer."
                    break
                if tried:
                    seen.append(timed)
            if seen:
                points.append(speed_point(length, seen))
            if budget.over or complaint:
                break
    return Physics(at=at, points=tuple(points), ended_early=budget.why or complaint)


async def _ask(wire: Wire, length: int, vocab_size: int | None) -> Exchange:
    body = {
        "input_ids": token_ids(secrets.token_hex(8), length, vocab_size),
        "sampling_params": {"max_new_tokens": _DECODED, "temperature": 0, "ignore_eos": True},
    }
    return await wire.generate(body, time.perf_counter())


def timed_answer(exchange: Exchange) -> Timed | None:
    """Times of a streamed ``/generate`` answer; None when there is none. Pure."""
    answer = answer_of(exchange)
    if exchange.failure or answer.status != 200:
        return None
    counts: list[tuple[float, int]] = []
    cached: int | None = None
    try:
        for at, meta in generated(answer.pieces):
            cached = meta.cached_tokens
            if meta.completion_tokens > (counts[-1][1] if counts else 0):
                counts.append((at, meta.completion_tokens))
    except NotGenerated:
        return None
    if not counts:
        return None
    (first_at, first), (last_at, last) = counts[0], counts[-1]
    speed = (last - first) / (last_at - first_at) if last_at > first_at else None
    return Timed(first_at, speed, cached)


def speed_point(length: int, seen: Sequence[Timed]) -> SpeedPoint:
    """The medians of several answers to prompts of one length. Pure."""
    ttft = statistics.median(timed.ttft_s for timed in seen)
    cached = max((timed.cached_tokens or 0 for timed in seen), default=0)
    decode = [timed.decode_tokens_per_s for timed in seen if timed.decode_tokens_per_s is not None]
    cold = cached <= _COLD_SHARE * length
    return SpeedPoint(
        tokens=length,
        ttft_s=round(ttft, 6),
        prefill_tokens_per_s=round(length / ttft, 2) if cold and ttft > 0 else None,
        decode_tokens_per_s=round(statistics.median(decode), 2) if decode else None,
        cached_tokens=cached,
        tries=len(seen),
    )


def alone_ttft_s(measured: Physics, tokens: int) -> float | None:
    """Time to first token of a cold prompt of ``tokens`` alone on the server, between measured lengths linear.

    Beyond the longest the last slope goes on, which is too low where attention grows with the length. None without
    two lengths. Pure.
    """
    cold = [point for point in measured.points if point.prefill_tokens_per_s is not None]
    if len(cold) < 2:
        return None
    if tokens <= cold[0].tokens:
        # Short prompts have a floor of their own, which the shortest one measured bounds.
        return cold[0].ttft_s
    below = max((point for point in cold[:-1] if point.tokens <= tokens), key=lambda point: point.tokens)
    above = next(point for point in cold if point.tokens > below.tokens)
    slope = (above.ttft_s - below.ttft_s) / (above.tokens - below.tokens)
    return below.ttft_s + slope * (tokens - below.tokens)


def cause_of(measured: Physics, tokens: int, ttft_s: float) -> str:
    """Whether a time to first token is what the card can do, or more: one sentence. Pure."""
    alone = alone_ttft_s(measured, tokens)
    if alone is None or alone <= 0:
        return "Too few lengths were measured to tell what is physics."
    if ttft_s <= 1.25 * alone:
        return f"{ttft_s:.2f} s is what {tokens:,} cold tokens take alone ({alone:.2f} s): physics, not a flag."
    return (
        f"{ttft_s:.2f} s is {ttft_s / alone:.1f} times what {tokens:,} cold tokens take alone ({alone:.2f} s): "
        f"queueing or a setting, not the card."
    )
