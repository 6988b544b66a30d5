"""A remedy before it is offered: the plan of a start that has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from tuner.doctor.case import as_number
from tuner.doctor.plan_rules import diagnose_plan, fraction_with_headroom
from tuner.findings import Finding, Severity
from tuner.flags import lookup
from tuner.planner import plan as make_plan
from tuner.planner.model import CannotPlan, Plan, PlanInputs
from tuner.planner.need import Need, shortfalls
from tuner.planner.preflight import flag_conflicts
from tuner.planner.resolve import pin_draft
from tuner.recipe.shell import quoted


class Remedied(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with the plan after its remedy.

    ``after`` is None where no recipe is known, where no flag changes, or where the remedy did not hold: then its flags
    are gone from ``finding`` and ``problem`` says why, one sentence. ``stays``: by the plan the finding is still true
    after it, though less so. Where the need that the recipe states is met without the remedy and not with it, the
    finding's remedy says so.
    """

    finding: Finding
    after: Plan | None = None
    problem: str = ""
    stays: bool = False


def changed_flags(flags: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """``flags`` with a remedy's changes; a value of None takes the flag out."""
    return {name: value for name, value in {**flags, **changes}.items() if value is not None}


def plan_after(finding: Finding, inputs: PlanInputs) -> Plan:
    """The plan of a start with the remedy of ``finding``. Raises CannotPlan with one sentence."""
    return make_plan(inputs_after(finding, inputs))


def inputs_after(finding: Finding, inputs: PlanInputs) -> PlanInputs:
    """The inputs of a plan with the remedy of ``finding``. Raises CannotPlan with one sentence."""
    # Laid down first: a remedy may turn speculation off, and the free memory was told with the draft loaded.
    pinned = pin_draft(inputs)
    return msgspec.structs.replace(pinned, flags=changed_flags(inputs.flags, finding.flags))


def with_remedy(finding: Finding, inputs: PlanInputs | None, need: Need | None = None) -> Remedied:
    """``finding`` with the plan after its remedy; a remedy that would not start is taken back, with the reason.

    A lower fraction is lowered on until its own plan keeps to the headroom line, where one does. ``inputs``: what is
    known of the recipe and the machine, without the remedy; None: no recipe is known. ``need``: what the recipe states.
    """
    changes = {name: value for name, value in finding.flags.items() if not _as_it_is(inputs, name, value)}
    if inputs is None or not changes:
        return Remedied(finding=finding if inputs is None else msgspec.structs.replace(finding, flags=changes))
    finding = msgspec.structs.replace(finding, flags=changes)
    if clash := _new_conflict(finding, inputs):
        return _taken_back(finding, clash)
    try:
        changed = inputs_after(finding, inputs)
        after = make_plan(changed)
    except CannotPlan as error:
        return _taken_back(finding, str(error))
    if not after.fits:
        return _taken_back(finding, after.refusal or "The pools do not fit.")
    if _lowers_fraction(finding, inputs) and (lower := fraction_with_headroom(changed, after)):
        finding = msgspec.structs.replace(finding, flags=finding.flags | lower)
        changed = inputs_after(finding, inputs)
        after = make_plan(changed)
    if need is not None and (lost := lost_need(need, _plan_of(inputs), after)):
        finding = msgspec.structs.replace(finding, remedy=f"{finding.remedy} {lost}".strip())
    stays = any(f.id is finding.id for f in diagnose_plan(changed, after) if f.severity is not Severity.NOTE)
    return Remedied(finding=finding, after=after, stays=stays and finding.severity is not Severity.NOTE)


def with_remedies(
    findings: Iterable[Finding], inputs: PlanInputs | None, need: Need | None = None
) -> tuple[Remedied, ...]:
    """``with_remedy`` of each."""
    return tuple(with_remedy(finding, inputs, need) for finding in findings)


def lost_need(need: Need, before: Plan | None, after: Plan) -> str:
    """What of a need that is met now is not met any more, one sentence; "" when nothing. Headroom is left out."""
    missing = shortfalls(after, need, 0.0)
    if before is None or not missing or shortfalls(before, need, 0.0):
        return ""
    parts = "; ".join(f"{sentence[:1].lower()}{sentence[1:]}".rstrip(".") for sentence in missing)
    return f"The need that the recipe states is then no longer met: {parts}."


def set_words(finding: Finding) -> str:
    """The remedy's flags as words for a shell (``--set key=value ...``); "" when there are none that a recipe takes."""
    words = [
        f"--set {quoted(f'{name}={_word(value)}')}" for name, value in finding.flags.items() if lookup(name) is not None
    ]
    return " ".join(words)


def _word(value: Any) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _lowers_fraction(finding: Finding, inputs: PlanInputs) -> bool:
    then = as_number(finding.flags.get("mem_fraction_static"))
    now = as_number(inputs.flags.get("mem_fraction_static"))
    return then is not None and now is not None and then < now


def _plan_of(inputs: PlanInputs) -> Plan | None:
    try:
        return make_plan(inputs)
    except CannotPlan:
        return None


def _as_it_is(inputs: PlanInputs | None, name: str, value: Any) -> bool:
    return inputs is not None and inputs.flags.get(name) == value


def _new_conflict(finding: Finding, inputs: PlanInputs) -> str:
    before = {f.title for f in flag_conflicts(inputs)}
    then = msgspec.structs.replace(inputs, flags=changed_flags(inputs.flags, finding.flags))
    fatal = (f.title for f in flag_conflicts(then) if f.severity is Severity.FATAL)
    return next((title for title in fatal if title not in before), "")


def _taken_back(finding: Finding, why: str) -> Remedied:
    told = " ".join(
        f"{name}={_word(value)}" if value is not None else f"no {name}" for name, value in finding.flags.items()
    )
    problem = f"With {told} the start would not come up: {why}"
    return Remedied(finding=msgspec.structs.replace(finding, flags={}), problem=problem)
