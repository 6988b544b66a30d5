"""How much of the answers to come is reserved: SGLang's ``new_token_ratio`` (``managers/schedule_policy.py``)."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.planner.admission import NEW_TOKEN_RATIO, NEW_TOKEN_RATIO_FLOOR, NEW_TOKEN_RATIO_STEPS
from tuner.sim.requests import Request

#: Decode steps that a retraction allows each request when it estimates the ratio anew.
_RETRACT_STEPS = 20


class NewTokenRatio:
    """The share of each answer that is reserved: it falls with every step, and rises when requests are put back."""

    def __init__(self, conservativeness: float) -> None:
        self._first = min(1.0, NEW_TOKEN_RATIO * conservativeness)
        self.now = self._first

    def step(self) -> None:
        """One decode step."""
        step = self._first * (1 - NEW_TOKEN_RATIO_FLOOR) / NEW_TOKEN_RATIO_STEPS
        self.now = max(self._first * NEW_TOKEN_RATIO_FLOOR, self.now - step)

    def retracted(self, running: Sequence[Request]) -> None:
        """``estimate_new_token_ratio_after_retract`` of those that still run."""
        made = sum(len(r.output) for r in running) + _RETRACT_STEPS * len(running)
        self.now = min(1.0, made / (sum(r.max_new_tokens for r in running) + 1))

    def idle(self) -> None:
        """Nothing runs: it begins anew."""
        self.now = self._first
