"""Two settings against each other in alternating order, a fresh start for each round. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import msgspec

from tuner.measure.model import Measurement
from tuner.rounds.model import Change
from tuner.rounds.noise import compare_rounds
from tuner.rounds.values import share_text

#: Starts of each side: what drifts (a warming card, another user) is the same for both, and the scatter from start to
#: start shows itself.
STARTS = 3


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """One side: the value of its flag, its rounds, and what was measured in each."""

    value: str
    rounds: tuple[str, ...] = ()
    measurements: tuple[Measurement, ...] = ()


def alternating(starts: int) -> Iterator[int]:
    """Which side comes next: 0 1 1 0 0 1 for three starts of each, so that neither is always the first."""
    for number in range(starts):
        yield from (0, 1) if number % 2 == 0 else (1, 0)


def compared(one: Side, other: Side) -> tuple[Change, ...]:
    """The medians over the rounds of both sides; with fewer than three rounds each nothing can be compared."""
    changes = []
    for name, read, lower_is_better in _MEASURES:
        before, after = (_values(side, read) for side in (one, other))
        if not before or not after:
            continue
        was, is_ = statistics.median(before), statistics.median(after)
        changes.append(
            Change(
                name=name,
                old=round(was, 4),
                new=round(is_, 4),
                change=share_text(was, is_),
                verdict=compare_rounds(before, after, lower_is_better=lower_is_better),
            )
        )
    return tuple(changes)


def _values(side: Side, read: Callable[[Measurement], float | None]) -> list[float]:
    return [value for measured in side.measurements if (value := read(measured)) is not None]


def _median(rates: Sequence[float]) -> float | None:
    return statistics.median(rates) if rates else None


_MEASURES: tuple[tuple[str, Callable[[Measurement], float | None], bool], ...] = (
    ("TTFT p50, s", lambda m: m.ttft_s.p50 if m.ttft_s else None, True),
    ("TTFT p95, s", lambda m: m.ttft_s.p95 if m.ttft_s else None, True),
    ("ITL p50, s", lambda m: m.itl_s.p50 if m.itl_s else None, True),
    ("whole request p50, s", lambda m: m.total_s.p50 if m.total_s else None, True),
    ("output, tokens/s", lambda m: _median(m.output_tokens_per_s), False),
    ("good requests/s", lambda m: _median(m.good_per_s), False),
)
