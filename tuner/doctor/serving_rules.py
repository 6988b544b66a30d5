"""What a log tells of a server beside its pools: the prefix cache, metrics, parsers, answers that are worth less."""

from __future__ import annotations

import re

from tuner.doctor.case import LogCase, finding
from tuner.doctor.parsers import parsers_unfit
from tuner.doctor.upstream import lowest_version
from tuner.findings import Finding, FindingId, Severity
from tuner.serverlog.batch import batch_line
from tuner.serverlog.model import Phase
from tuner.units import format_seconds, format_tokens

_NO_SCALES = re.compile(r"Using FP8 KV cache but no scaling factors provided")
_RADIX_OFF_BY_ITSELF = re.compile(r"Hybrid GDN model detected, disable radix cache|Disabling Radix Cache")
_RETRACTED = re.compile(r"KV cache pool is full\. Retract requests\.(?:.*?#retracted_reqs: (?P<requests>\d{1,6}))?")
_HEALTH = re.compile(r"Health check failed\. Server couldn't get a response from detokenizer for last (?P<s>\d+) sec")
#: Classes that 0.5.17's list of extra-buffer models has forgotten: "auto" stays the literal word there.
_FORGOTTEN = frozenset({"Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"})
_LAST_FORGETTING = (0, 5, 22)
#: Silence after which a start no longer seems busy: a first start may compile for ten minutes.
_QUIET_S = 900.0
#: A capture that never ends on Ampere was seen before this version.
_CAPTURE_HANG_GONE = (0, 5, 19)
#: Health calls in a row, with nothing computed between them, that are no long prefill any more.
_HEALTH_MANY = 9


def prefix_cache(case: LogCase) -> Finding | None:
    """A prefix cache that is off, or keeps states only where nobody finds them."""
    facts, off = case.facts, case.find(_RADIX_OFF_BY_ITSELF)
    if case.on("disable_radix_cache") or facts.tree_cache == "ChunkCache" or off:
        return finding(
            FindingId.PREFIX_CACHE_OFF,
            Severity.WARNING,
            "The prefix cache is off: every prompt is computed from its first token.",
            evidence=(off.line if off else f"prefix cache: {facts.tree_cache or 'disable_radix_cache'}",),
            remedy="This version has none for models with states: use 0.5.4 or newer."
            if off and not case.on("disable_radix_cache")
            else "Leave disable_radix_cache out, unless prompts never share a beginning.",
            flags={"disable_radix_cache": None} if case.on("disable_radix_cache") or not off else {},
        )
    if not facts.hybrid or not facts.server_args:
        return None
    strategy = case.argument("mamba_radix_cache_strategy") or case.argument("mamba_scheduler_strategy")
    chunk = facts.chunked_prefill_size
    inside = f"one chunk of {format_tokens(chunk)} tokens" if chunk and chunk > 0 else "one prefill chunk"
    version = lowest_version(case)
    may_forget = version is None or version <= _LAST_FORGETTING
    forgotten = strategy == "auto" and facts.model_class in _FORGOTTEN and may_forget
    if not forgotten and strategy != "no_buffer":
        return None
    return finding(
        FindingId.PREFIX_CACHE_OFF,
        Severity.WARNING if forgotten else Severity.NOTE,
        f"A shared beginning shorter than {inside} is never reused: states are kept at ends of chunks only.",
        evidence=(f"strategy: {strategy}, model class: {facts.model_class}", f"prefill chunk: {chunk}"),
        remedy="Set mamba_radix_cache_strategy to extra_buffer by name"
        + (": on auto this model class gets none." if forgotten else "; it takes more slots per request."),
        flags={"mamba_radix_cache_strategy": "extra_buffer"},
    )


def kv_scales(case: LogCase) -> Finding | None:
    """8-bit KV without the model's own scales."""
    seen = case.find(_NO_SCALES)
    return seen and finding(
        FindingId.KV_SCALE_MISSING,
        Severity.NOTE,
        "KV is kept in 8 bit without scaling factors of the model.",
        evidence=(seen.line,),
        remedy="Usually harmless; if answers on long contexts get worse, compare with kv_cache_dtype auto.",
    )


def metrics_off(case: LogCase) -> Finding | None:
    """A server that nobody can watch."""
    if (case.argument("enable_metrics") or "").lower() != "false":
        return None
    return finding(
        FindingId.METRICS_OFF,
        Severity.WARNING,
        "The server runs without metrics: latencies, slots and cache hits cannot be seen.",
        evidence=("enable_metrics=False",),
        remedy="Set enable_metrics; it costs next to nothing.",
        flags={"enable_metrics": True},
    )


def parser_mismatch(case: LogCase) -> Finding | None:
    """Parsers that do not fit the loaded class."""
    return parsers_unfit(case.facts.model_class or "", case.argument) if case.flags_known else None


def retracted(case: LogCase) -> Finding | None:
    """Running requests that were put back because the KV pool was full."""
    seen = [match for line in case.lines if (match := _RETRACTED.search(line))]
    if not seen:
        return None
    return finding(
        FindingId.OOM_WHILE_SERVING,
        Severity.WARNING,
        "The KV pool was full while serving: running requests were put back and computed again.",
        evidence=tuple(match.string for match in seen[:3]),
        remedy="Lower max_running_requests, give KV more, or raise schedule_conservativeness.",
        flags=_fewer_requests(case),
    )


def _fewer_requests(case: LogCase) -> dict[str, object]:
    admitted = case.facts.max_running_requests
    return {"max_running_requests": admitted - 1} if admitted and admitted > 1 else {}


def health_checks(case: LogCase) -> Finding | None:
    """Health calls without an answer: a long prefill or a first compilation looks the same as a hang."""
    worked = max((i for i, line in enumerate(case.tail) if batch_line(line) is not None), default=-1)
    seen = [line for line in case.tail[worked + 1 :] if _HEALTH.search(line)]
    if not seen:
        # None at all, or the server went on: it was busy.
        return None
    hangs = len(seen) >= _HEALTH_MANY and case.reached is Phase.READY
    return finding(
        FindingId.HANG if hangs else FindingId.BUSY,
        Severity.WARNING if hangs else Severity.NOTE,
        f"{len(seen)} health calls in a row got no answer, and nothing was computed since."
        if hangs
        else "Health calls got no answer in time: the server was busy, which is no reason to restart it.",
        evidence=(seen[-1],),
        remedy="Send one short request: if it does not come back either, restart the server."
        if hangs
        else "Raise SGLANG_HEALTH_CHECK_TIMEOUT, or lower chunked_prefill_size; look at running requests first.",
    )


def stands_still(case: LogCase) -> Finding | None:
    """A start that prints nothing any more."""
    if case.quiet_s is None or case.quiet_s < _QUIET_S or case.reached is Phase.READY or case.facts.stop_asked:
        return None
    capturing, version = case.reached is Phase.CAPTURING, lowest_version(case)
    known = capturing and version is not None and version < _CAPTURE_HANG_GONE
    return finding(
        FindingId.HANG,
        Severity.WARNING,
        f"The start has printed nothing for {format_seconds(case.quiet_s)} (reached: {case.reached}).",
        evidence=(*case.tail[-2:], "known of 0.5.12 on Ampere cards, gone by 0.5.19" if known else ""),
        remedy="Start it with disable_cuda_graph as a test, then with a newer SGLang."
        if capturing
        else "Look whether it still uses the card and the processor: a first start compiles for ten minutes and more. "
        "Otherwise stop it and start again.",
        flags={"disable_cuda_graph": True} if capturing else {},
    )
