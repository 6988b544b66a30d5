"""What timed requests say of a wished p95, and how many of them it takes. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import msgspec

from tuner.measure.stats import SAMPLES_FOR, percentile
from tuner.session.auto.exchange import Answered
from tuner.session.auto.model import Goal, Latency, Proof
from tuner.units import format_seconds

#: Requests from which a p95 is told at all, and those without which nothing is.
ENOUGH, LEAST = SAMPLES_FOR["p95"], 20
_P95 = 0.95
#: With more late ones their p95 is late, whatever the rest of ``ENOUGH`` take.
_LATE = int((1 - _P95) * ENOUGH) + 1
#: So many late ones, or more, would come of a server that keeps its p95 with less than this chance: then it does not.
_CHANCE = 0.01


def latency(seconds: Sequence[float], wanted_s: float | None) -> Latency | None:
    """What answered requests took; None without any. ``late`` counts those beyond ``wanted_s``."""
    if not seconds:
        return None
    return Latency(
        count=len(seconds),
        slowest_s=round(max(seconds), 6),
        late=sum(one > wanted_s for one in seconds) if wanted_s is not None else 0,
        p95_s=round(percentile(sorted(seconds), _P95), 6) if len(seconds) >= ENOUGH else None,
    )


def told(goal: Goal, done: Sequence[Answered]) -> bool:
    """Whether more requests would not change what is said of the wished latencies."""
    if len(done) >= ENOUGH:
        return True
    if len(done) < LEAST:
        return False
    ttft, itl = seconds_of(done)
    return any(
        wanted is not None and sum(one > wanted for one in seconds) > _LATE
        for wanted, seconds in ((goal.ttft_p95_s, ttft), (goal.itl_p95_s, itl))
    )


def seconds_of(done: Sequence[Answered]) -> tuple[list[float], list[float]]:
    """(seconds to the first token, mean seconds between tokens) of the requests that were answered."""
    served = [answer for answer in done if not answer.error]
    return [a.ttft_s for a in served], [a.itl_s for a in served if a.itl_s is not None]


def slow(goal: Goal, proof: Proof) -> tuple[str, ...]:
    """What the wished latencies lack, one sentence each.

    From ``ENOUGH`` requests on their p95 decides; of fewer none may be late.
    """
    missing: list[str] = []
    for name, wanted, seen in _asked(goal, proof):
        if seen is None:
            missing.append(f"{name} p95 could not be measured, {format_seconds(wanted)} is wanted.")
        elif seen.p95_s is not None and seen.p95_s > wanted:
            missing.append(
                f"{name} p95 was {format_seconds(seen.p95_s)} over {seen.count} requests, {format_seconds(wanted)} is "
                "wanted."
            )
        elif seen.p95_s is None and seen.late:
            missing.append(
                f"{name} was above the {format_seconds(wanted)} wanted in {seen.late} of {seen.count} requests, "
                f"{format_seconds(seen.slowest_s)} at the slowest."
            )
    return tuple(missing)


def undecided(goal: Goal, proof: Proof) -> bool:
    """Whether too few requests were timed to say that a wished p95 is missed: the late ones may be chance."""
    missed = [
        seen
        for _, wanted, seen in _asked(goal, proof)
        if seen is None or (seen.p95_s is None and seen.late) or (seen.p95_s is not None and seen.p95_s > wanted)
    ]
    return bool(missed) and all(seen is None or (seen.p95_s is None and _may_be_chance(seen)) for seen in missed)


def _may_be_chance(seen: Latency) -> bool:
    """Whether so many late requests come often enough where one in twenty is late (binomial)."""
    if seen.late > _LATE:
        return False
    fewer = sum(
        math.comb(seen.count, late) * (1 - _P95) ** late * _P95 ** (seen.count - late) for late in range(seen.late)
    )
    return 1 - fewer >= _CHANCE


def times_words(goal: Goal, proof: Proof) -> str:
    """What the latencies were judged by, after a comma; empty when none were wished for."""
    words = ""
    for name, _, seen in _asked(goal, proof):
        if seen is None:
            continue
        if seen.p95_s is not None:
            words += f", {name} p95 {format_seconds(seen.p95_s)} over {seen.count} requests"
        else:
            words += (
                f", {name} {format_seconds(seen.slowest_s)} in the slowest of {seen.count} requests "
                f"(a p95 takes {ENOUGH})"
            )
    return words


def _asked(goal: Goal, proof: Proof) -> Iterator[tuple[str, float, Latency | None]]:
    for name, wanted, seen in (("TTFT", goal.ttft_p95_s, proof.ttft), ("ITL", goal.itl_p95_s, proof.itl)):
        if wanted is not None:
            yield name, wanted, seen


def judged_s(seen: Latency | None) -> float | None:
    """The number that decided: the p95, or the slowest of too few; None without any."""
    if seen is None:
        return None
    return seen.p95_s if seen.p95_s is not None else seen.slowest_s


def details(name: str, seen: Latency | None) -> dict[str, float | int | None]:
    """The numbers as a check keeps them, by flat names such as ``ttft_p95_s``."""
    known = msgspec.structs.asdict(seen) if seen is not None else dict.fromkeys(Latency.__struct_fields__)
    return {f"{name}_{field}": value for field, value in known.items()}
