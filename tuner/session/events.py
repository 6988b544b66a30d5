"""What a session tells whoever watches it. Both front ends draw from these; a session knows no widget."""

from __future__ import annotations

import msgspec

from tuner.checks.model import CheckResult
from tuner.findings import Finding
from tuner.planner.model import Plan
from tuner.rounds.model import Round
from tuner.server.model import PhaseChanged, StopOutcome


class RoundOpened(msgspec.Struct, frozen=True, tag=True):
    """A round got its number and is in the history."""

    round: Round


class Planned(msgspec.Struct, frozen=True, tag=True):
    """The plan of the round about to start."""

    plan: Plan


class Found(msgspec.Struct, frozen=True, tag=True):
    """Something worth saying turned up."""

    finding: Finding


class CheckStarted(msgspec.Struct, frozen=True, tag=True):
    """A check is under way."""

    name: str
    number: int
    of: int


class CheckEnded(msgspec.Struct, frozen=True, tag=True):
    """A check has its verdict."""

    result: CheckResult


class ServerStopped(msgspec.Struct, frozen=True, tag=True):
    """The server that ran is gone (or could not be stopped)."""

    outcome: StopOutcome


class RoundClosed(msgspec.Struct, frozen=True, tag=True):
    """The round is over, as kept in the history."""

    round: Round


Event = RoundOpened | Planned | PhaseChanged | Found | CheckStarted | CheckEnded | ServerStopped | RoundClosed


__all__ = [
    "CheckEnded",
    "CheckStarted",
    "Event",
    "Found",
    "PhaseChanged",
    "Planned",
    "RoundClosed",
    "RoundOpened",
    "ServerStopped",
]
