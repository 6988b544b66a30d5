"""What a start's log tells that is worth saying though nothing died."""

from __future__ import annotations

import re
from collections.abc import Callable

from tuner.doctor.case import LogCase, finding
from tuner.findings import Finding, FindingId, Severity
from tuner.serverlog.model import Phase
from tuner.units import format_gib, format_tokens

Rule = Callable[[LogCase], Finding | None]

#: A pool this little above the context is lost by the next upgrade (408 tokens were, in one report).
_THIN = 0.01
_SPEC_SHARE = 0.15

_CAPPED = re.compile(r"is capped to \d+ by the mamba state|was reduced from the requested \d+ to")
_NO_SCALES = re.compile(r"Using FP8 KV cache but no scaling factors provided")
_PREFILL_GRAPHS = re.compile(r"Disabling auto-selected prefill CUDA graph: only (?P<gib>[\d.]+) GiB is free")
#: Classes that 0.5.17's list of extra-buffer models has forgotten: "auto" stays the literal word there.
_FORGOTTEN = frozenset({"Qwen3_5ForCausalLM", "Qwen3_5MoeForCausalLM"})
_LAST_FORGETTING = (0, 5, 22)
_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})")


def _states_not_hybrid(case: LogCase) -> Finding | None:
    facts = case.facts
    asked = [n for n in ("max_mamba_cache_size", "mamba_ssm_dtype") if case.argument(n) is not None]
    if facts.mamba_slots == 0 or (facts.hybrid is False and asked):
        return finding(
            FindingId.STATES_NOT_HYBRID,
            Severity.WARNING,
            "Flags for states were set, but the server does not see the model as hybrid.",
            evidence=(f"state slots: {facts.mamba_slots or 'none'}", *(f"{n}={case.argument(n)}" for n in asked)),
            remedy="Check the model class in config.json and the SGLang version; without states these do nothing.",
            flags=dict.fromkeys(asked),
        )
    return None


