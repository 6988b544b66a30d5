"""What a running server's readings tell. Samples are looks over time, oldest first; None means: not told."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tuner.doctor.case import as_number, finding
from tuner.doctor.sizes import MOST_SLOTS_PER_REQUEST
from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import GpuReading, Reach, Readings
from tuner.planner.model import HEADROOM_GIB
from tuner.serverlog.model import BootFacts
from tuner.units import format_seconds, format_tokens

#: KV use below which queueing is not for want of KV.
_KV_ROOM = 0.8
#: Prompt tokens computed before a hit ratio of nothing says anything.
_PROMPT_TOKENS = 10_000
_NO_HITS = 0.005
#: Time to first token that people call slow, seconds, and how busy the card must then be for it to be physics.
_SLOW_TTFT_S = 5.0
_CARD_BUSY = 90
#: Share of the speed of one prompt alone on the server that counts as the card's limit.
_AT_THE_LIMIT = 0.7
#: Seconds with running requests and not one token before the server counts as hanging.
_STILL_S = 60.0
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
#: Acceptance length at which drafts are as good as never accepted.
_NO_ACCEPTANCE = 1.05


class Watched:
    """Looks at one server over time, with what is known of its start.

    ``flags`` are in effect or asked, ``facts`` its log's; ``alone_prefill_tokens_per_s``: speed of a cold prompt that
    had the server to itself, where one was measured. ``computed_tokens``: prompt tokens computed, where a counter tells
    them; else they are summed from the rates.
    """

    def __init__(
        self,
        samples: Sequence[Readings],
        *,
        gpus: Sequence[GpuReading] = (),
        flags: Mapping[str, Any] | None = None,
        facts: BootFacts | None = None,
        headroom_gib: float = HEADROOM_GIB,
        alone_prefill_tokens_per_s: float | None = None,
        computed_tokens: float | None = None,
    ) -> None:
        self.samples = tuple(samples)
        self.now = self.samples[-1] if self.samples else Readings(at=0.0)
        self.gpus = tuple(gpus)
        self.flags = flags or {}
        self.facts = facts
        self.headroom_gib = headroom_gib
        self.alone_prefill_tokens_per_s = alone_prefill_tokens_per_s
        self.computed_tokens = computed_tokens

    def gained(self, counter: str) -> int | None:
        """Gain of a counter over the samples; of a single look, all since the server started. None when not told."""
        told = [value for sample in self.samples if (value := getattr(sample, counter)) is not None]
        if not told:
            return None
        return max(0, told[-1] - told[0]) if len(told) > 1 else int(told[0])

    def prompt_tokens(self) -> float:
        """Prompt tokens computed while it was watched, from the rates between looks."""
        if self.computed_tokens is not None:
            return self.computed_tokens
        pairs = itertools.pairwise(self.samples)
        return sum((b.prefill_tokens_per_s or 0.0) * max(0.0, b.at - a.at) for a, b in pairs)

    def busy(self) -> tuple[Readings, ...]:
        """Looks with running requests."""
        return tuple(sample for sample in self.samples if sample.running)


Rule = Callable[[Watched], Finding | None]


def _reach(case: Watched) -> Finding | None:
    now = case.now
    if now.metrics is Reach.UNREACHABLE and now.loads is Reach.UNREACHABLE:
        return finding(
            FindingId.HANG,
            Severity.WARNING,
            "The server does not answer.",
            evidence=("/metrics and /v1/loads: no answer",),
            remedy="Look whether its process lives and what its log says last; if it computes nothing, restart it.",
        )
    if Reach.LOCKED in (now.metrics, now.loads):
        return finding(
            FindingId.SECRET_MISSING,
            Severity.WARNING,
            "The server wants its API key, and the tuner has none.",
            evidence=(now.notice,),
            remedy="Set the variable that the recipe's api_key names in the environment of the tuner.",
        )
    if now.metrics is Reach.OFF:
        return finding(
            FindingId.METRICS_OFF,
            Severity.WARNING,
            "The server runs without metrics: latencies, slots and cache hits cannot be seen.",
            evidence=("/metrics: 404",),
            remedy="Set enable_metrics; where it is set, ask node rank 0 and not a gateway.",
            flags={} if case.flags.get("enable_metrics") else {"enable_metrics": True},
        )
    if now.metrics is Reach.NONSENSE:
        return finding(
            FindingId.METRICS_OFF,
            Severity.WARNING,
            "/metrics answers with something that is not SGLang's.",
            evidence=(now.notice or "/metrics: no SGLang metric in it",),
            remedy="Ask the server itself, on its own host and port, and not a gateway or router before it.",
        )
    return None


def _stands_still(case: Watched) -> Finding | None:
    quiet: list[Readings] = []
    for sample in reversed(case.samples):
        if not (sample.running or sample.queued) or sample.decode_tokens_per_s or sample.prefill_tokens_per_s:
            break
        if sample.decode_tokens_per_s is None and sample.prefill_tokens_per_s is None:
            continue
        quiet.append(sample)
    seconds = quiet[0].at - quiet[-1].at if quiet else 0.0
    if seconds < _STILL_S:
        return None
    return finding(
        FindingId.HANG,
        Severity.WARNING,
        f"Requests wait or run, and not one token was computed for {format_seconds(seconds)}.",
        evidence=(f"running {case.now.running}, queued {case.now.queued}, 0 tokens/s",),
        remedy="A first request compiles for minutes: look at the log. Otherwise send one short request; if it does "
        "not come back either, restart the server.",
    )


def _retracted(case: Watched) -> Finding | None:
    count = case.gained("retracted_requests")
    if not count:
        return None
    admitted = case.now.max_running_requests
    return finding(
        FindingId.OOM_WHILE_SERVING,
        Severity.WARNING,
        f"{count} running requests were put back because the KV pool was full, and are computed again.",
        evidence=(f"retracted requests: {count}", *_kv_line(case.now)),
        remedy="Lower max_running_requests, give KV more, or raise schedule_conservativeness.",
        flags={"max_running_requests": admitted - 1} if admitted and admitted > 1 else {},
    )


def _queueing(case: Watched) -> Finding | None:
    """Saturated is running == admitted with a queue; at the cap the slots' gauge reads 0.8, not 1."""
    waiting = [s for s in case.samples if s.queued]
    if not waiting or 2 * len(waiting) < len([s for s in case.samples if s.running is not None]):
        return None
    capped = [
        s
        for s in waiting
        if s.running is not None and s.max_running_requests is not None and s.running >= s.max_running_requests
    ]
    roomy = [s for s in capped if _kv_share(s) is not None and (_kv_share(s) or 0.0) < _KV_ROOM]
    if not roomy or 2 * len(roomy) < len(waiting):
        return None
    last = roomy[-1]
    admitted = last.max_running_requests or 0
    evidence = (f"running {last.running} of {admitted}, queued {last.queued}", *_kv_line(last), *_slot_line(last))
    if last.slots_total and _slots_bind(case, last.slots_total, admitted):
        return finding(
            FindingId.REQUESTS_CAPPED_BY_SLOTS,
            Severity.WARNING,
            f"Requests wait because the state slots admit only {admitted} at once, while KV has room.",
            evidence=evidence,
            remedy="Keep states in bfloat16, raise mamba_full_memory_ratio, or pin more slots; a use of 0.8 is full, "
            "for the rest is reserved.",
            flags=_more_slots(case, last.slots_total),
        )
    return finding(
        FindingId.REQUESTS_QUEUE,
        Severity.NOTE,
        f"Requests wait because only {admitted} may run at once, while both pools have room.",
        evidence=evidence,
        remedy="Raise max_running_requests if each may become a little slower; with speculation every request more "
        "takes draft states.",
        flags={"max_running_requests": admitted + 1} if admitted else {},
    )


