"""What readings tell of the prefix cache and of the state slots that it keeps. Rules, see ``readings_rules``."""

from __future__ import annotations

import itertools
from typing import Any

from tuner.doctor.case import finding
from tuner.doctor.watched import Watched, kv_words, slot_words
from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import Readings
from tuner.units import format_tokens

#: Prompt tokens computed before a hit ratio of nothing says anything.
_PROMPT_TOKENS = 10_000
_NO_HITS = 0.005
#: Idle looks a minute apart, each with more slots held than the one before, that make a leak.
_LEAK_LOOKS = 3
_LEAK_APART_S = 60.0
#: Slots a leak must have taken, as a share of all.
_LEAK_SHARE = 0.2
#: Slots that idle prefixes keep, as a share of all, worth a word.
_PINNED_SHARE = 0.5
#: Evicted prompt tokens against computed ones above which the cache thrashes, when hardly anything hits.
_THRASH_SHARE = 0.5
_THRASH_HITS = 0.3


def no_hits(case: Watched) -> Finding | None:
    """Nothing came from the prefix cache, though enough prompts were computed."""
    ratio, tokens = case.now.prefix_hit_ratio, case.prompt_tokens()
    if ratio is None or ratio > _NO_HITS or tokens < _PROMPT_TOKENS:
        return None
    strategy = case.flags.get("mamba_radix_cache_strategy")
    off = bool(case.flags.get("disable_radix_cache"))
    hybrid = case.now.slots_total is not None
    without_buffer = hybrid and strategy in (None, "", "auto", "no_buffer")
    flags: dict[str, Any] = {}
    if off:
        flags = {"disable_radix_cache": None}
    elif without_buffer:
        flags = {"mamba_radix_cache_strategy": "extra_buffer"}
    return finding(
        FindingId.PREFIX_CACHE_OFF,
        Severity.WARNING if flags else Severity.NOTE,
        f"Of {format_tokens(int(tokens))} prompt tokens none came from the prefix cache.",
        evidence=(f"prefix hit ratio since the start: {ratio:.3f}", f"strategy: {strategy or 'not set'}"),
        remedy="If your prompts share a beginning, set mamba_radix_cache_strategy to extra_buffer by name: without it "
        "states are kept at ends of chunks only."
        if without_buffer and not off
        else "If your prompts share a beginning, look at disable_radix_cache; prompts below 64 tokens never hit.",
        flags=flags,
    )


def slot_leak(case: Watched) -> Finding | None:
    """Slots that stay held while nothing runs, and more of them each time. Evictable ones do not count as held.

    The gauges keep the last batch's values when the server falls idle (0.5.17), so one idle look proves nothing.
    """
    idle: list[Readings] = []
    for sample in case.samples:
        if sample.running or sample.queued or sample.running is None or sample.slots_used is None:
            continue
        if "slots_used" in sample.stale:
            continue
        if not idle or sample.at - idle[-1].at >= _LEAK_APART_S:
            idle.append(sample)
    total = case.now.slots_total
    if len(idle) < _LEAK_LOOKS or not total:
        return None
    held = [sample.slots_used or 0 for sample in idle]
    growing = all(b > a for a, b in itertools.pairwise(held))
    if not growing or held[-1] < _LEAK_SHARE * total:
        return None
    return finding(
        FindingId.SLOT_LEAK,
        Severity.WARNING,
        f"While nothing runs, more and more state slots stay held: {held[0]}, then {held[-1]} of {total}.",
        evidence=(f"held at idle looks: {', '.join(map(str, held[-6:]))}",),
        remedy="This is a fault of the server: restart it when it is idle, and use a newer SGLang.",
    )


def slots_pinned(case: Watched) -> Finding | None:
    """Slots that only keep beginnings: what looks full is not."""
    now = case.now
    if not now.slots_total or now.slots_evictable is None or now.slots_evictable < _PINNED_SHARE * now.slots_total:
        return None
    return finding(
        FindingId.SLOTS_PINNED,
        Severity.NOTE,
        f"{now.slots_evictable} of {now.slots_total} state slots keep the beginnings of idle conversations: normal, "
        "not a leak.",
        evidence=slot_words(now),
        remedy="Nothing to do: they are given up when a request needs them. What costs is computing again what was "
        "given up.",
    )


def thrash(case: Watched) -> Finding | None:
    """A cache that evicts what it has just computed."""
    evicted, computed, ratio = case.gained("evicted_tokens"), case.prompt_tokens(), case.now.prefix_hit_ratio
    if len(case.samples) < 2 or not evicted or computed < _PROMPT_TOKENS or ratio is None or ratio > _THRASH_HITS:
        return None
    if evicted < _THRASH_SHARE * computed:
        return None
    return finding(
        FindingId.CACHE_THRASH,
        Severity.WARNING,
        f"The prefix cache gives up what it has just computed: {format_tokens(evicted)} tokens evicted, "
        f"{format_tokens(int(computed))} computed.",
        evidence=(f"prefix hit ratio since the start: {ratio:.2f}", *kv_words(case.now)),
        remedy="Try schedule_policy lpm, give KV more, or run fewer conversations at once.",
        flags={} if case.flags.get("schedule_policy") == "lpm" else {"schedule_policy": "lpm"},
    )
