"""Prefix reuse: one long prefix, three tails. Judged by cached tokens; times only from warm shapes.

The second request of a new shape compiles on the spot, so on the recordings its time says nothing (0.836, 0.757,
0.093 s with 0, 8,000, 8,000 of 8,003 tokens cached). A gain is told only from a second prefix of the same length,
asked for when both shapes have been run.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from tuner.checks.answers import GenerateAnswer, failure
from tuner.checks.model import CheckResult, Verdict
from tuner.measure.prompts import plain_ids
from tuner.planner.model import Plan
from tuner.serverlog.model import BootFacts
from tuner.units import format_seconds, format_tokens

PREFIX_REUSE = "prefix reuse"

#: Tokens between two places where an extra buffer keeps a state (``mamba_cache_chunk_size``: the FLA chunk or the
#: page; SGLang 0.5.17, read and recorded: 8,000 = 125 * 64 of 8,003).
STATE_GRID = 64
TAIL_TOKENS = 3
_DEFAULT_TOKENS = 8_000
#: Longer probes take too long on a slow card (2,700 tokens/s cold on the card of the field article).
_LONGEST_TOKENS = 16_384
_FEWEST_GRIDS = 4
#: Share of the KV pool that a probe may take.
_POOL_SHARE = 4
#: A further cold prefill to tell the gain is worth at most this many seconds.
_WARM_BUDGET_S = 4.0


class PrefixContext(msgspec.Struct, frozen=True, kw_only=True):
    """What the verdict depends on beside the answers. Lengths in tokens; None: not known."""

    prefix_tokens: int
    cache_on: bool = True
    #: Whether the model keeps states beside its KV cache.
    hybrid: bool | None = None
    #: ``mamba_radix_cache_strategy`` as far as it is known.
    strategy: str | None = None
    #: Prefill chunk; None when prompts are not chunked.
    chunk: int | None = 8_192
    page: int = 1

    @property
    def grid(self) -> int:
        """Tokens between two places where a prefix may end."""
        return self.page if self.hybrid is False else max(STATE_GRID, self.page)

    @property
    def anywhere(self) -> bool:
        """Whether a prefix may end anywhere on the grid, not only at the ends of chunks, prompts and requests."""
        return self.hybrid is False or (self.strategy or "").startswith("extra_buffer")


class PrefixSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the probe. ``cached_tokens`` is None where the server does not tell."""

    status: int | None = 200
    cached_tokens: int | None = None
    ttft_s: float | None = None
    error: str = ""
    #: By how much the server's counter of cached tokens went up during this request; None: no counter.
    counted: int | None = None


def prefix_seen(answer: GenerateAnswer, counted: int | None = None) -> PrefixSeen:
    """What a client's answer says; where it does not tell cached tokens, the counter does."""
    return PrefixSeen(
        status=answer.status,
        cached_tokens=answer.cached_tokens if answer.cached_tokens is not None else counted,
        ttft_s=answer.ttft_s,
        error=answer.error or "",
        counted=counted,
    )


