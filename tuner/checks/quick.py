"""The sets of checks: the quick one that has to pass after every restart, and the full one on request."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tuner.checks.answers import Client
from tuner.checks.bench import Bench, Check, Stopwatch, not_done
from tuner.checks.breadth import BREADTH, check_breadth
from tuner.checks.content import ChatContext
from tuner.checks.counters import CacheCounter
from tuner.checks.hot import HOT_TOOL_CALL, SAME_ANSWER, check_hot_tool_call, check_same_answer
from tuner.checks.judge import judge_chat
from tuner.checks.leash import leash
from tuner.checks.longest import LONGEST_INPUT, check_longest_input
from tuner.checks.model import CheckResult
from tuner.checks.prefix import (
    PREFIX_REUSE,
    TAIL_TOKENS,
    PrefixSeen,
    judge_prefix,
    prefix_context,
    prefix_prompts,
    prefix_seen,
    too_short,
    worth_a_gain,
)
from tuner.checks.speculation import SPECULATION, check_speculation
from tuner.checks.thinking import NON_THINKING, THINKING, non_thinking_request, thinking_request
from tuner.checks.tool_call import STREAMED_TOOL_CALL, TOOL_CALL, tool_call_request
from tuner.checks.warmup import WarmUp, warm_up
from tuner.planner.model import Plan
from tuner.serverlog.model import BootFacts
from tuner.units import format_tokens

__all__ = ["FULL_SET", "QUICK_SET", "WarmUp", "full_set", "quick_set", "warm_up"]

QUICK_SET = (THINKING, NON_THINKING, TOOL_CALL, PREFIX_REUSE)
FULL_SET = (
    THINKING,
    NON_THINKING,
    TOOL_CALL,
    STREAMED_TOOL_CALL,
    PREFIX_REUSE,
    HOT_TOOL_CALL,
    SAME_ANSWER,
    SPECULATION,
    BREADTH,
    LONGEST_INPUT,
)

#: Enough for a short thought; a model that still thinks then is not called broken, and not called well either.
_MAX_TOKENS = 512
#: One short sentence; weights that never stop would otherwise take a third of the set's half minute here.
_SHORT_TOKENS = 128
#: All of a set. Generous: a cold server compiles inside them.
_BUDGET_S = 300.0
_FULL_BUDGET_S = 900.0

_REQUESTS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    THINKING: thinking_request,
    NON_THINKING: non_thinking_request,
    TOOL_CALL: tool_call_request,
    STREAMED_TOOL_CALL: tool_call_request,
}


def quick_set(
    client: Client,
    *,
    model: str,
    facts: BootFacts | None = None,
    plan: Plan | None = None,
    flags: Mapping[str, Any] | None = None,
    on_started: Callable[[str, int, int], None] = lambda name, number, of: None,
    on_ended: Callable[[CheckResult], None] = lambda result: None,
    cancel: threading.Event | None = None,
    vocab_size: int | None = None,
    budget_s: float = _BUDGET_S,
    max_tokens: int = _MAX_TOKENS,
    names: Sequence[str] = QUICK_SET,
) -> list[CheckResult]:
    """Runs the checks ``names`` on a warm server and returns a result for each, whatever the server does.

    ``flags`` are the values in effect, by underscore name. Prompts are fresh for each run, so that no earlier run's
    cache answers. After ``cancel``, or ``budget_s`` seconds, what was not done is "cannot tell". Raises KeyError for
    a name that is no check.
    """
    known = dict(flags or {})
    context = ChatContext(
        reasoning_parser=_name(known.get("reasoning_parser")),
        tool_call_parser=_name(known.get("tool_call_parser")),
        max_tokens=max_tokens,
    )
    probe = prefix_context(facts, plan, known)
    results = []
    with leash(cancel or threading.Event(), budget_s) as held:
        bench = Bench(
            client=client,
            model=model,
            chat=context,
            probe=probe,
            held=held,
            facts=facts,
            plan=plan,
            flags=known,
            vocab_size=vocab_size,
        )
        for number, name in enumerate(names, start=1):
            on_started(name, number, len(names))
            result = _CHECKS[name](bench)
            results.append(result)
            on_ended(result)
    return results


def full_set(client: Client, *, budget_s: float = _FULL_BUDGET_S, **known: Any) -> list[CheckResult]:
    """All checks, with the arguments of ``quick_set``: some minutes on a real card, the longest input most of them."""
    return quick_set(client, budget_s=budget_s, names=FULL_SET, **known)


def _chat(name: str) -> Check:
    def check(bench: Bench) -> CheckResult:
        limit = min(_SHORT_TOKENS, bench.chat.max_tokens) if name == NON_THINKING else bench.chat.max_tokens
        body = _REQUESTS[name](secrets.token_hex(4), limit)
        sent = str(body["messages"][0]["content"])
        if bench.held.stop.is_set():
            return not_done(name, sent, bench.held, 0.0)
        seen = bench.ask(body, stream=name == STREAMED_TOOL_CALL)
        if bench.broken_off(seen):
            return not_done(name, sent, bench.held, seen.seconds)
        asked = msgspec.structs.replace(bench.chat, max_tokens=limit)
        return msgspec.structs.replace(judge_chat(name, seen, asked), sent=sent)

    return check


def _prefix(bench: Bench) -> CheckResult:
    context = bench.probe
    if not context.cache_on or too_short(context):
        return judge_prefix((), context)
    sent = f"one prefix of {format_tokens(context.prefix_tokens)} token ids with three tails of {TAIL_TOKENS}"
    clock = Stopwatch()
    seen = _ask(bench, 3)
    warm: list[PrefixSeen] = []
    if len(seen) == 3 and worth_a_gain(seen):
        warm = _ask(bench, 2)
    if bench.held.stop.is_set() and (len(seen) < 3 or any(s.error for s in seen)):
        return not_done(PREFIX_REUSE, sent, bench.held, clock.seconds)
    return msgspec.structs.replace(judge_prefix(seen, context, warm), sent=sent, seconds=clock.seconds)


def _ask(bench: Bench, times: int) -> list[PrefixSeen]:
    """The answers to one fresh prefix, one after the other; ends at the first that failed."""
    seen: list[PrefixSeen] = []
    prompts = prefix_prompts(bench.probe, secrets.randbits(48), bench.vocab_size)
    counter = CacheCounter(bench.client)
    while len(seen) < times and not bench.held.stop.is_set():
        body = {
            "input_ids": next(prompts),
            "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True},
        }
        answer = bench.client.generate(body, cancel=bench.held.stop)
        seen.append(prefix_seen(answer, counter.since()))
        if seen[-1].error:
            break
    return seen


def _name(value: Any) -> str | None:
    return str(value) if value else None


_CHECKS: dict[str, Check] = {
    **{name: _chat(name) for name in _REQUESTS},
    PREFIX_REUSE: _prefix,
    HOT_TOOL_CALL: check_hot_tool_call,
    SAME_ANSWER: check_same_answer,
    SPECULATION: check_speculation,
    BREADTH: check_breadth,
    LONGEST_INPUT: check_longest_input,
}
