"""What the Doctor screen lists: findings, and proposals for the next round; and what each would change. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tuner.advice.model import Advice, Proposal
from tuner.doctor.case import as_number
from tuner.doctor.remedy import lost_need, with_remedy
from tuner.findings import Finding
from tuner.planner.model import Plan, PlanInputs
from tuner.recipe.model import Recipe
from tuner.rounds.model import Round, RoundState
from tuner.session.needs import stated_need
from tuner.ui.bench import Bench, flag_changes
from tuner.ui.preview import preview
from tuner.ui.widgets.findings_list import worst_first

_FRACTION = "mem_fraction_static"
_ENDED_EARLY = (RoundState.FAILED, RoundState.REFUSED)


class Case(msgspec.Struct, frozen=True):
    """One finding and where it was found: "plan", or a round's name and the flags of its start."""

    origin: str
    finding: Finding
    asked: Mapping[str, Any] = {}


class Next(msgspec.Struct, frozen=True):
    """One proposal, its place in the ranking, and the round it follows."""

    after: str
    rank: int
    proposal: Proposal


class Outlook(msgspec.Struct, frozen=True):
    """The advice as a whole, or the sentence that says why there is none."""

    after: str = ""
    advice: Advice | None = None
    problem: str = ""


Entry = Case | Next | Outlook


class Remedy(msgspec.Struct, frozen=True):
    """What an entry would change on the draft, and the plans without and with it.

    ``flags`` go on the bench. ``problem`` without changes: the remedy was taken back, and why.
    """

    flags: dict[str, Any] = {}
    changes: tuple[tuple[str, object, object], ...] = ()
    now: Plan | None = None
    then: Plan | None = None
    problem: str = ""
    #: What of the need that the recipe states would be lost, one sentence.
    lost: str = ""


def cases(plan: Plan | None, running: Round | None, newest: Round | None) -> tuple[Case, ...]:
    """Findings of the plan on the bench, of the running round, and of the newest one where it failed; worst first."""
    found = [Case("plan", f) for f in plan.findings] if plan is not None else []
    if running is not None:
        found += _cases_of(running)
    if newest is not None and newest.state in _ENDED_EARLY and (running is None or newest.name != running.name):
        found += _cases_of(newest)
    seen: dict[tuple[str, str], Case] = {}
    for case in found:
        seen.setdefault((case.finding.id, case.finding.title), case)
    order = worst_first([case.finding for case in seen.values()])
    return tuple(sorted(seen.values(), key=lambda case: order.index(case.finding)))


def entries(found: Sequence[Case], outlook: Outlook | None) -> tuple[Entry, ...]:
    """Everything listed, in order: findings, then the outlook with its proposals, best first."""
    if outlook is None:
        return tuple(found)
    proposals = outlook.advice.proposals if outlook.advice is not None else ()
    ranked = (Next(outlook.after, rank, proposal) for rank, proposal in enumerate(proposals, 1))
    return (*found, outlook, *ranked)


def key_of(entry: Entry) -> tuple[str, ...]:
    """What stays of an entry when the list is made anew."""
    match entry:
        case Case():
            return ("case", entry.finding.id, entry.finding.title)
        case Next():
            return ("next", entry.proposal.id)
        case Outlook():
            return ("outlook",)


def flags_of(entry: Entry | None) -> dict[str, Any]:
    """The change to the recipe that an entry means; empty when a flag can do nothing."""
    if isinstance(entry, Case):
        return entry.finding.flags
    return entry.proposal.flags if isinstance(entry, Next) else {}


def remedy_of(entry: Entry | None, bench: Bench, inputs: PlanInputs | None) -> Remedy:
    """What an entry would do to the draft: a proposal as it was advised, a finding as ``tuner doctor`` offers it."""
    if isinstance(entry, Case):
        return _remedy_of_case(entry, bench.draft, inputs)
    flags = flags_of(entry)
    mended = bench.draft.with_flags(flags)
    changes = _changes(bench.draft, mended)
    if not changes or inputs is None:
        return Remedy(flags, changes)
    now, then = preview(inputs, bench.draft).plan, preview(inputs, mended)
    return Remedy(flags, changes, now, then.plan, then.problem, _lost(bench.draft, now, then.plan))


def _remedy_of_case(case: Case, draft: Recipe, inputs: PlanInputs | None) -> Remedy:
    left = _not_done_yet(case, draft)
    if not left:
        return Remedy()
    asked = msgspec.structs.replace(inputs, flags=draft.flags) if inputs is not None else None
    remedied = with_remedy(msgspec.structs.replace(case.finding, flags=left), asked)
    if remedied.problem:
        return Remedy(problem=remedied.problem)
    flags = remedied.finding.flags
    changes = _changes(draft, draft.with_flags(flags))
    if not changes or inputs is None:
        return Remedy(flags, changes)
    now = preview(inputs, draft).plan
    return Remedy(flags, changes, now, remedied.after, lost=_lost(draft, now, remedied.after))


def _not_done_yet(case: Case, draft: Recipe) -> dict[str, Any]:
    """A finding's flags without a fraction that the draft is already at, or beyond, seen from where it was found.

    An applied remedy may be lower than its finding says: it must not be offered back up.
    """
    flags = case.finding.flags
    was, to, now = (as_number(of.get(_FRACTION)) for of in (case.asked, flags, draft.flags))
    if was is None or to is None or now is None or not (now <= to < was or was < to <= now):
        return flags
    return {name: value for name, value in flags.items() if name != _FRACTION}


def _cases_of(round_: Round) -> list[Case]:
    return [Case(round_.name, finding, round_.recipe.flags) for finding in round_.findings]


def _changes(draft: Recipe, mended: Recipe) -> tuple[tuple[str, object, object], ...]:
    return tuple((c.name, c.old, c.new) for c in flag_changes(draft.flags, mended.flags))


def _lost(draft: Recipe, now: Plan | None, then: Plan | None) -> str:
    need = stated_need(draft.tuner)
    return lost_need(need, now, then) if need is not None and then is not None else ""
