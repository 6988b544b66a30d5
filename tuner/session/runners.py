"""Whether the tuner that runs a round still lives."""

from __future__ import annotations

import os

import psutil

from tuner.rounds.model import Round, RoundState

#: How the reason of a round begins whose own tuner went away: it tells nothing of the server.
LOST = "The tuner ended"
#: A round in one of these has a tuner at work, or lost it.
OPEN_STATES = (RoundState.STARTING, RoundState.CHECKING)
#: Creation times of one process, read twice, may differ by rounding.
_SAME_S = 1.0


def runner_alive(round_: Round) -> bool:
    """Whether the process that opened the round lives; pid and creation time name it for sure."""
    if round_.runner_pid is None:
        return False
    try:
        created = psutil.Process(round_.runner_pid).create_time()
    except psutil.Error:
        return False
    return round_.runner_created is None or abs(created - round_.runner_created) < _SAME_S


def run_by_another(round_: Round) -> bool:
    """Whether another living tuner is in the middle of this round."""
    return round_.state in OPEN_STATES and round_.runner_pid != os.getpid() and runner_alive(round_)


def number_of(round_name: str | None) -> int | None:
    """3 for "r3"; None when there is no such name."""
    return int(round_name[1:]) if round_name and round_name[1:].isdigit() else None
