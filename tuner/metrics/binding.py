"""What keeps a server from doing more at this moment, in words. Pure."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from tuner.metrics.model import Readings

#: Share of a pool from which a request that waits is taken to wait for that pool: what it needs is not told.
_NEARLY_FULL = 0.9


class Binds(StrEnum):
    """What runs out first."""

    KV = "kv"
    SLOTS = "slots"
    REQUESTS = "requests"
    PREFILL = "prefill"
    NOTHING = "nothing"
    UNKNOWN = "unknown"


class Binding(msgspec.Struct, frozen=True):
    """What binds now, and one sentence with the numbers behind it."""

    kind: Binds
    words: str


def binding(readings: Readings | None, asked_requests: int | None = None) -> Binding:
    """What binds now. ``asked_requests``: the running requests that were asked for; the server may admit fewer.

    The order is SGLang's own: the scheduler stops adding requests at the admitted limit, then where no state slot,
    then where no KV tokens are left (``managers/schedule_policy.py``, ``PrefillAdder``); what it has added waits for
    its prefill.
    """
    if readings is None or readings.running is None or readings.queued is None:
        return Binding(Binds.UNKNOWN, "What binds is not known: the server does not tell its requests.")
    if not readings.queued:
        return _nothing_waits(readings)
    waiting = f"{_requests(readings.queued)} wait{'s' if readings.queued == 1 else ''}"
    limit = readings.max_running_requests
    if limit is not None and _at_limit(readings.running, limit, readings.queued):
        return _limited(readings, limit, waiting, asked_requests)
    if _slots_left(readings) < _slots_of_one(readings):
        used_of = f"{readings.slots_used} of {readings.slots_total}"
        words = f"State slots: {used_of} are in use by running requests; {waiting}."
        return Binding(Binds.SLOTS, words)
    used = _share(readings.kv_used_tokens, readings.kv_total_tokens)
    if used is not None and used >= _NEARLY_FULL:
        return Binding(Binds.KV, f"KV tokens: {used:.0%} are in use by running requests; {waiting}.".replace("%", " %"))
    if readings.prefill_tokens_per_s:
        words = f"Prefill: {waiting} for it, {readings.prefill_tokens_per_s:,.0f} tokens/s go through."
        return Binding(Binds.PREFILL, words)
    if readings.prefill_tokens_per_s is None:
        return Binding(Binds.UNKNOWN, f"{waiting}, and the pools have room: why is not told.")
    words = f"{waiting}, though the pools have room and nothing is prefilled."
    return Binding(Binds.UNKNOWN, words)


def _at_limit(running: int, limit: int, queued: int) -> bool:
    """Whether the admitted limit is reached, or will be by those that take the place of the ones just ended."""
    return running >= limit or (queued > limit - running and running >= limit - max(1, limit // 10))


def _limited(readings: Readings, limit: int, waiting: str, asked: int | None) -> Binding:
    run = f"{readings.running} of {limit} admitted run"
    if asked is None or asked <= limit:
        return Binding(Binds.REQUESTS, f"Requests: {run}; {waiting}.")
    # Of the pools that lower the limit, slots are the usual one: half the KV tokens is never this few (0.5.17).
    if readings.slots_total:
        words = f"State slots: {readings.slots_total} admit {limit} of {asked} asked; {run}; {waiting}."
        return Binding(Binds.SLOTS, words)
    return Binding(Binds.KV, f"KV tokens: they admit {limit} of {asked} asked; {run}; {waiting}.")


def _nothing_waits(readings: Readings) -> Binding:
    if readings.stalled:
        words = "Prefill: it has the GPU, and the requests that decode stand still."
        return Binding(Binds.PREFILL, words)
    if not readings.running:
        return Binding(Binds.NOTHING, "Nothing binds: the server is idle.")
    run = f"{_requests(readings.running)} run{'s' if readings.running == 1 else ''}, none waits"
    nearest = _nearest(readings)
    evicting = "; the cache is evicted" if readings.evicted_tokens_per_s else ""
    return Binding(Binds.NOTHING, f"Nothing binds: {run}{evicting}{nearest}.")


def _nearest(readings: Readings) -> str:
    shares = {
        "KV tokens": _share(readings.kv_used_tokens, readings.kv_total_tokens),
        "state slots": _share(readings.slots_used, readings.slots_total),
        "requests": _share(readings.running, readings.max_running_requests),
    }
    known = {name: share for name, share in shares.items() if share is not None}
    if not known:
        return ""
    name = max(known, key=lambda n: known[n])
    return f"; {name} are nearest their limit, {known[name]:.0%} in use".replace("%", " %")


def _slots_left(readings: Readings) -> float:
    """Slots that a new request can get: free ones, and those that only the cache holds."""
    if readings.slots_used is None or not readings.slots_total or "slots_used" in readings.stale:
        return float("inf")
    return readings.slots_total - readings.slots_used


def _slots_of_one(readings: Readings) -> int:
    """Slots that one running request has: 1 to 5, by strategy."""
    if not readings.running or readings.slots_used is None:
        return 1
    return max(1, min(5, readings.slots_used // readings.running))


def _share(part: float | None, whole: float | None) -> float | None:
    return part / whole if part is not None and whole else None


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"