def _slots_bind(case: Watched, slots: int, admitted: int) -> bool:
    facts = case.facts
    if facts is not None and facts.requests_capped_to is not None:
        return True
    asked = as_number(case.flags.get("max_running_requests"))
    per_request = facts.slots_per_request if facts is not None else None
    if per_request:
        return slots // per_request <= admitted
    # Not told: a number that was asked for is its own reason.
    return asked != admitted and slots // MOST_SLOTS_PER_REQUEST <= admitted


def _more_slots(case: Watched, slots: int) -> dict[str, Any]:
    if case.flags.get("mamba_ssm_dtype") not in ("bfloat16", "float16"):
        return {"mamba_ssm_dtype": "bfloat16"}
    return {"max_mamba_cache_size": slots + MOST_SLOTS_PER_REQUEST}


def _no_hits(case: Watched) -> Finding | None:
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


def _physics(case: Watched) -> Finding | None:
    """Slow first tokens without a queue, on a card that computes as fast as it can."""
    ttft, speed = case.now.ttft_s, case.now.prefill_tokens_per_s
    if ttft is None or ttft.p50 < _SLOW_TTFT_S or not ttft.count or any(s.queued for s in case.samples):
        return None
    admitted = case.now.max_running_requests
    if admitted is not None and any((s.running or 0) >= admitted > 1 for s in case.samples):
        return None
    speeds = [s.prefill_tokens_per_s for s in case.samples if s.prefill_tokens_per_s]
    fastest = max(speeds, default=speed or 0.0)
    alone = case.alone_prefill_tokens_per_s
    at_limit = alone is not None and fastest >= _AT_THE_LIMIT * alone
    busiest = max((gpu.utilisation or 0 for gpu in case.gpus), default=0)
    if not fastest or not (at_limit or (alone is None and busiest >= _CARD_BUSY)):
        return None
    evidence = [f"time to first token p50 {format_seconds(ttft.p50)}, no request queued"]
    evidence.append(
        f"prefill {fastest:,.0f} tokens/s, {alone:,.0f} for one prompt alone"
        if alone is not None
        else f"prefill {fastest:,.0f} tokens/s, the card is {busiest} % busy"
    )
    return finding(
        FindingId.PHYSICS_NOT_CONFIG,
        Severity.NOTE,
        "First tokens are slow because the card computes the prompts at its limit: no flag makes them faster.",
        evidence=evidence,
        remedy="Send shorter inputs, share beginnings so that the prefix cache helps, or ask for less reasoning.",
    )


