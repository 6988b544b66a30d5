"""Rounds that an earlier tuner kept, read as they would be kept today. Pure."""

from __future__ import annotations

import msgspec

from tuner.rounds.memory import free_at_ready_gib
from tuner.rounds.model import FIRST_ANSWERS, Round
from tuner.serverlog.model import Phase


def as_kept_today(round_: Round) -> Round:
    """The round with its first answers apart from the server's own warm-up, and the card's reading as free at ready."""
    return _free_by_the_card(_first_answers_apart(round_))


def _first_answers_apart(round_: Round) -> Round:
    """``ready_seconds`` ends with the server's own warm-up: what its phases took beyond it were our requests."""
    phases = round_.phase_seconds
    if round_.ready_seconds is None or FIRST_ANSWERS in phases or Phase.WARMING not in phases:
        return round_
    ours = min(sum(phases.values()) - round_.ready_seconds, phases[Phase.WARMING])
    if ours <= 0:
        return round_
    own = phases[Phase.WARMING] - ours
    rest = {name: seconds for name, seconds in phases.items() if name != Phase.WARMING}
    warming = {str(Phase.WARMING): own} if own > 0 else {}
    return msgspec.structs.replace(round_, phase_seconds={**rest, **warming, FIRST_ANSWERS: ours})


def _free_by_the_card(round_: Round) -> Round:
    """The free memory at ready, which was the log's even where the card's reading was known or nothing came up."""
    told = round_.accuracy
    if told is None or round_.plan is None:
        return round_
    actual = free_at_ready_gib(round_) if round_.ready_seconds is not None else None
    return msgspec.structs.replace(round_, accuracy=msgspec.structs.replace(told, ready_free_actual=actual))
