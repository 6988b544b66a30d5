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

    ``slots_*`` are None for a model without states; ``ready_free_*`` are GiB (``free_at_ready_gib``). None: nothing
    told it.
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


def free_at_ready_gib(
    available_gib: float | None, *, card_gib: float | None = None, ready_mib: int | None = None
) -> float | None:
    """What "free at ready" means of a start that came up: the card's free memory then, GiB, as it is planned.

    The card's own reading where there is one: its whole memory less what was in use at ready (``ready_mib``), whoever
    held it; a plan leaves out the others' share as well, by its free memory before the start. Else the log's summary
    line (``available_gib``) less what a server still takes after it. None where nothing tells.
    """
    if card_gib is not None and ready_mib is not None:
        return max(0.0, card_gib - ready_mib / 1024)
    return max(0.0, available_gib - AFTER_SUMMARY_GIB) if available_gib is not None else None


def accuracy(predicted: Plan, facts: Came, *, ready_mib: int | None = None) -> Accuracy:
    """How far a plan was off from what its start came to; ``ready_mib``: VRAM in use at ready, None if not read."""
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
        ready_free_actual=free_at_ready_gib(facts.available_gib, card_gib=predicted.card_gib, ready_mib=ready_mib),
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
        parts.append(f"free at ready {'-' if round(off_gib, 2) < 0 else '+'}{format_gib(abs(off_gib))}")
    return ", ".join(parts)
