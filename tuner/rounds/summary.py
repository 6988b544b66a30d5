"""A round in one line, as the rounds list shows it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tuner.checks.model import Verdict
from tuner.rounds.model import Round, RoundState


class RoundSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the rounds list. Pools are the actual ones; None: never known. Times in seconds.

    ``changed`` says which flags differ from the round before of the same kind (simulated or real):
    {"mem_fraction_static": (0.86, 0.98)}, None where a flag was not asked for.
    """

    number: int
    started_at: float
    state: RoundState
    simulated: bool
    verdict: str = ""
    note: str = ""
    tags: tuple[str, ...] = ()
    #: Where it ended and why, when it failed.
    phase: str = ""
    reason: str = ""
    model: str = ""
    kv_tokens: int | None = None
    mamba_slots: int | None = None
    max_running_requests: int | None = None
    ready_seconds: float | None = None
    checks_passed: int = 0
    checks_total: int = 0
    ttft_p50_s: float | None = None
    itl_p50_s: float | None = None
    changed: dict[str, tuple[Any, Any]] = {}
    #: Why the round itself cannot be read, one sentence; then the line tells what is still known of it.
    damaged: str = ""

    @property
    def name(self) -> str:
        """How the operator calls it."""
        return f"r{self.number}"


def summarise(round_: Round, before: Round | None = None) -> RoundSummary:
    """The line of a round; ``before`` is the round its flags are compared with."""
    boot, readings = round_.boot, round_.readings
    return RoundSummary(
        number=round_.number,
        started_at=round_.started_at,
        state=round_.state,
        simulated=round_.simulated,
        verdict=round_.verdict,
        note=round_.note,
        tags=round_.tags,
        phase=round_.phase,
        reason=round_.reason,
        model=model_name(round_),
        kv_tokens=boot.kv_tokens if boot else None,
        mamba_slots=boot.mamba_slots if boot else None,
        max_running_requests=boot.max_running_requests if boot else None,
        ready_seconds=round_.ready_seconds,
        checks_passed=sum(check.verdict is Verdict.PASS for check in round_.checks),
        checks_total=len(round_.checks),
        ttft_p50_s=readings.ttft_s.p50 if readings and readings.ttft_s else None,
        itl_p50_s=readings.itl_s.p50 if readings and readings.itl_s else None,
        changed=changed_values(before.recipe.flags, round_.recipe.flags) if before else {},
    )


def model_name(round_: Round) -> str:
    """The model as people call it: the last part of its path, or the packaged shape that stands for it."""
    path = round_.recipe.model_path.rstrip("/")
    return path.rsplit("/", 1)[-1] or round_.recipe.tuner.model_shape or ""


def changed_values(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Keys whose values differ, in the order of ``new`` and then of ``old``; an absent one counts as None."""
    return {
        key: (old.get(key), new.get(key)) for key in dict.fromkeys((*new, *old)) if not same(old.get(key), new.get(key))
    }


def same(old: Any, new: Any) -> bool:
    """Equality of flag values: 1 and 1.0 are the same, 1 and True are not."""
    return old == new and isinstance(old, bool) == isinstance(new, bool)