def _slot_leak(case: Watched) -> Finding | None:
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


def _slots_pinned(case: Watched) -> Finding | None:
    now = case.now
    if not now.slots_total or now.slots_evictable is None or now.slots_evictable < _PINNED_SHARE * now.slots_total:
        return None
    return finding(
        FindingId.SLOTS_PINNED,
        Severity.NOTE,
        f"{now.slots_evictable} of {now.slots_total} state slots keep the beginnings of idle conversations: normal, "
        "not a leak.",
        evidence=_slot_line(now),
        remedy="Nothing to do: they are given up when a request needs them. What costs is computing again what was "
        "given up.",
    )


def _thrash(case: Watched) -> Finding | None:
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
        evidence=(f"prefix hit ratio since the start: {ratio:.2f}", *_kv_line(case.now)),
        remedy="Try schedule_policy lpm, give KV more, or run fewer conversations at once.",
        flags={} if case.flags.get("schedule_policy") == "lpm" else {"schedule_policy": "lpm"},
    )


def _drafts_rejected(case: Watched) -> Finding | None:
    lengths = [s.acceptance_length for s in case.busy() if s.acceptance_length and s.decode_tokens_per_s]
    if not lengths or statistics.median(lengths) > _NO_ACCEPTANCE or not case.flags.get("speculative_algorithm"):
        return None
    return finding(
        FindingId.DRAFTS_REJECTED,
        Severity.WARNING,
        "Hardly a draft is accepted: speculation costs memory and time and gives nothing.",
        evidence=(f"acceptance length {statistics.median(lengths):.2f} (1 is none)",),
        remedy="Check that the draft belongs to this model; otherwise leave speculation out, which gives its memory to "
        "the pools.",
        flags={
            name: None
            for name in (
                "speculative_algorithm",
                "speculative_num_steps",
                "speculative_eagle_topk",
                "speculative_num_draft_tokens",
            )
            if case.flags.get(name) is not None
        },
    )


def _kv_share(reading: Readings) -> float | None:
    if reading.kv_used_tokens is None or not reading.kv_total_tokens:
        return None
    return reading.kv_used_tokens / reading.kv_total_tokens


def _kv_line(reading: Readings) -> tuple[str, ...]:
    if reading.kv_used_tokens is None or not reading.kv_total_tokens:
        return ()
    return (f"KV: {format_tokens(reading.kv_used_tokens)} of {format_tokens(reading.kv_total_tokens)} tokens in use",)


def _slot_line(reading: Readings) -> tuple[str, ...]:
    if not reading.slots_total:
        return ()
    kept = f", {reading.slots_evictable} kept for later" if reading.slots_evictable is not None else ""
    return (f"state slots: {reading.slots_used} of {reading.slots_total} in use{kept}",)


RULES: tuple[Rule, ...] = (
    _reach,
    _stands_still,
    _retracted,
    _queueing,
    _slot_leak,
    _thrash,
    _no_hits,
    _drafts_rejected,
    _physics,
    _slots_pinned,
)


def readings_findings(case: Watched) -> tuple[Finding, ...]:
    """What is true of a running server, warnings before notes."""
    if not case.samples:
        return ()
    found = [f for rule in RULES if (f := rule(case))]
    return tuple(sorted(found, key=lambda f: f.severity is Severity.NOTE))