def _requests_capped(case: LogCase) -> Finding | None:
    facts = case.facts
    asked, admitted = case.number("max_running_requests"), facts.max_running_requests
    admitted = facts.requests_capped_to if admitted is None else admitted
    if admitted is None:
        return None
    by_log = facts.requests_capped_to is not None
    by_slots = facts.mamba_slots is not None and by_log
    if not by_slots and (asked is None or admitted >= asked):
        return None
    slots, line = facts.mamba_slots, case.find(_CAPPED)
    evidence = [line.line] if line else []
    if asked is not None:
        evidence.append(f"asked: {asked:.0f}, admitted: {admitted}")
    if not facts.hybrid and slots is None:
        return finding(
            FindingId.ASKED_NOT_EFFECTIVE,
            Severity.WARNING,
            f"Only {admitted} requests run at once, {asked:.0f} were asked.",
            evidence=evidence,
            remedy="The KV pool limits them: give it more memory, or ask for fewer.",
        )
    per_request = facts.slots_per_request or (max(1, slots // admitted) if slots and admitted else None)
    wanted = int(asked) * per_request + 1 if asked and per_request and asked <= 4096 else None
    remedy = "Keep states in bfloat16, raise mamba_full_memory_ratio, or pin max_mamba_cache_size"
    if wanted:
        remedy += f" at {wanted} (requests x slots per request + 1)"
    flags: dict[str, object] = {}
    if case.argument("mamba_ssm_dtype") not in ("bfloat16", "float16"):
        flags = {"mamba_ssm_dtype": "bfloat16"}
    elif wanted:
        flags = {"max_mamba_cache_size": wanted}
    return finding(
        FindingId.REQUESTS_CAPPED_BY_SLOTS,
        Severity.WARNING,
        f"The state slots admit {admitted} requests at once"
        + (f", {asked:.0f} were asked." if asked is not None and asked > admitted else "."),
        evidence=evidence,
        remedy=f"{remedy}; lowering mem_fraction_static makes it worse.",
        flags=flags,
    )


def _tokens_capped(case: LogCase) -> Finding | None:
    asked, tokens = case.number("max_total_tokens"), case.facts.kv_tokens
    if asked is None or tokens is None or asked <= tokens + (case.number("page_size") or 1):
        return None
    return finding(
        FindingId.ASKED_NOT_EFFECTIVE,
        Severity.WARNING,
        f"The KV pool holds {format_tokens(tokens)} tokens, {format_tokens(int(asked))} were asked.",
        evidence=(f"max_total_tokens={asked:.0f}", f"max_total_num_tokens={tokens}"),
        remedy="max_total_tokens can only lower the pool: leave it out.",
        flags={"max_total_tokens": None},
    )


def _pool_below_context(case: LogCase) -> Finding | None:
    tokens, context = case.facts.kv_tokens, case.facts.context_len
    if tokens is None or context is None:
        return None
    evidence = (f"KV pool: {format_tokens(tokens)} tokens", f"context: {format_tokens(context)} tokens")
    if tokens < context:
        return finding(
            FindingId.POOL_BELOW_CONTEXT,
            Severity.WARNING,
            f"Inputs above about {format_tokens(tokens)} tokens are refused, though the context is longer.",
            evidence=evidence,
            remedy="Give KV more (smaller mamba_full_memory_ratio, fp8 KV, higher fraction), or set context_length to "
            "what you need.",
        )
    if tokens < context * (1 + _THIN):
        return finding(
            FindingId.POOL_BELOW_CONTEXT,
            Severity.NOTE,
            f"The KV pool is only {format_tokens(tokens - context)} tokens larger than one full context.",
            evidence=evidence,
            remedy="Any change that costs a little memory makes the longest inputs fail; leave some margin.",
        )
    return None


def _ratio_misfit(case: LogCase) -> Finding | None:
    """One pool starves while the other has several times what it can use."""
    facts = case.facts
    slots, requests, tokens, context = (
        facts.mamba_slots,
        facts.max_running_requests,
        facts.kv_tokens,
        facts.context_len,
    )
    if not slots or not requests or tokens is None or context is None or tokens >= context:
        return None
    # Five is the most a request ever reserves; the same again keeps idle conversations warm.
    enough = requests * (facts.slots_per_request or 5) * 2
    if slots <= enough:
        return None
    return finding(
        FindingId.RATIO_MISFIT,
        Severity.NOTE,
        f"{slots} state slots for {requests} requests, while the KV pool holds less than one full context.",
        evidence=(
            f"state slots: {slots}, of use to these requests: about {enough}",
            f"KV pool: {format_tokens(tokens)} of {format_tokens(context)} tokens",
        ),
        remedy="Move memory to KV with a smaller mamba_full_memory_ratio, or pin max_mamba_cache_size; "
        "slots beyond this only keep more idle conversations warm.",
        flags={"max_mamba_cache_size": enough},
    )


def _low_headroom(case: LogCase) -> Finding | None:
    free, cut = case.facts.available_gib, case.find(_PREFILL_GRAPHS)
    if free is None or free >= case.headroom_gib:
        return None
    evidence = [f"free after the start: {format_gib(free)}, wanted: {format_gib(case.headroom_gib)}"]
    if cut:
        evidence.append(cut.line)
    return finding(
        FindingId.LOW_HEADROOM,
        Severity.WARNING,
        f"Only {format_gib(free)} of the card stay free.",
        evidence=evidence,
        remedy="Long prompts and compilations take memory outside the pools: lower mem_fraction_static, "
        "or watch the first long inputs.",
        flags=_lower_fraction(case, case.headroom_gib - free),
    )


def _lower_fraction(case: LogCase, gib: float) -> dict[str, float]:
    fraction, before = case.number("mem_fraction_static"), case.facts.free_before_gib
    if fraction is None or not before:
        return {}
    lower = int((fraction - gib / before) * 100) / 100
    return {"mem_fraction_static": lower} if lower > 0.1 else {}


def _spec_eats_pool(case: LogCase) -> Finding | None:
    facts = case.facts
    if facts.draft is None and facts.spec_state_gib is None:
        return None
    weights = (facts.draft.weights_gib if facts.draft else None) or 0.0
    pool = (facts.draft.kv_gib if facts.draft else None) or 0.0
    buffers = (facts.spec_state_gib or 0.0) + (facts.spec_conv_gib or 0.0)
    cost = weights + pool + buffers
    pools = (facts.kv_gib or 0.0) + (facts.ssm_state_gib or 0.0) + (facts.conv_state_gib or 0.0)
    if not pools or cost < _SPEC_SHARE * (cost + pools):
        return None
    evidence = [
        f"draft weights {format_gib(weights)}, draft states {format_gib(buffers)}, draft KV {format_gib(pool)}",
        f"pools {format_gib(pools)}",
    ]
    back = None
    if facts.free_before_graphs_gib is not None and facts.free_after_draft_pools_gib is not None:
        back = facts.free_before_graphs_gib - facts.free_after_draft_pools_gib
    if back is not None and back >= 0.5:
        evidence.append(f"{format_gib(back)} came back after the pools were sized")
    unset = case.argument("max_running_requests") is None and bool(facts.server_args)
    return finding(
        FindingId.SPEC_EATS_POOL,
        Severity.WARNING if unset or buffers > pools else Severity.NOTE,
        f"Speculation takes {format_gib(cost)} that the pools do without.",
        evidence=evidence,
        remedy="Set max_running_requests to what really runs at once (each keeps draft states), draft fewer tokens, "
        "or raise the fraction by what comes back.",
    )


def _prefix_cache(case: LogCase) -> Finding | None:
    facts = case.facts
    if case.on("disable_radix_cache") or facts.tree_cache == "ChunkCache":
        return finding(
            FindingId.PREFIX_CACHE_OFF,
            Severity.WARNING,
            "The prefix cache is off: every prompt is computed from its first token.",
            evidence=(f"prefix cache: {facts.tree_cache or 'disable_radix_cache'}",),
            remedy="Leave disable_radix_cache out, unless prompts never share a beginning.",
            flags={"disable_radix_cache": None},
        )
    if not facts.hybrid or not facts.server_args:
        return None
    strategy = case.argument("mamba_radix_cache_strategy") or case.argument("mamba_scheduler_strategy")
    chunk = facts.chunked_prefill_size
    inside = f"one chunk of {format_tokens(chunk)} tokens" if chunk and chunk > 0 else "one prefill chunk"
    forgotten = strategy == "auto" and facts.model_class in _FORGOTTEN and _may_forget(facts.version)
    if not forgotten and strategy != "no_buffer":
        return None
    evidence = [f"strategy: {strategy}, model class: {facts.model_class}", f"prefill chunk: {chunk}"]
    return finding(
        FindingId.PREFIX_CACHE_OFF,
        Severity.WARNING if forgotten else Severity.NOTE,
        f"A shared beginning shorter than {inside} is never reused: states are kept at ends of chunks only.",
        evidence=evidence,
        remedy="Set mamba_radix_cache_strategy to extra_buffer by name"
        + (": on auto this model class gets none." if forgotten else "; it takes more slots per request."),
        flags={"mamba_radix_cache_strategy": "extra_buffer"},
    )


def _may_forget(version: str | None) -> bool:
    """Whether the lowest version that the log allows is one whose list lacks these classes."""
    match = _VERSION.search(version or "")
    return match is None or tuple(map(int, match.groups())) <= _LAST_FORGETTING


def _kv_scales(case: LogCase) -> Finding | None:
    seen = case.find(_NO_SCALES)
    return seen and finding(
        FindingId.KV_SCALE_MISSING,
        Severity.NOTE,
        "KV is kept in 8 bit without scaling factors of the model.",
        evidence=(seen.line,),
        remedy="Usually harmless; if answers on long contexts get worse, compare with kv_cache_dtype auto.",
    )


def _metrics_off(case: LogCase) -> Finding | None:
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


#: Only where the pools were made: before that there is nothing to judge.
POOL_RULES: tuple[Rule, ...] = (
    _states_not_hybrid,
    _requests_capped,
    _tokens_capped,
    _pool_below_context,
    _ratio_misfit,
    _low_headroom,
    _spec_eats_pool,
    _prefix_cache,
    _kv_scales,
    _metrics_off,
)


def boot_findings(case: LogCase) -> tuple[Finding, ...]:
    """What is true of a start that got its pools, warnings before notes."""
    facts = case.facts
    pools_told = any(x is not None for x in (facts.kv_tokens, facts.mamba_slots, facts.requests_capped_to))
    if not pools_told and case.reached in (Phase.LAUNCHING, Phase.LOADING, Phase.SIZING):
        return ()
    found = [f for rule in POOL_RULES if (f := rule(case))]
    return tuple(sorted(found, key=lambda f: f.severity is Severity.NOTE))
