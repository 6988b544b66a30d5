"""When to stop, in one sentence."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.advice.case import Case
from tuner.advice.model import Proposal
from tuner.advice.need import requests_text
from tuner.units import format_gib, format_tokens


def enough(case: Case, proposals: Sequence[Proposal]) -> bool:
    """Whether the start meets its need and nothing is worth a restart."""
    return case.plan.fits and not case.question.failed and case.deficit.total == 0 and not proposals


def sentence(case: Case, proposals: Sequence[Proposal]) -> str:
    """What to do now."""
    if not case.plan.fits:
        return f"These flags do not start: {case.plan.refusal}"
    if case.question.failed:
        return f"This start failed: {case.question.failed.rstrip('.')}. Mend that first: the findings say how."
    free = f"{format_gib(case.plan.ready_free_gib)} stay free at ready"
    if not proposals:
        if case.deficit.total > 0:
            return "No single change that fits comes nearer to the need: see tuner solve for several at once."
        what = "the need is met" if case.stated else "what was seen at work is served"
        if case.need is None:
            return f"Nothing idle is worth a restart ({free}); no need is stated and no work was seen yet."
        return f"Good enough, stop: {what}, {free}, and nothing idle is worth a restart."
    best = proposals[0]
    if case.need is None:
        return f"{best.title}."
    kind = "Needed" if case.stated else "Seen at work"
    longest = format_tokens(case.need.input_tokens)
    head = f"{kind}: {requests_text(case.need.agents)} at once, {longest} tokens the longest."
    if case.deficit.total == 0:
        return f"{head} That is served; more to gain: {_lower(best.title)}."
    if best.meets_need:
        return f"{head} One change serves it: {_lower(best.title)}."
    several = " No single change does it; tuner solve finds several at once." if case.stated else ""
    return f"{head} Not served with the headroom yet; next: {_lower(best.title)}.{several}"


def _lower(title: str) -> str:
    return title[:1].lower() + title[1:]
