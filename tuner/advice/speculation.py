"""Speculation: what its acceptance is worth against what it takes from the pools."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tuner.advice.case import Case
from tuner.advice.idle import highest_fraction
from tuner.advice.model import Draft, Lever
from tuner.units import format_gib, format_seconds, format_tokens

#: The shortest draft: one step, a chain.
_SHORT: dict[str, Any] = {
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
    "speculative_num_draft_tokens": 2,
}
_LONGER_STEPS = 3
#: Mean time between tokens from which a reader waits, seconds (slower than 50 tokens a second).
_SLOW_S = 0.020
#: Verifying drafts costs time of the other requests: with more at once than this it may not pay.
_MANY_AT_ONCE = 8
#: Acceptance of a drafted token below which drafts do not pay, and above which longer ones do.
_LOW, _HIGH = 0.25, 0.70
_FRACTION_GAIN = 0.005


def proposals(case: Case) -> Iterator[Draft]:
    """On where decoding is slow and the pools can afford it; off where drafts are refused; longer or shorter."""
    speculation = case.resolved.asked.speculation
    if speculation is None:
        yield from _on(case)
    elif speculation.eagle_like and speculation.topk == 1:
        yield from _off(case)
        yield from _longer(case)
        yield from _shorter(case)


def acceptance(case: Case) -> float | None:
    """Share of drafted tokens that were accepted: (acceptance length - 1) / (draft tokens - 1)."""
    speculation, length = case.resolved.asked.speculation, case.usage.acceptance_length
    if speculation is None or length is None or speculation.draft_tokens < 2:
        return None
    return min(1.0, (length - 1) / (speculation.draft_tokens - 1))


def _slow(case: Case) -> bool:
    itl = case.usage.itl_p50_s
    slo = case.question.slo_itl_s
    return itl is not None and itl >= (slo if slo is not None else _SLOW_S)


def _on(case: Case) -> Iterator[Draft]:
    usage, shape = case.usage, case.inputs.shape
    if not shape.draft_layers or case.need is None or not _slow(case) or usage.itl_p50_s is None:
        return
    if (usage.peak_running or 0) > _MANY_AT_ONCE:
        return
    flags = dict(_SHORT)
    if case.resolved.asked.requests is None:
        # Left open, SGLang keeps draft states for 48 requests.
        flags["max_running_requests"] = case.requests_at_once * case.resolved.asked.attn_dp
    also = ""
    if case.resolved.rules.gives_draft_vocabulary_back:
        now = case.resolved.defaults.fraction
        fraction = highest_fraction(case, flags, now)
        if fraction is not None and fraction >= now + _FRACTION_GAIN:
            flags["mem_fraction_static"] = fraction
            also = f", and fraction {fraction:g} for what the draft gives back"
    after = case.after(flags)
    if after is None:
        return
    lost = case.plan.kv_tokens - after.kv_tokens
    gives_up = f"{format_tokens(lost)} KV tokens" if lost > 0 else "what the higher fraction alone would give the pools"
    yield Draft(
        id="draft-on",
        lever=Lever.SPECULATION,
        title=f"Draft one token ahead (NEXTN){also}",
        flags=flags,
        reason="Decoding is what users wait for, and few requests run at once: an accepted draft saves a whole step.",
        evidence=(
            f"ITL p50 {format_seconds(usage.itl_p50_s)} with at most {usage.peak_running} running",
            f"{format_tokens(after.kv_tokens)} KV tokens stay, {format_tokens(case.tokens)} are needed at once",
        ),
        gives_up=f"{gives_up}, to the draft's weights, states and KV",
        risk="Pays only where drafts are accepted: look at the acceptance length after a while.",
    )


def _off(case: Case) -> Iterator[Draft]:
    rate, length = acceptance(case), case.usage.acceptance_length
    refused = rate is not None and rate < _LOW
    if not refused and not (case.kv_wanted and case.need is not None and case.deficit.kv > 0):
        return
    spec = [name for name in case.flags if name.startswith("speculative_")]
    if not spec:
        return
    draft = next((t.gib for t in case.plan.terms if t.name == "draft"), 0.0)
    told = [f"the draft holds {format_gib(draft)}, its states {format_gib(case.plan.spec_buffer_gib)}"]
    if rate is not None and length is not None:
        told.insert(0, f"acceptance length {length:.2f}: {rate:.0%} of the drafted tokens")
    yield Draft(
        id="draft-off",
        lever=Lever.SPECULATION,
        title="Stop drafting",
        flags=dict.fromkeys(spec),
        reason="Most drafts are refused: they cost steps and memory."
        if refused
        else "The pools lack what the draft takes.",
        evidence=tuple(told),
        gives_up="nothing that was used" if refused else "faster decoding",
        risk="" if refused else "Answers come slower, by up to the acceptance length.",
        gains=("kv_tokens",),
    )


def _longer(case: Case) -> Iterator[Draft]:
    rate, speculation = acceptance(case), case.resolved.asked.speculation
    if rate is None or speculation is None or rate < _HIGH or speculation.steps >= _LONGER_STEPS or not _slow(case):
        return
    if (case.usage.peak_running or 0) > _MANY_AT_ONCE or case.deficit.kv > 0:
        return
    expected = sum(rate**step for step in range(_LONGER_STEPS + 1))
    yield Draft(
        id="draft-longer",
        lever=Lever.SPECULATION,
        title=f"Draft {_LONGER_STEPS} tokens ahead instead of {speculation.steps}",
        flags=_steps(_LONGER_STEPS),
        reason=f"At this acceptance {_LONGER_STEPS} drafts would give about {expected:.1f} tokens a step.",
        evidence=(
            f"acceptance length {case.usage.acceptance_length:.2f} of at most {speculation.draft_tokens}: {rate:.0%}",
            f"ITL p50 {format_seconds(case.usage.itl_p50_s or 0.0)}",
        ),
        gives_up="memory of the pools to the larger draft states",
        risk="Later drafts are accepted less often than the first: measure it.",
    )


def _shorter(case: Case) -> Iterator[Draft]:
    rate, speculation = acceptance(case), case.resolved.asked.speculation
    if rate is None or speculation is None or not _LOW <= rate < 2 * _LOW or speculation.steps <= 1:
        return
    yield Draft(
        id="draft-shorter",
        lever=Lever.SPECULATION,
        title=f"Draft 1 token ahead instead of {speculation.steps}",
        flags=_steps(1),
        reason="The later drafts are mostly refused.",
        evidence=(
            f"acceptance length {case.usage.acceptance_length:.2f} of at most {speculation.draft_tokens}: {rate:.0%}",
        ),
        gives_up="the few long runs of accepted drafts",
        gains=("kv_tokens", "mamba_slots"),
    )


def _steps(steps: int) -> dict[str, Any]:
    return {"speculative_num_steps": steps, "speculative_num_draft_tokens": steps + 1}
