"""Several rounds beside each other: a column for each, only the lines in which they differ. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tuner.rounds.diff import DRAWN_ANEW, diff, why_apart
from tuner.rounds.measures import MEASURES
from tuner.rounds.model import Round
from tuner.rounds.noise import NOISE
from tuner.rounds.pareto import front
from tuner.rounds.summary import same


class TableRow(msgspec.Struct, frozen=True, kw_only=True):
    """One line: a value for each round, None where a round has none."""

    name: str
    values: tuple[Any, ...]
    #: The values as text, for a measure.
    shown: tuple[str, ...] | None = None
    #: Which of the rounds has the best value of a measure that can be better; empty when they cannot be compared.
    best: tuple[str, ...] = ()


class RoundTable(msgspec.Struct, frozen=True, kw_only=True):
    """``rounds`` are the columns; ``pareto`` those that no other one beats in everything."""

    rounds: tuple[str, ...]
    outcomes: tuple[str, ...]
    flags: tuple[TableRow, ...]
    effective: tuple[TableRow, ...]
    measures: tuple[TableRow, ...]
    pareto: tuple[str, ...]
    #: From the first to the last, in words.
    summary: str
    simulated: bool


def table(rounds: Sequence[Round]) -> RoundTable:
    """``rounds`` (two or more) beside each other, in the order given."""
    ends = diff(rounds[0], rounds[-1])
    on_front = front(rounds)
    asked = _differing([r.recipe.flags for r in rounds])
    said = {row.name: row.values for row in asked}
    effective = [
        row
        for row in _differing([r.effective for r in rounds])
        if row.name not in DRAWN_ANEW and not _as_asked(row.values, said.get(row.name))
    ]
    return RoundTable(
        rounds=tuple(r.name for r in rounds),
        outcomes=tuple(str(r.state) for r in rounds),
        flags=tuple(asked),
        effective=tuple(effective),
        measures=tuple(_measures(rounds)),
        pareto=tuple(r.name for r in rounds if r.number in on_front),
        summary=f"{ends.old} to {ends.new}: {ends.summary}",
        simulated=any(r.simulated for r in rounds),
    )


def _differing(each: Sequence[dict[str, Any]]) -> list[TableRow]:
    """Lines of what differs; a round that never told anything differs in nothing."""
    names = dict.fromkeys(name for values in each for name in values)
    rows = []
    for name in names:
        told = [values.get(name) for values in each if values]
        if not all(same(value, told[0]) for value in told):
            rows.append(TableRow(name=name, values=tuple(values.get(name) for values in each)))
    return rows


def _as_asked(values: Sequence[Any], asked: Sequence[Any] | None) -> bool:
    """Whether every round that told took what was asked: then the line of the flag has said it."""
    if asked is None:
        return False
    return all(value is None or same(value, wanted) for value, wanted in zip(values, asked, strict=True))


def _measures(rounds: Sequence[Round]) -> Iterator[TableRow]:
    comparable = not any(why_apart(rounds[0], other) for other in rounds[1:])
    for measure in MEASURES:
        values = tuple(measure.read(r) for r in rounds)
        known = [value for value in values if value is not None]
        if not known or (len(known) == len(values) and len(set(known)) == 1):
            continue
        best: tuple[str, ...] = ()
        alike = comparable and len({measure.kind(r) for r in rounds}) == 1
        if measure.better and alike and len(known) > 1 and all(measure.enough(r) for r in rounds):
            target = max(known) if measure.better > 0 else min(known)
            band = NOISE * abs(target) if measure.noisy else 0.0
            best = tuple(
                r.name
                for r, value in zip(rounds, values, strict=True)
                if value is not None and abs(value - target) <= band
            )
        yield TableRow(name=measure.label, values=values, shown=_shown(values, measure.show), best=best)


def _shown(values: Sequence[float | None], show: Callable[[float], str]) -> tuple[str, ...]:
    return tuple("-" if value is None else show(value) for value in values)
