"""From a start and its readings to ranked proposals for the next round. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import msgspec

from tuner.advice import dtype, idle, physics, policy, ratio, speculation, strategy
from tuner.advice.case import Case, case_of
from tuner.advice.confirm import confirmed
from tuner.advice.enough import enough, sentence
from tuner.advice.model import Advice, Draft, Lever, Proposal, Question
from tuner.advice.need import as_need, derived_need
from tuner.planner.need import shortfalls
from tuner.planner.resolve import resolve

#: In the order of their levers: idle memory first, then the ratio, dtype, strategy, speculation, policy.
_FAMILIES: tuple[Callable[[Case], Iterator[Draft]], ...] = (
    idle.proposals,
    ratio.proposals,
    dtype.proposals,
    strategy.proposals,
    speculation.proposals,
    policy.proposals,
)
_ORDER = tuple(Lever)


def advise(question: Question) -> Advice:
    """Proposals for the next round, best first, or the word that it is enough.

    With a need that is not met, those come first that meet it, then those that come nearer; else by lever.
    Raises CannotPlan with one sentence when the flags cannot be planned at all.
    """
    asked = resolve(question.inputs).asked
    derived = derived_need(question.workload, asked.attn_dp) if question.need is None else None
    need = question.need if derived is None else as_need(derived)
    case = case_of(question, need)
    # Where the plan fits and the start died all the same, the pools are not what it died of.
    unexplained = bool(question.failed) and case.plan.fits
    proposals = () if unexplained else _ranked(case, _distinct(case))
    missing = shortfalls(case.plan, need, case.headroom_gib) if need is not None and case.stated else ()
    return Advice(
        enough=enough(case, proposals),
        sentence=sentence(case, proposals),
        proposals=proposals,
        need=question.need,
        derived_need=derived,
        missing=missing,
        notes=() if unexplained else physics.notes(case),
    )


def _distinct(case: Case) -> Iterator[Proposal]:
    """Confirmed proposals, none that starts the same server as one before it."""
    starts: set[bytes] = set()
    for family in _FAMILIES:
        for draft in family(case):
            start = msgspec.json.encode(case.changed(draft.flags).flags, order="sorted")
            if start in starts:
                continue
            if (proposal := confirmed(case, draft)) is not None:
                starts.add(start)
                yield proposal


def _ranked(case: Case, proposals: Iterator[Proposal]) -> tuple[Proposal, ...]:
    def rank(proposal: Proposal) -> tuple[int, int]:
        return _nearer(case, proposal), _ORDER.index(proposal.lever)

    return tuple(sorted(proposals, key=rank))


def _nearer(case: Case, proposal: Proposal) -> int:
    """0: meets the need, 1: at least half of what lacks, 2: comes nearer, 3: does not; alike while nothing lacks."""
    lacks = case.deficit.total
    if case.need is None or lacks == 0:
        return 0
    planned = case.after(proposal.flags)
    left = case.demand.deficit(planned).total if planned is not None else lacks
    if left == 0:
        return 0
    return 1 if left <= lacks / 2 else 2 if left < lacks else 3
