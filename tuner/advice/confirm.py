"""A drafted proposal against the planner: what it really gives, whether it starts, whether the need still holds."""

from __future__ import annotations

from typing import Any

import msgspec

from tuner.advice.case import Case
from tuner.advice.model import Draft, Effect, Proposal
from tuner.findings import Finding, Severity
from tuner.flags import FlagValueError, check_value, is_in, lookup
from tuner.planner.model import Plan, PlanInputs
from tuner.planner.preflight import flag_conflicts

#: (name, decimals, least gain that is one: share of the old value, or absolute).
_EFFECTS: tuple[tuple[str, int, float, float], ...] = (
    ("kv_tokens", 0, 0.01, 1.0),
    ("mamba_slots", 0, 0.0, 1.0),
    ("max_running_requests", 0, 0.0, 1.0),
    ("longest_input_tokens", 0, 0.01, 1.0),
    ("ready_free_gib", 2, 0.0, 0.05),
)
#: Flags whose spelling by version the planner's own conflicts judge.
_JUDGED_THERE = frozenset({"mamba_radix_cache_strategy", "mamba_scheduler_strategy"})
#: What a part that is short, or that no stated need asks for, may lose without being worse (rounding of fractions).
_ROUNDING = 0.005
#: Flags that say where a server is, not what it is.
_PLACE = frozenset({"host", "port", "api_key", "admin_api_key", "served_model_name"})


def confirmed(case: Case, draft: Draft) -> Proposal | None:
    """The proposal with its effects; None when it does not start, gains nothing, or goes against the need."""
    if all(case.flags.get(name) == value for name, value in draft.flags.items()) or not _known(case, draft.flags):
        return None
    planned = case.after(draft.flags)
    changed = case.changed(draft.flags)
    if planned is None or not planned.fits or _new_conflicts(case, changed):
        return None
    effects = effects_of(case.plan, planned)
    if draft.gains and not any(_gained(effect) for effect in effects if effect.name in draft.gains):
        return None
    lack = case.demand.deficit(planned)
    if _goes_against(case, planned):
        return None
    before = next((t for t in case.question.tried if same_start(t.flags, changed.flags)), None)
    if before is not None and before.bad:
        return None
    evidence = draft.evidence if before is None else (*draft.evidence, f"{before.name} ran with these flags before")
    return Proposal(
        id=draft.id,
        lever=draft.lever,
        title=draft.title,
        flags=draft.flags,
        reason=draft.reason,
        evidence=evidence,
        gives_up=draft.gives_up,
        risk=draft.risk,
        effects=effects,
        meets_need=case.need is not None and case.deficit.total > 0 and lack.total == 0,
    )


def effects_of(old: Plan, new: Plan) -> tuple[Effect, ...]:
    """What changes for an operator between two plans, in a fixed order."""
    return tuple(_effect(name, digits, getattr(old, name), getattr(new, name)) for name, digits, _, _ in _EFFECTS)


def _effect(name: str, digits: int, old: float, new: float) -> Effect:
    old, new = (round(old, digits), round(new, digits)) if digits else (old, new)
    change = f"{new - old:+,.{digits}f}" if new != old else ""
    return Effect(name=name, old=old, new=new, change=change)


def _gained(effect: Effect) -> bool:
    share, least = next((share, least) for name, _, share, least in _EFFECTS if name == effect.name)
    return effect.new - effect.old >= max(least, share * abs(effect.old))


def _goes_against(case: Case, planned: Plan) -> bool:
    """Whether a part of the need that held, or came near, is lost; only the headroom may be bought with pools."""
    old = case.deficit
    new = case.demand.deficit(planned)
    for name in ("kv", "requests", "slots"):
        had, has = getattr(old, name), getattr(new, name)
        if has > had + (0.0 if case.stated and had == 0 else _ROUNDING):
            return True
    if planned.ready_free_gib < case.headroom_gib and planned.ready_free_gib < case.plan.ready_free_gib - 0.01:
        return True
    return planned.lowest_free_gib < 0


def _known(case: Case, flags: dict[str, Any]) -> bool:
    """Whether the version has every flag that is set, and takes its value."""
    for name, value in flags.items():
        info = lookup(name)
        if info is None:
            return False
        if value is None:
            continue
        if name not in _JUDGED_THERE and not is_in(info, case.inputs.sglang_version):
            return False
        try:
            check_value(info, value)
        except FlagValueError:
            return False
    return True


def _new_conflicts(case: Case, changed: PlanInputs) -> tuple[Finding, ...]:
    """Flags that do not go together and did before, or would be without effect."""
    before = {finding.title for finding in flag_conflicts(case.inputs)}
    return tuple(
        finding
        for finding in flag_conflicts(changed)
        if finding.title not in before and finding.severity in (Severity.FATAL, Severity.WARNING)
    )


def same_start(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two sets of flags start the same server, wherever it listens."""
    return _start(a) == _start(b)


def _start(flags: dict[str, Any]) -> bytes:
    kept = {name: value for name, value in flags.items() if name not in _PLACE and value is not None}
    return msgspec.json.encode(kept, order="sorted")
