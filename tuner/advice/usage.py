"""Hours of readings in one set of numbers: what the workload asked of a server. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence

import msgspec

from tuner.metrics.model import Reach, Readings

#: A pause between two looks longer than this was not watched.
_WATCHED_GAP_S = 60.0
#: Less than this was the checks and a first try.
_TELLS_S, _TELLS_LOOKS = 600.0, 30
#: A count reached in fewer looks than this share is an outlier, once there are enough looks to tell.
_RARE = 0.01
#: Looks at decoding from which the acceptance length is more than a beginning.
ACCEPTANCE_LOOKS = 10
#: Looks in a row in which slots must have been missing to be called lost.
LEAK_LOOKS = 30


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """How a server was used. None: no reading told it. Tokens, slots, requests, seconds, ratios 0..1.

    ``peak_*`` counts of requests leave out the rarest looks (1 %); tokens and slots are the most ever seen.
    """

    #: Rounds whose readings these are, and their looks.
    rounds: tuple[str, ...] = ()
    looks: int = 0
    #: Time that was watched, and looks in which a request ran or waited.
    watched_s: float = 0.0
    busy_looks: int = 0
    peak_running: int | None = None
    peak_queued: int | None = None
    #: Running and queued together.
    peak_at_once: int | None = None
    #: Share of busy looks with a queue.
    queue_share: float = 0.0
    kv_total: int | None = None
    #: Most tokens of running requests, and with cached prefixes.
    peak_kv_used: int | None = None
    peak_kv_held: int | None = None
    #: Most tokens that one request held (of several at once: their mean).
    longest_request: int | None = None
    slots_total: int | None = None
    peak_slots_used: int | None = None
    #: State slots that cached prefixes held beside running requests, at most.
    peak_slots_cached: int | None = None
    #: Slots in use beyond what running and queued requests can hold: the least of the last looks; None: not told.
    slots_beyond: int | None = None
    hit_ratio: float | None = None
    #: Prompt tokens that were computed, by the rates of the looks.
    computed_tokens: float = 0.0
    evicted_tokens: int = 0
    #: Time that throwing them out took.
    eviction_s: float = 0.0
    retracted: int = 0
    #: Share of busy looks in which decoding stood while a prompt was computed.
    stalled_share: float = 0.0
    acceptance_length: float | None = None
    ttft_p50_s: float | None = None
    ttft_p95_s: float | None = None
    itl_p50_s: float | None = None
    itl_p95_s: float | None = None
    #: Prompt tokens a second at the busiest: a look also covers seconds in which nothing was computed.
    prefill_tokens_per_s: float | None = None
    #: False: no look had metrics.
    metrics: bool = True

    @property
    def tells(self) -> bool:
        """Whether it was watched at work for long enough to say anything: checks after a start are no work."""
        return self.watched_s >= _TELLS_S and self.busy_looks >= _TELLS_LOOKS

    @property
    def hours(self) -> float:
        """Time watched in hours."""
        return self.watched_s / 3600


def usage_of(series: Iterable[tuple[str, Sequence[Readings]]], *, slots_per_request: int = 0) -> Usage:
    """One set of numbers from the readings of rounds of one recipe: (name, readings in the order of time).

    ``slots_per_request``: what a request may hold at most; 0 for a model without states.
    """
    kept = [(name, list(looks)) for name, looks in series if looks]
    looks = [look for _, part in kept for look in part]
    if not looks:
        return Usage()
    busy = [look for look in looks if (look.running or 0) + (look.queued or 0) > 0]
    acceptance = [a for look in looks if (a := look.acceptance_length) is not None and a >= 1 and look.running]
    return Usage(
        rounds=tuple(name for name, _ in kept),
        looks=len(looks),
        watched_s=sum(_watched(part) for _, part in kept),
        busy_looks=len(busy),
        peak_running=_usual_peak([look.running for look in busy]),
        peak_queued=_usual_peak([look.queued for look in busy]),
        peak_at_once=_usual_peak([(look.running or 0) + (look.queued or 0) for look in busy]),
        queue_share=sum(1 for look in busy if look.queued) / len(busy) if busy else 0.0,
        kv_total=_most(look.kv_total_tokens for look in looks),
        peak_kv_used=_most(look.kv_used_tokens for look in busy),
        peak_kv_held=_most(_sum(look.kv_used_tokens, look.kv_evictable_tokens) for look in looks),
        longest_request=_most(_a_request(look) for look in busy),
        slots_total=_most(look.slots_total for look in looks),
        peak_slots_used=_most(look.slots_used for look in busy),
        peak_slots_cached=_most(look.slots_evictable for look in looks),
        slots_beyond=_slots_beyond(kept[-1][1], slots_per_request),
        hit_ratio=_hit_ratio([part for _, part in kept]),
        computed_tokens=sum(_computed(part) for _, part in kept),
        evicted_tokens=sum(round(_counter(part, "evicted_tokens")) for _, part in kept),
        eviction_s=sum(_counter(part, "eviction_seconds") for _, part in kept),
        retracted=sum(round(_counter(part, "retracted_requests")) for _, part in kept),
        stalled_share=sum(1 for look in busy if look.stalled) / len(busy) if busy else 0.0,
        acceptance_length=_middle([(a, 1) for a in acceptance]) if len(acceptance) >= ACCEPTANCE_LOOKS else None,
        ttft_p50_s=_middle([(s.p50, s.count) for look in looks if (s := look.ttft_s)]),
        ttft_p95_s=_middle([(s.p95, s.count) for look in looks if (s := look.ttft_s)]),
        itl_p50_s=_middle([(s.p50, s.count) for look in looks if (s := look.itl_s)]),
        itl_p95_s=_middle([(s.p95, s.count) for look in looks if (s := look.itl_s)]),
        prefill_tokens_per_s=_high([r for look in looks if (r := look.prefill_tokens_per_s)]),
        metrics=any(look.metrics is Reach.OK for look in looks),
    )


def _watched(looks: Sequence[Readings]) -> float:
    return sum(seconds for seconds, _ in _steps(looks))


def _computed(looks: Sequence[Readings]) -> float:
    return sum(seconds * (look.prefill_tokens_per_s or 0.0) for seconds, look in _steps(looks))


def _steps(looks: Sequence[Readings]) -> list[tuple[float, Readings]]:
    """(seconds since the look before, look), without pauses in which nobody watched."""
    return [(b.at - a.at, b) for a, b in itertools.pairwise(looks) if 0 < b.at - a.at <= _WATCHED_GAP_S]


def _usual_peak(counts: Sequence[int | None]) -> int | None:
    """The most that is no outlier: reached in at least one look of a hundred."""
    known = sorted(count for count in counts if count is not None)
    if not known:
        return None
    return known[len(known) - 1 - math.floor(_RARE * len(known))]


def _a_request(look: Readings) -> int | None:
    if not look.running or look.kv_used_tokens is None:
        return None
    return look.kv_used_tokens // look.running


def _slots_beyond(looks: Sequence[Readings], slots_per_request: int) -> int | None:
    """See ``Usage.slots_beyond``. Looks without a request tell nothing: the gauges keep the last batch's values."""
    beyond = [
        look.slots_used - slots_per_request * (look.running + (look.queued or 0))
        for look in looks
        if look.slots_used is not None and look.running
    ]
    if not slots_per_request or len(beyond) < LEAK_LOOKS:
        return None
    return max(0, min(beyond[-LEAK_LOOKS:]))


