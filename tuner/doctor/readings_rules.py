"""What a running server's readings tell. Samples are looks over time, oldest first; None means: not told."""

from __future__ import annotations

import statistics
from typing import Any

from tuner.doctor.cache_rules import no_hits, slot_leak, slots_pinned, thrash
from tuner.doctor.case import as_number, finding
from tuner.doctor.sizes import MOST_SLOTS_PER_REQUEST
from tuner.doctor.watched import Rule, Watched, kv_share, kv_words, slot_words
from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import Reach, Readings
from tuner.serverlog.model import Phase
from tuner.units import format_seconds

#: KV use below which queueing is not for want of KV.
_KV_ROOM = 0.8
#: Time to first token that people call slow, seconds, and how busy the card must then be for it to be physics.
_SLOW_TTFT_S = 5.0
_CARD_BUSY = 90
#: Share of the speed of one prompt alone on the server that counts as the card's limit.
_AT_THE_LIMIT = 0.7
#: Seconds with running requests and not one token before the server counts as hanging.
_STILL_S = 60.0
#: Acceptance length at which drafts are as good as never accepted.
_NO_ACCEPTANCE = 1.05
#: Phases of a start before it listens.
_PORT_CLOSED = (Phase.LAUNCHING, Phase.LOADING, Phase.SIZING, Phase.CAPTURING)


def _reach(case: Watched) -> Finding | None:
    now = case.now
    if now.metrics is Reach.UNREACHABLE and now.loads is Reach.UNREACHABLE:
        if case.facts is not None and case.facts.reached in _PORT_CLOSED:
            # It starts; whether the start stands still its log tells.
            return None
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
        evidence=(f"retracted requests: {count}", *kv_words(case.now)),
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
    roomy = [s for s in capped if kv_share(s) is not None and (kv_share(s) or 0.0) < _KV_ROOM]
    if not roomy or 2 * len(roomy) < len(waiting):
        return None
    last = roomy[-1]
    admitted = last.max_running_requests or 0
    evidence = (f"running {last.running} of {admitted}, queued {last.queued}", *kv_words(last), *slot_words(last))
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


RULES: tuple[Rule, ...] = (
    _reach,
    _stands_still,
    _retracted,
    _queueing,
    slot_leak,
    thrash,
    no_hits,
    _drafts_rejected,
    _physics,
    slots_pinned,
)


def diagnose_readings(case: Watched) -> tuple[Finding, ...]:
    """What is true of a running server, warnings before notes: one look is enough for some rules, an hour is better."""
    if not case.samples:
        return ()
    found = [f for rule in RULES if (f := rule(case))]
    return tuple(sorted(found, key=lambda f: f.severity is Severity.NOTE))
