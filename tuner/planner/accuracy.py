"""How far a plan was off from what its start then gave."""

from __future__ import annotations

from typing import Protocol

import msgspec

from tuner.planner.model import AFTER_SUMMARY_GIB, Plan
from tuner.units import format_gib, format_tokens


class Came(Protocol):
    """What a start came to, as its boot log tells it. None: the line did not come. GiB."""

    @property
    def mamba_slots(self) -> int | None: ...
    @property
    def kv_tokens(self) -> int | None: ...
    @property
    def max_running_requests(self) -> int | None: ...
    @property
    def available_gib(self) -> float | None: ...


class Accuracy(msgspec.Struct, frozen=True, kw_only=True):
    """Predicted against actual, after a round. ``tokens_percent`` is signed, actual less predicted.

    ``slots_*`` are None for a model without states; ``ready_free_*`` are GiB. None: the log did not tell.
    """

    slots_predicted: int | None
    slots_actual: int | None
    tokens_predicted: int
    tokens_actual: int | None
    tokens_percent: float | None
    requests_predicted: int
    requests_actual: int | None
    ready_free_predicted: float
    ready_free_actual: float | None
    #: The round that the plan was calibrated by, or None.
    calibrated_by: str | None = None


def accuracy(predicted: Plan, facts: Came) -> Accuracy:
    """How far a plan was off from what its start then printed."""
    actual = facts.kv_tokens
    percent = 100 * (actual - predicted.kv_tokens) / actual if actual else None
    return Accuracy(
        slots_predicted=predicted.mamba_slots if predicted.bytes_per_slot else None,
        slots_actual=facts.mamba_slots,
        tokens_predicted=predicted.kv_tokens,
        tokens_actual=actual,
        tokens_percent=percent,
        requests_predicted=predicted.max_running_requests,
        requests_actual=facts.max_running_requests,
        ready_free_predicted=predicted.ready_free_gib,
        ready_free_actual=facts.available_gib - AFTER_SUMMARY_GIB if facts.available_gib is not None else None,
        calibrated_by=predicted.calibrated_by,
    )


def accuracy_text(told: Accuracy) -> str:
    """One line: "KV tokens +0.03 %, slots exact, requests exact, free at ready +0.12 GiB". Actual less predicted."""
    parts = []
    if told.tokens_actual is not None and told.tokens_percent is not None:
        exact = told.tokens_actual == told.tokens_predicted
        parts.append("KV tokens exact" if exact else f"KV tokens {told.tokens_percent:+.3f} %")
    for name, predicted, actual in (
        ("slots", told.slots_predicted, told.slots_actual),
        ("requests", told.requests_predicted, told.requests_actual),
    ):
        if predicted is not None and actual is not None:
            off = actual - predicted
            parts.append(f"{name} exact" if not off else f"{name} {'+' if off > 0 else '-'}{format_tokens(abs(off))}")
    if told.ready_free_actual is not None:
        off_gib = told.ready_free_actual - told.ready_free_predicted
        parts.append(f"free at ready {'-' if off_gib < 0 else '+'}{format_gib(abs(off_gib))}")
    return ", ".join(parts)
