"""What advice is given on and what comes of it. Pure data; sizes are GiB and tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from tuner.advice.usage import Usage
from tuner.measure.model import Physics
from tuner.planner.model import PlanInputs
from tuner.planner.need import Need


class Lever(StrEnum):
    """What a proposal moves; proposals of equal use come in this order."""

    IDLE = "idle memory"
    RATIO = "ratio"
    DTYPE = "dtype"
    STRATEGY = "strategy"
    SPECULATION = "speculation"
    POLICY = "policy"


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier round with its flags. ``bad``: it did not come up, or the operator rejected it."""

    name: str
    flags: dict[str, Any]
    bad: bool


class Question(msgspec.Struct, frozen=True, kw_only=True):
    """What advice is asked on: a start, how it was used, and what it must be good for.

    ``inputs`` are those of the round's flags, calibrated by its boot log where there is one. ``need`` None: it is
    derived from ``usage``, or, while that does not tell yet, from ``before``: how a round with other flags was used.
    ``slo_*`` are what an answer must keep, seconds. ``prefix_reused``: what the check of the
    prefix cache found, None when it could not tell. ``failed``: why the start did not come up; empty when it did.
    """

    inputs: PlanInputs
    usage: Usage = Usage()
    before: Usage = Usage()
    need: Need | None = None
    physics: Physics | None = None
    prefix_reused: bool | None = None
    slo_ttft_s: float | None = None
    slo_itl_s: float | None = None
    tried: tuple[Tried, ...] = ()
    failed: str = ""

    @property
    def workload(self) -> Usage:
        """What tells of the work itself, whatever the flags; nothing while no readings tell."""
        return next((usage for usage in (self.usage, self.before) if usage.tells), Usage())


class DerivedNeed(msgspec.Struct, frozen=True, kw_only=True):
    """A need read off a running server, and one sentence that says from what."""

    input_tokens: int
    agents: int
    warm_prefixes: int
    sentence: str


class Draft(msgspec.Struct, frozen=True, kw_only=True):
    """A proposal before the planner has confirmed it. ``gains``: names of effects of which one must grow.

    Empty ``gains``: what it gains is no size of a pool, and ``evidence`` from readings carries it.
    """

    id: str
    lever: Lever
    title: str
    flags: dict[str, Any]
    reason: str
    evidence: tuple[str, ...] = ()
    gives_up: str = ""
    risk: str = ""
    gains: tuple[str, ...] = ()


class Effect(msgspec.Struct, frozen=True, kw_only=True):
    """One number of the plan without and with a proposal. ``change``: "+33,200", "-0.40" or "" for none."""

    name: str
    old: float
    new: float
    change: str


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """One change to try next. ``flags`` by underscore name; None as a value means: leave the flag out."""

    id: str
    lever: Lever
    title: str
    flags: dict[str, Any]
    reason: str
    evidence: tuple[str, ...]
    gives_up: str
    risk: str
    effects: tuple[Effect, ...]
    #: Whether it meets a need that is not met without it.
    meets_need: bool = False


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """Proposals, best first, or the word to stop. ``enough``: the need is met and nothing is worth a restart.

    ``notes`` are what readings tell that no flag changes, one sentence each.
    """

    enough: bool
    sentence: str
    proposals: tuple[Proposal, ...] = ()
    need: Need | None = None
    derived_need: DerivedNeed | None = None
    #: What the flags as they are lack for the need, one sentence each.
    missing: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
