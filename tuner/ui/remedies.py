"""What the Doctor screen lists: findings, and proposals for the next round; and what each would change. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tuner.advice.model import Advice, Proposal
from tuner.doctor.remedy import lost_need
from tuner.findings import Finding
from tuner.planner.model import Plan, PlanInputs
from tuner.rounds.model import Round, RoundState
from tuner.session.needs import stated_need
from tuner.ui.bench import Bench, flag_changes
from tuner.ui.preview import preview
from tuner.ui.widgets.findings_list import worst_first

_ENDED_EARLY = (RoundState.FAILED, RoundState.REFUSED)


class Case(msgspec.Struct, frozen=True):
    """One finding and where it was found: "plan", or a round's name."""

    origin: str
    finding: Finding


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
    """What an entry's flags would change on the draft, and the plans without and with them."""

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
        found += [Case(running.name, f) for f in running.findings]
    if newest is not None and newest.state in _ENDED_EARLY and (running is None or newest.name != running.name):
        found += [Case(newest.name, f) for f in newest.findings]
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


def remedy_of(flags: dict[str, Any], bench: Bench, inputs: PlanInputs | None) -> Remedy:
    """What flags would do to the draft."""
    draft = bench.draft
    mended = draft.with_flags(flags)
    changes = tuple((c.name, c.old, c.new) for c in flag_changes(draft.flags, mended.flags))
    if not changes or inputs is None:
        return Remedy(changes)
    now, then = preview(inputs, draft).plan, preview(inputs, mended)
    need = stated_need(draft.tuner)
    lost = lost_need(need, now, then.plan) if need is not None and then.plan is not None else ""
    return Remedy(changes, now, then.plan, then.problem, lost)