def prefix_context(facts: BootFacts | None, plan: Plan | None, flags: Mapping[str, Any]) -> PrefixContext:
    """The probe's length and what is known of the cache, from the boot log, the plan and the flags in effect."""
    chunk = _first(facts.chunked_prefill_size if facts else None, _whole(flags.get("chunked_prefill_size")), 8_192)
    hybrid = _hybrid(facts, plan)
    known = PrefixContext(
        prefix_tokens=0,
        cache_on=not flags.get("disable_radix_cache") and (facts is None or facts.tree_cache != "ChunkCache"),
        hybrid=hybrid,
        strategy=_strategy(plan, flags) if hybrid is not False else None,
        chunk=chunk if chunk is not None and chunk > 0 else None,
        page=_whole(flags.get("page_size")) or 1,
    )
    tokens = min(_wanted_tokens(known), _most_tokens(facts, plan))
    return msgspec.structs.replace(known, prefix_tokens=max(0, tokens // known.grid * known.grid))


def too_short(context: PrefixContext) -> bool:
    """Whether the pools leave no room for a probe that could tell anything."""
    return context.prefix_tokens < max(_FEWEST_GRIDS * STATE_GRID, 2 * context.grid)


def prefix_prompts(context: PrefixContext, salt: int, vocab_size: int | None = None) -> Iterator[list[int]]:
    """Prompts of token ids: a prefix fresh for this ``salt``, with ever other tails that differ from their start on."""
    chance = random.Random(salt)
    first, count = plain_ids(vocab_size)
    prefix = [first + chance.randrange(count) for _ in range(context.prefix_tokens)]
    start = chance.randrange(count)
    for number in range(count):
        yield prefix + [first + (start + number + i) % count for i in range(TAIL_TOKENS)]


def worth_a_gain(observations: Sequence[PrefixSeen]) -> bool:
    """Whether another cold prefill, to tell the gain, is cheap enough."""
    cold, hits = observations[0].ttft_s, [seen.cached_tokens for seen in observations[1:]]
    return cold is not None and cold <= _WARM_BUDGET_S and bool(hits) and all(hits)


def judge_prefix(
    observations: Sequence[PrefixSeen], context: PrefixContext, warm: Sequence[PrefixSeen] = ()
) -> CheckResult:
    """The verdict on three answers to one prefix. Pure.

    ``warm`` holds a cold and a hot answer to another prefix of the same length, asked after the three: the gain in
    time to first token comes from them alone.
    """
    if not context.cache_on:
        return _result(Verdict.PASS, "off", "the prefix cache is turned off, as asked; nothing is reused", context)
    if too_short(context):
        return _result(
            Verdict.CANNOT_TELL,
            "too short to tell",
            f"the pools leave room for a prefix of {format_tokens(context.prefix_tokens)} tokens only",
            context,
        )
    failed = next((seen for seen in observations if seen.error or seen.status is None or seen.status >= 400), None)
    if failed is not None:
        unjudged = failed.status is not None and failed.status >= 400
        return CheckResult(
            name=PREFIX_REUSE,
            verdict=Verdict.CANNOT_TELL if unjudged else Verdict.FAIL,
            reason=failure(failed.status, failed.error),
            details=_details("not asked" if unjudged else "no answer", context, observations),
        )
    cached = [seen.cached_tokens for seen in observations]
    if len(cached) < 3 or None in cached:
        return _result(
            Verdict.CANNOT_TELL, "cannot tell", "the answers do not tell cached tokens", context, observations
        )
    first, second, third = (tokens or 0 for tokens in cached[:3])
    verdict, outcome, why = _judged(first, second, third, context)
    gain, details = _gain(warm)
    if verdict is Verdict.PASS:
        why = f"{why}; {gain}"
    if doubt := _doubt(observations):
        why = f"{why}; {doubt}"
    return _result(verdict, outcome, why, context, observations, details)


def _judged(first: int, second: int, third: int, context: PrefixContext) -> tuple[Verdict, str, str]:
    prefix = context.prefix_tokens
    of = f"of {format_tokens(prefix)} tokens reused"
    if max(first, second, third) > prefix:
        most = format_tokens(max(first, second, third))
        return Verdict.FAIL, "wrong", f"{most} tokens were reused, but the prompts share only {format_tokens(prefix)}"
    if 2 * first >= prefix:
        return Verdict.CANNOT_TELL, "cannot tell", f"the first request already found {format_tokens(first)} tokens"
    if not second and not third:
        return Verdict.FAIL, "on but never hits", _why_never(context)
    if not third:
        return (
            Verdict.FAIL,
            "hits and loses",
            f"{format_tokens(second)} {of} by the second request and none by the third: the states were evicted "
            f"between two requests, so more slots are needed",
        )
    reused = f"{format_tokens(third)} {of}"
    if not second:
        reused += " from the third request on"
    if prefix - third < context.grid:
        return Verdict.PASS, "works", reused
    if not context.anywhere and context.chunk and third % context.chunk == 0:
        return Verdict.PASS, "works at chunk ends only", f"{reused}, chunks have {format_tokens(context.chunk)}"
    return Verdict.PASS, "works in part", reused


def _doubt(observations: Sequence[PrefixSeen]) -> str:
    """Where the server's own counter says something else than its answers."""
    counted = [seen.counted for seen in observations]
    if None in counted:
        return ""
    total, told = sum(count or 0 for count in counted), sum(seen.cached_tokens or 0 for seen in observations)
    if total == told:
        return ""
    return (
        f"the server's counter of cached tokens went up by {format_tokens(total)}, not {format_tokens(told)}: "
        "other requests ran, or one of the two is wrong"
    )


def _why_never(context: PrefixContext) -> str:
    reasons = []
    if not context.anywhere:
        reasons.append(
            f'strategy "{context.strategy or "auto"}" gives no extra buffer here, so states are kept only at the ends '
            f"of chunks, prompts and requests"
        )
        if context.chunk is None or context.prefix_tokens < context.chunk:
            chunk = f"one chunk ({format_tokens(context.chunk)})" if context.chunk else "a chunk (prompts are not cut)"
            reasons.append(f"this prefix of {format_tokens(context.prefix_tokens)} tokens is shorter than {chunk}")
        reasons.append("--mamba-radix-cache-strategy extra_buffer changes that")
    if context.page > 1:
        reasons.append(f"only whole pages of {context.page} tokens are reused")
    if not reasons:
        reasons.append("the settings give no reason; look for evictions and for another cache in front")
    return "; ".join(reasons)


def _gain(warm: Sequence[PrefixSeen]) -> tuple[str, dict[str, Any]]:
    cold_then_hot = [seen.ttft_s for seen in warm if not seen.error and seen.ttft_s]
    if len(cold_then_hot) < 2 or not warm[1].cached_tokens or warm[0].cached_tokens:
        return "gain not told: shapes were cold", {}
    cold, hot = cold_then_hot[0], cold_then_hot[1]
    details = {"warm_ttft_s": [round(cold, 4), round(hot, 4)], "gain": round(cold / hot, 2)}
    if hot >= cold:
        return f"no gain in TTFT ({format_seconds(cold)} without, {format_seconds(hot)} with)", details
    return f"gain: TTFT {format_seconds(cold)} without, {format_seconds(hot)} with", details


def _result(
    verdict: Verdict,
    outcome: str,
    why: str,
    context: PrefixContext,
    observations: Sequence[PrefixSeen] = (),
    more: Mapping[str, Any] | None = None,
) -> CheckResult:
    return CheckResult(
        name=PREFIX_REUSE,
        verdict=verdict,
        reason=f"{outcome}: {why}." if outcome != "cannot tell" else f"{why[0].upper()}{why[1:]}.",
        came=_came(observations),
        details={**_details(outcome, context, observations), **(more or {})},
    )


def _details(outcome: str, context: PrefixContext, observations: Sequence[PrefixSeen]) -> dict[str, Any]:
    return {
        "outcome": outcome,
        "prefix_tokens": context.prefix_tokens,
        "cached_tokens": [seen.cached_tokens for seen in observations],
        "counted_tokens": [seen.counted for seen in observations],
        "ttft_s": [None if seen.ttft_s is None else round(seen.ttft_s, 4) for seen in observations],
    }


def _came(observations: Sequence[PrefixSeen]) -> str:
    if not observations:
        return ""
    cached = ", ".join("?" if s.cached_tokens is None else format_tokens(s.cached_tokens) for s in observations)
    times = ", ".join("?" if s.ttft_s is None else format_seconds(s.ttft_s) for s in observations)
    return f"cached tokens {cached}; TTFT {times}"


def _wanted_tokens(context: PrefixContext) -> int:
    """Without an extra buffer the probe must reach beyond the end of a chunk to find anything."""
    if context.anywhere or context.chunk is None:
        return _DEFAULT_TOKENS
    beyond = context.chunk + max(context.chunk // 4, _FEWEST_GRIDS * context.grid)
    return max(_DEFAULT_TOKENS, beyond) if beyond <= _LONGEST_TOKENS else _DEFAULT_TOKENS


def _most_tokens(facts: BootFacts | None, plan: Plan | None) -> int:
    pools = [facts.kv_tokens if facts else None, plan.kv_tokens if plan else None]
    inputs = [facts.context_len if facts else None, plan.longest_input_tokens if plan else None]
    by_pool = _first(*pools, _POOL_SHARE * _LONGEST_TOKENS) or 0
    by_input = _first(*inputs, _LONGEST_TOKENS + 2 * STATE_GRID) or 0
    return min(by_pool // _POOL_SHARE, by_input - 2 * STATE_GRID)


def _hybrid(facts: BootFacts | None, plan: Plan | None) -> bool | None:
    if facts is not None and facts.hybrid is not None:
        return facts.hybrid
    if facts is not None and facts.mamba_slots is not None:
        return facts.mamba_slots > 0
    return plan.mamba_slots > 0 if plan is not None else None


def _strategy(plan: Plan | None, flags: Mapping[str, Any]) -> str | None:
    asked = flags.get("mamba_radix_cache_strategy") or flags.get("mamba_scheduler_strategy")
    if asked and asked != "auto":
        return str(asked)
    return (plan.strategy if plan is not None and plan.strategy else None) or "auto"


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