def _hit_ratio(parts: Sequence[Sequence[Readings]]) -> float | None:
    """The last cumulative ratio of each start, the longer watched counting for more."""
    last = [(next((r for x in reversed(p) if (r := x.prefix_hit_ratio) is not None), None), len(p)) for p in parts]
    known = [(ratio, count) for ratio, count in last if ratio is not None]
    return sum(ratio * count for ratio, count in known) / sum(count for _, count in known) if known else None


def _counter(looks: Sequence[Readings], name: str) -> float:
    """What a counter of one start came to."""
    return max((getattr(look, name) or 0 for look in looks), default=0)


def _middle(values: Sequence[tuple[float, int]]) -> float | None:
    """The median of (value, weight); None without any."""
    ordered = sorted((value, weight) for value, weight in values if weight > 0)
    half, seen = sum(weight for _, weight in ordered) / 2, 0
    for value, weight in ordered:
        seen += weight
        if seen >= half:
            return value
    return None


def _high(values: Sequence[float]) -> float | None:
    """The value that one in twenty reaches; None without any."""
    return sorted(values)[len(values) - 1 - len(values) // 20] if values else None


def _sum(*values: int | None) -> int | None:
    return sum(v or 0 for v in values) if values[0] is not None else None


def _most(values: Iterable[int | None]) -> int | None:
    return max((v for v in values if v is not None), default=None)
