"""Rounds that no other round beats in everything: longest input against agents against TTFT. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tuner.rounds.measures import longest_input
from tuner.rounds.model import Round, RoundState
from tuner.rounds.noise import NOISE


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """Where a round stands. Tokens, requests at once, seconds to the first token (median); None: not known.

    Only rounds of one ``group`` (simulated or real, model, card) are held against each other.
    """

    number: int
    group: tuple[bool, str, str | None]
    longest: int | None
    agents: int | None
    ttft_s: float | None


class _Best(msgspec.Struct):
    """Of all rounds with the same longest input and agents: the least time, and whether one has none."""

    ttft_s: float | None = None
    untimed: bool = False


def front(rounds: Sequence[Round]) -> frozenset[int]:
    """Numbers of the rounds on the front; only verified rounds that are not rejected are on it."""
    return best(point_of(r) for r in rounds if r.state is RoundState.VERIFIED and r.verdict != "reject")


def point_of(round_: Round) -> Point:
    """Where a round stands."""
    model = round_.fingerprint.get("config") or round_.recipe.model_path or round_.recipe.tuner.model_shape or ""
    return Point(
        number=round_.number,
        group=(round_.simulated, model, round_.gpu_name),
        longest=longest_input(round_),
        agents=round_.boot.max_running_requests if round_.boot else None,
        ttft_s=round_.readings.ttft_s.p50 if round_.readings and round_.readings.ttft_s else None,
    )


def best(points: Iterable[Point]) -> frozenset[int]:
    """Numbers of the points on the front.

    A point is off it when another of its group takes inputs as long, as many requests at once and answers as soon, and
    is better in one of them. A time to the first token that was not measured beats nothing and is beaten by none, and
    times less than 5 % apart are the same.
    """
    known = [p for p in points if p.longest is not None and p.agents is not None]
    # Whatever beats a point, the soonest of its own inputs and agents does too: long histories have few such cells.
    cells: dict[tuple[bool, str, str | None], dict[tuple[int, int], _Best]] = {}
    for point in known:
        cell = cells.setdefault(point.group, {}).setdefault(_cell(point), _Best())
        if point.ttft_s is None:
            cell.untimed = True
        elif cell.ttft_s is None or point.ttft_s < cell.ttft_s:
            cell.ttft_s = point.ttft_s
    return frozenset(p.number for p in known if not any(_beats(at, cell, p) for at, cell in cells[p.group].items()))


def _cell(point: Point) -> tuple[int, int]:
    return point.longest or 0, point.agents or 0


def _beats(at: tuple[int, int], cell: _Best, point: Point) -> bool:
    longest, agents = _cell(point)
    if at[0] < longest or at[1] < agents:
        return False
    ahead = at != (longest, agents)
    if point.ttft_s is None:
        return ahead and cell.untimed
    if cell.ttft_s is None:
        return False
    if abs(cell.ttft_s - point.ttft_s) <= NOISE * point.ttft_s:
        return ahead
    return cell.ttft_s < point.ttft_s
