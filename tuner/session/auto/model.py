"""What ``auto`` is asked, what it saw, what it does next and how it ended. Pure data."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from tuner.findings import Finding
from tuner.planner.model import Plan
from tuner.planner.need import Need
from tuner.planner.solve import Solution
from tuner.rounds.model import RoundState
from tuner.serverlog.model import BootFacts

#: Tag of every round that auto made.
TAG = "auto"
#: Name of the check that proves the need.
TOGETHER = "in flight together"
#: Answers of the proof where nobody says how long they are: enough to run together in decode.
ANSWER_TOKENS = 64


class Goal(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be reached. Latencies are seconds; ``keep`` are flags, or beginnings of them, that stay."""

    need: Need
    ttft_p95_s: float | None = None
    itl_p95_s: float | None = None
    max_rounds: int = 5
    keep: tuple[str, ...] = ()

    @property
    def timed(self) -> bool:
        """Whether latencies are asked for."""
        return self.ttft_p95_s is not None or self.itl_p95_s is not None


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of ``count`` answered requests. ``p95_s`` is None where they are too few to tell one."""

    count: int
    slowest_s: float
    #: Requests beyond what is wanted.
    late: int = 0
    p95_s: float | None = None


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What the server did with the need: ``asked`` requests of the longest input, sent at once.

    ``together``: how many had their first token before any had its last, which only requests in flight together can.
    ``retracted`` is None where the server does not count them. ``ttft`` and ``itl`` come from requests sent as streams
    got free, None where none were asked for; ``timed_failed`` of them were not answered. ``physics``: what one request
    alone gets, in words.
    """

    asked: int
    answered: int
    together: int
    retracted: int | None = None
    lowest_free_gib: float | None = None
    ttft: Latency | None = None
    itl: Latency | None = None
    timed_failed: int = 0
    physics: str = ""
    #: What requests that were not answered were told, each once.
    errors: tuple[str, ...] = ()
    seconds: float = 0.0
    #: The operator broke it off.
    broken_off: bool = False


class Try(msgspec.Struct, frozen=True, kw_only=True):
    """One round as the next decision sees it. ``ready_free_gib`` is the card's own reading.

    ``started`` False: its server ran before auto and was proved as it was.
    """

    name: str
    flags: dict[str, Any]
    state: RoundState
    plan: Plan | None = None
    boot: BootFacts | None = None
    cause: Finding | None = None
    reason: str = ""
    ready_free_gib: float | None = None
    proof: Proof | None = None
    started: bool = True

    @property
    def verified(self) -> bool:
        """Whether the server came up and every check passed."""
        return self.state is RoundState.VERIFIED


class Ended(StrEnum):
    """Why auto stopped."""

    MET = "met"
    IMPOSSIBLE = "impossible"
    ROUNDS_USED = "rounds used"
    CANNOT_START = "cannot start"
    NOT_VERIFIED = "not verified"
    ABORTED = "aborted"


class Start(msgspec.Struct, frozen=True, kw_only=True):
    """Start a server with these flags. ``reason`` goes into the round's note."""

    solution: Solution
    reason: str


class Stop(msgspec.Struct, frozen=True, kw_only=True):
    """Go no further. ``missing``: one sentence each; ``nearest``: what comes nearest, where the planner knows."""

    ended: Ended
    reason: str
    missing: tuple[str, ...] = ()
    nearest: Solution | None = None


Step = Start | Stop


class AutoRound(msgspec.Struct, frozen=True, kw_only=True):
    """One round of auto: why it was made, what came, what it lacked. ``number`` counts from 1 within auto.

    0 is the server that ran already and was proved as it was.
    """

    number: int
    name: str
    why: str
    state: RoundState
    flags: dict[str, Any]
    planned: Plan | None = None
    kv_tokens: int | None = None
    mamba_slots: int | None = None
    ready_free_gib: float | None = None
    proof: Proof | None = None
    lacks: tuple[str, ...] = ()


class AutoOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """How auto ended. ``winner`` names the round that meets the need, ``serving`` the one whose server runs now.

    ``former`` names the round whose server ran when auto began.
    """

    port: int
    ended: Ended
    reason: str
    goal: Goal
    rounds: tuple[AutoRound, ...] = ()
    winner: str | None = None
    serving: str | None = None
    former: str | None = None
    missing: tuple[str, ...] = ()
    #: Changes of flags that come nearest where the need cannot be met, and what they give.
    nearest_flags: dict[str, Any] = {}
    nearest: Plan | None = None
    simulated: bool = False
    #: Starts that auto made to reach the need; putting back what ran before is not counted.
    starts: int = 0

    @property
    def met(self) -> bool:
        """Whether the need was seen to be met."""
        return self.ended is Ended.MET
