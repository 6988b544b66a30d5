"""What a session tells whoever watches it. Both front ends draw from these; a session knows no widget."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from tuner.checks.model import CheckResult
from tuner.findings import Finding
from tuner.planner.model import Plan
from tuner.rounds.model import Round
from tuner.server.model import PhaseChanged, StopOutcome
from tuner.session.auto.model import AutoOutcome


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


class AutoNews(msgspec.Struct, frozen=True, tag=True):
    """A step of auto. ``kind``: "need", "plan", "proof", "proved", "short", "back"; ``number``: its round from 1 on.

    ``text`` is what the operator reads; ``of`` is how many rounds it may take.
    """

    kind: str
    text: str
    number: int = 0
    of: int = 0
    port: int = 0


class AutoEnded(msgspec.Struct, frozen=True, tag=True):
    """Auto is over."""

    outcome: AutoOutcome


Event = (
    RoundOpened
    | Planned
    | PhaseChanged
    | Found
    | CheckStarted
    | CheckEnded
    | ServerStopped
    | RoundClosed
    | AutoNews
    | AutoEnded
)

#: Whoever hears of them; called from the thread at work.
Publish: TypeAlias = Callable[[Event], None]

__all__ = [
    "AutoEnded",
    "AutoNews",
    "CheckEnded",
    "CheckStarted",
    "Event",
    "Found",
    "PhaseChanged",
    "Planned",
    "Publish",
    "RoundClosed",
    "RoundOpened",
    "ServerStopped",
]
