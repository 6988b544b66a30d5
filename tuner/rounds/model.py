"""A round as kept in the history."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from tuner.checks.model import CheckResult
from tuner.findings import Finding
from tuner.measure.model import Measurement, Physics
from tuner.metrics.model import Readings
from tuner.planner.accuracy import Accuracy
from tuner.planner.conditions import Conditions
from tuner.planner.model import Plan
from tuner.recipe.model import Recipe
from tuner.serverlog.model import BootFacts

#: The phase after ready: short requests of the tuner that nobody scores. The first ones wait for kernels to compile,
#: so a server is of use only after them.
FIRST_ANSWERS = "first answers"


class RoundState(StrEnum):
    """How far a round came. A round whose tuner died keeps the state it had reached."""

    STARTING = "starting"
    CHECKING = "checking"
    VERIFIED = "verified"
    UNVERIFIED = "unverified"
    FAILED = "failed"
    ABORTED = "aborted"
    REFUSED = "refused"


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One round: what was asked, what was expected, what came. ``name`` is "r1", "r2", ...

    ``note``, ``verdict`` ("keep", "reject", "") and ``tags`` are the operator's. Times are seconds;
    ``started_at`` is Unix time.
    """

    number: int
    started_at: float
    state: RoundState
    #: Where it ended when it failed: a phase of the start, or "checks".
    phase: str = ""
    reason: str = ""
    simulated: bool = False
    recipe: Recipe
    #: Values in effect, read from the server: {"max_running_requests": 9, ...}
    effective: dict[str, Any] = {}
    plan: Plan | None = None
    boot: BootFacts | None = None
    #: In order: the phases of the start, which add up to ``ready_seconds``, then ``FIRST_ANSWERS``.
    phase_seconds: dict[str, float] = {}
    #: From the launch to the server's first answer, to a health check.
    ready_seconds: float | None = None
    #: How long each of the tuner's first requests took.
    first_answers_s: tuple[float, ...] = ()
    checks: tuple[CheckResult, ...] = ()
    readings: Readings | None = None
    #: Loads that were put on it, oldest first, with their samples.
    measurements: tuple[Measurement, ...] = ()
    #: What one request alone gets; None when that was not measured.
    physics: Physics | None = None
    #: VRAM of the first card in MiB, whoever holds it: "before" the start, "peak" during it, at "ready".
    vram_mib: dict[str, int] = {}
    #: What its boot log holds for as a calibration; None when the start could not be planned.
    conditions: Conditions | None = None
    #: How far the plan was off; None when there was none or the log told no pools.
    accuracy: Accuracy | None = None
    findings: tuple[Finding, ...] = ()
    log_path: str = ""
    note: str = ""
    verdict: str = ""
    tags: tuple[str, ...] = ()
    sglang_version: str | None = None
    driver_version: str | None = None
    gpu_name: str | None = None
    tuner_version: str = ""
    #: Which model it was, whatever its folder is called: hashes of its config and of its weights' index.
    fingerprint: dict[str, str] = {}
    #: Variables it was started with that SGLang looks at: the recipe's and inherited ones, secrets hidden.
    environment: dict[str, str] = {}
    #: The tuner process that runs this round (pid and creation time): when it is gone before the round is
    #: closed, another tuner settles the round from its log.
    runner_pid: int | None = None
    runner_created: float | None = None

    @property
    def name(self) -> str:
        """How the operator calls it."""
        return f"r{self.number}"


class ChangeVerdict(StrEnum):
    """How a change is judged."""

    CHANGED = "changed"
    BETTER = "better"
    WORSE = "worse"
    WITHIN_NOISE = "within noise"
    NOT_COMPARABLE = "not comparable"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that differs between two rounds."""

    name: str
    old: Any
    new: Any
    #: "+78,000", "-24", "×2.0" or "" where no difference makes sense.
    change: str = ""
    verdict: ChangeVerdict = ChangeVerdict.CHANGED


class RoundDiff(msgspec.Struct, frozen=True, kw_only=True):
    """Two rounds side by side: only what changed, flags first."""

    old: str
    new: str
    flags_changed: tuple[Change, ...] = ()
    effective_changed: tuple[Change, ...] = ()
    pools: tuple[Change, ...] = ()
    checks: tuple[Change, ...] = ()
    metrics: tuple[Change, ...] = ()
    #: One sentence: what was bought with what.
    summary: str = ""
    simulated: bool = False
