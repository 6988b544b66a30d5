"""The start that advice is given on, worked out once: its plan, what it is needed for, which pool is short."""

from __future__ import annotations

from typing import Any

import msgspec

from tuner.advice.model import Question
from tuner.advice.need import WARM_EACH
from tuner.advice.usage import Usage
from tuner.planner.forward import plan
from tuner.planner.model import CannotPlan, Plan, PlanInputs
from tuner.planner.need import Need, rows_of, slots_needed, tokens_needed
from tuner.planner.resolve import Resolved, pin_draft, resolve

#: Evictions hurt when what was evicted is at least this share of what was computed, and hits are not near all.
_EVICTED_SHARE, _HITS_ENOUGH = 0.10, 0.95
#: A queue in fewer busy looks than this is chance.
QUEUES = 0.01
#: Hours of readings from which "was never used" means something.
HOURS_THAT_TELL = 1.0


class Deficit(msgspec.Struct, frozen=True, kw_only=True):
    """How much a plan lacks for a need, each part from 0 (nothing) to 1."""

    kv: float = 0.0
    requests: float = 0.0
    slots: float = 0.0
    headroom: float = 0.0

    @property
    def total(self) -> float:
        """All parts together: 0 when the need is met."""
        return self.kv + self.requests + self.slots + self.headroom


class Demand(msgspec.Struct, frozen=True, kw_only=True):
    """A need against plans. ``seen``: for a derived need, the KV tokens that requests held together at most."""

    need: Need | None
    seen: int | None
    headroom_gib: float

    def tokens(self, planned: Plan) -> int:
        """KV tokens that the need takes at once."""
        if self.need is None:
            return 0
        tokens = tokens_needed(self.need, planned)
        # The requests of a running server are not all as long as the longest.
        return tokens if self.seen is None else min(tokens, self.seen)

    def rows(self, planned: Plan) -> int:
        """Requests that must be admitted for the need."""
        if self.need is None:
            return 1
        if self.seen is not None:
            return self.need.agents
        return rows_of(self.need, planned)

    def deficit(self, planned: Plan) -> Deficit:
        """What a plan lacks, in shares; a start that does not come up lacks everything."""
        if not planned.fits:
            return Deficit(kv=1.0, requests=1.0, slots=1.0, headroom=1.0)
        headroom = _lack(planned.ready_free_gib, self.headroom_gib)
        if self.need is None:
            return Deficit(headroom=headroom)
        q, rows = planned.slots_per_request, self.rows(planned)
        return Deficit(
            kv=max(
                _lack(planned.longest_input_tokens, self.need.input_tokens),
                _lack(planned.kv_tokens, self.tokens(planned)),
                _lack(planned.context_len, self.need.input_tokens + self.need.output_tokens),
            ),
            requests=_lack(planned.max_running_requests, rows),
            slots=_lack(planned.mamba_slots, slots_needed(self.need, q, rows)) if q else 0.0,
            headroom=headroom,
        )


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """What every family of proposals looks at. ``need`` is the stated one, else the derived one, else None."""

    question: Question
    inputs: PlanInputs
    resolved: Resolved
    plan: Plan
    need: Need | None
    stated: bool
    headroom_gib: float
    demand: Demand
    deficit: Deficit

    @property
    def usage(self) -> Usage:
        """How the server was used; nothing while its readings do not tell yet."""
        return self.question.usage if self.question.usage.tells else Usage()

    @property
    def flags(self) -> dict[str, Any]:
        """Flags as asked."""
        return self.inputs.flags

    @property
    def kv_full(self) -> bool:
        """Readings show a KV pool that is too small: requests retracted, or prefixes evicted and computed again."""
        usage = self.usage
        if usage.retracted:
            return True
        lost = usage.evicted_tokens >= _EVICTED_SHARE * usage.computed_tokens and usage.evicted_tokens > 0
        return lost and (usage.hit_ratio is None or usage.hit_ratio < _HITS_ENOUGH)

    @property
    def kv_wanted(self) -> bool:
        """Whether more KV tokens would be good for something."""
        if self.deficit.kv > 0 or self.kv_full or not self.plan.fits:
            return True
        return self.need is None and self.plan.kv_tokens < self.plan.context_len

    @property
    def slots_cap(self) -> bool:
        """Readings show requests that wait while the state slots, not the operator, cap those that run."""
        return self.usage.queue_share >= QUEUES and self.plan.binds == "mamba"

    @property
    def slots_wanted(self) -> bool:
        """Whether more state slots would be good for something."""
        asked = self.plan.requests_asked
        capped = self.need is None and asked is not None and self.plan.max_running_requests < asked
        lacks = (self.deficit.requests > 0 and self.plan.binds == "mamba") or self.deficit.slots > 0
        return lacks or self.slots_cap or (capped and self.plan.binds == "mamba")

    @property
    def tokens(self) -> int:
        """KV tokens that the need takes at once; 0 without a need."""
        return self.demand.tokens(self.plan)

    @property
    def rows(self) -> int:
        """Requests that must be admitted for the need; 1 without one."""
        return self.demand.rows(self.plan)

    @property
    def requests_at_once(self) -> int:
        """Requests that are to run together: the need's, else what the start admits."""
        return self.need.agents if self.need is not None else max(1, self.plan.max_running_requests)

    def slots_needed(self, slots_per_request: int) -> int:
        """State slots for the need; without one, for the admitted requests and two warm states for each."""
        at_once = self.requests_at_once
        if self.need is None:
            guessed = Need(input_tokens=1, agents=at_once, warm_prefixes=WARM_EACH * at_once)
            return slots_needed(guessed, slots_per_request, at_once)
        return slots_needed(self.need, slots_per_request, self.rows)

    def after(self, changes: dict[str, Any]) -> Plan | None:
        """The plan with some flags changed; None when there is none."""
        try:
            return plan(self.changed(changes))
        except CannotPlan:
            return None

    def changed(self, changes: dict[str, Any]) -> PlanInputs:
        """The inputs with some flags changed, as a recipe takes them (None leaves a flag out)."""
        flags = {name: value for name, value in {**self.flags, **changes}.items() if value is not None}
        return msgspec.structs.replace(self.inputs, flags=flags)


def case_of(question: Question, need: Need | None) -> Case:
    """Works a question out. Raises CannotPlan with one sentence when its flags cannot be planned."""
    inputs = pin_draft(question.inputs)
    planned = plan(inputs)
    stated = question.need is not None
    headroom = need.headroom_gib if need is not None and need.headroom_gib is not None else inputs.headroom_line_gib
    resolved = resolve(inputs)
    used = question.workload.peak_kv_used
    seen = used // resolved.asked.attn_dp if used is not None and not stated else None
    demand = Demand(need=need, seen=seen, headroom_gib=headroom)
    return Case(
        question=question,
        inputs=inputs,
        resolved=resolved,
        plan=planned,
        need=need,
        stated=stated,
        headroom_gib=headroom,
        demand=demand,
        deficit=demand.deficit(planned),
    )


def _lack(there: float, wanted: float) -> float:
    return min(1.0, max(0.0, 1 - there / wanted)) if wanted > 0 else 0.0
