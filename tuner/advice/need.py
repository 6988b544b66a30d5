"""What a workload needs, read off a server that ran it."""

from __future__ import annotations

import math

from tuner.advice.model import DerivedNeed
from tuner.advice.usage import Usage
from tuner.planner.need import Need
from tuner.units import format_seconds, format_tokens

#: Share of busy looks with a queue from which the waiting requests count as needed at once.
_OFTEN = 0.2
#: States kept for each conversation between its turns: its newest, and the one that a changed turn goes back to.
WARM_EACH = 2


def derived_need(usage: Usage, replicas: int = 1) -> DerivedNeed | None:
    """The need that readings show: requests at once and the longest of them; None when nothing was seen at work.

    Readings count all attention-DP ``replicas`` together, a need is that of one. Where prefixes are reused at all, as
    many conversations are kept warm between their turns as there are requests, with a state to fall back to each.
    """
    if not usage.peak_at_once or not usage.peak_running or not usage.longest_request:
        return None
    waits = usage.queue_share >= _OFTEN
    agents = math.ceil((usage.peak_at_once if waits else usage.peak_running) / replicas)
    warm = WARM_EACH * agents if usage.hit_ratio else 0
    told = [
        f"at most {requests_text(agents)} at once" + (", waiting ones among them" if waits else ""),
        f"one of them {format_tokens(usage.longest_request)} tokens long",
    ]
    if usage.hit_ratio is not None:
        told.append(f"{usage.hit_ratio:.0%} of the prompt tokens from the prefix cache")
    return DerivedNeed(
        input_tokens=usage.longest_request,
        agents=agents,
        warm_prefixes=warm,
        sentence=f"Derived, not stated: {format_tokens(usage.looks)} looks at {', '.join(usage.rounds)} in "
        f"{format_seconds(usage.watched_s)} saw {', '.join(told)}.",
    )


def requests_text(count: int) -> str:
    """A number of requests: "1 request", "3 requests"."""
    return "1 request" if count == 1 else f"{format_tokens(count)} requests"


def as_need(derived: DerivedNeed) -> Need:
    """A derived need as the planner takes it; warm conversations count for their state slots alone."""
    return Need(
        input_tokens=derived.input_tokens, agents=derived.agents, warm_prefixes=derived.warm_prefixes, warm_tokens=0
    )
