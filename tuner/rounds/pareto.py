"""Rounds that no other round beats in everything: longest input against agents against TTFT. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tuner.rounds.measures import longest_input
from tuner.rounds.model import Round, RoundState
from tuner.rounds.noise import NOISE

_Point = tuple[float, float, float]


def front(rounds: Sequence[Round]) -> frozenset[int]:
    """Numbers of the rounds on the front.

    A round is off it when another of the same kind (simulated or real) and model takes inputs as long, as many
    requests at once and answers as soon, and is better in one of them. A time to the first token that was not measured
    beats nothing and is beaten by none. Only verified rounds that are not rejected are on it.
    """
    good = [r for r in rounds if r.state is RoundState.VERIFIED and r.verdict != "reject"]
    known = {r.number: (_group(r), point) for r in good if (point := _point(r)) is not None}
    return frozenset(
        number
        for number, (group, point) in known.items()
        if not any(_beats(other, point) for theirs, other in known.values() if theirs == group)
    )


def _group(round_: Round) -> tuple[bool, str, str | None]:
    model = round_.fingerprint.get("config") or round_.recipe.model_path or round_.recipe.tuner.model_shape or ""
    return round_.simulated, model, round_.gpu_name


def _point(round_: Round) -> _Point | None:
    """(longest input, requests at once, time to the first token turned round); more is better in each."""
    longest = longest_input(round_)
    agents = round_.boot.max_running_requests if round_.boot else None
    if longest is None or agents is None:
        return None
    ttft = round_.readings.ttft_s.p50 if round_.readings and round_.readings.ttft_s else None
    return float(longest), float(agents), float("nan") if ttft is None else -ttft


def _beats(one: _Point, other: _Point) -> bool:
    pairs = list(zip(one, other, strict=True))
    if not math.isnan(one[2]) and not math.isnan(other[2]) and abs(one[2] - other[2]) <= NOISE * abs(other[2]):
        pairs[2] = (other[2], other[2])
    # Comparisons with NaN are false: an unknown time neither beats nor is beaten, unless nobody has one.
    pairs = [(a, b) for a, b in pairs if not (math.isnan(a) and math.isnan(b))]
    return all(a >= b for a, b in pairs) and any(a > b for a, b in pairs)
