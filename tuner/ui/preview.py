"""What a start of the draft would give, and against what it is compared. Pure: safe on every move of a slider."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tuner.doctor import diagnose_plan
from tuner.planner import plan as make_plan
from tuner.planner.model import CannotPlan, Plan, PlanInputs
from tuner.recipe.model import Recipe
from tuner.rounds.model import Round


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """A plan, or the sentence that says why there is none."""

    plan: Plan | None = None
    problem: str = ""


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of the running round; None where they are not known."""

    name: str = ""
    kv_tokens: int | None = None
    mamba_slots: int | None = None
    max_running_requests: int | None = None
    longest_input_tokens: int | None = None
    ready_free_gib: float | None = None
    #: The same start as planned: the ghost under the bar.
    plan: Plan | None = None


def preview(inputs: PlanInputs, recipe: Recipe) -> Preview:
    """The plan of ``recipe`` with its findings; under a millisecond, no I/O."""
    asked = msgspec.structs.replace(inputs, flags=recipe.flags)
    try:
        plan = make_plan(asked)
    except CannotPlan as error:
        return Preview(problem=str(error))
    return Preview(plan=msgspec.structs.replace(plan, findings=diagnose_plan(asked, plan)))


def baseline(base_name: str, planned: Plan | None, round_: Round | None) -> Baseline:
    """What the running server has: from its boot log where it tells, else as planned. Empty while nothing runs."""
    if not base_name:
        return Baseline()
    boot = round_.boot if round_ else None
    return Baseline(
        name=base_name,
        kv_tokens=_first(boot.kv_tokens if boot else None, planned.kv_tokens if planned else None),
        mamba_slots=_first(boot.mamba_slots if boot else None, planned.mamba_slots if planned else None),
        max_running_requests=_first(
            boot.max_running_requests if boot else None, planned.max_running_requests if planned else None
        ),
        longest_input_tokens=planned.longest_input_tokens if planned else None,
        ready_free_gib=planned.ready_free_gib if planned else None,
        plan=planned,
    )


def failing(inputs: PlanInputs, recipe: Recipe, name: str, values: Sequence[float]) -> tuple[bool, ...]:
    """For each value of flag ``name``: whether a start with it would fail."""
    bad = []
    for value in values:
        asked = msgspec.structs.replace(inputs, flags={**recipe.flags, name: value})
        try:
            bad.append(not make_plan(asked).fits)
        except CannotPlan:
            bad.append(True)
    return tuple(bad)


def _first(*values: int | None) -> int | None:
    return next((v for v in values if v is not None), None)
