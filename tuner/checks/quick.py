"""The quick set: what has to work after every restart before a round counts."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tuner.checks.answers import ChatSeen, Client, chat_seen
from tuner.checks.content import ChatContext
from tuner.checks.judge import judge_chat
from tuner.checks.leash import Leash, leash
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.prefix import (
    PREFIX_REUSE,
    TAIL_TOKENS,
    PrefixContext,
    PrefixSeen,
    judge_prefix,
    prefix_context,
    prefix_prompts,
    prefix_seen,
    too_short,
    worth_a_gain,
)
from tuner.checks.thinking import NON_THINKING, THINKING, non_thinking_request, thinking_request
from tuner.checks.tool_call import TOOL_CALL, tool_call_request
from tuner.checks.warmup import WarmUp, warm_up
from tuner.planner.model import Plan
from tuner.serverlog.model import BootFacts
from tuner.units import format_tokens

__all__ = ["QUICK_SET", "WarmUp", "quick_set", "warm_up"]

QUICK_SET = (THINKING, NON_THINKING, TOOL_CALL, PREFIX_REUSE)

#: Enough for a short thought; a model that still thinks then is not called broken, and not called well either.
_MAX_TOKENS = 512
#: All four checks. Generous: a cold server compiles inside them.
_BUDGET_S = 300.0

_REQUESTS: dict[str, Callable[[str, int], dict[str, Any]]] = {
    THINKING: thinking_request,
    NON_THINKING: non_thinking_request,
    TOOL_CALL: tool_call_request,
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
) -> list[CheckResult]:
    """Runs the four checks on a warm server and returns a result for each, whatever the server does.

    ``flags`` are the values in effect, by underscore name. Prompts are fresh for each run, so that no earlier run's
    cache answers. After ``cancel``, or ``budget_s`` seconds, what was not done is "cannot tell".
    """
    known = flags or {}
    context = ChatContext(
        reasoning_parser=_name(known.get("reasoning_parser")),
        tool_call_parser=_name(known.get("tool_call_parser")),
        max_tokens=max_tokens,
    )
    probe = prefix_context(facts, plan, known)
    results = []
    with leash(cancel or threading.Event(), budget_s) as held:
        for number, name in enumerate(QUICK_SET, start=1):
            on_started(name, number, len(QUICK_SET))
            if name == PREFIX_REUSE:
                result = _prefix(client, probe, vocab_size, held)
            else:
                result = _chat(client, name, model, context, held)
            results.append(result)
            on_ended(result)
    return results


def _chat(client: Client, name: str, model: str, context: ChatContext, held: Leash) -> CheckResult:
    body = {"model": model, **_REQUESTS[name](secrets.token_hex(4), context.max_tokens)}
    sent = str(body["messages"][0]["content"])
    if held.stop.is_set():
        return _not_done(name, sent, held, 0.0)
    answer = client.chat(body, cancel=held.stop)
    if held.stop.is_set() and (answer.error or answer.status is None):
        return _not_done(name, sent, held, answer.total_s)
    seen: ChatSeen = chat_seen(answer, context.max_tokens)
    return msgspec.structs.replace(judge_chat(name, seen, context), sent=sent)


def _prefix(client: Client, context: PrefixContext, vocab_size: int | None, held: Leash) -> CheckResult:
    if not context.cache_on or too_short(context):
        return judge_prefix((), context)
    sent = f"one prefix of {format_tokens(context.prefix_tokens)} token ids with three tails of {TAIL_TOKENS}"
    began = time.monotonic()
    seen = _ask(client, context, 3, vocab_size, held)
    warm: list[PrefixSeen] = []
    if len(seen) == 3 and worth_a_gain(seen):
        warm = _ask(client, context, 2, vocab_size, held)
    seconds = round(time.monotonic() - began, 4)
    if held.stop.is_set() and (len(seen) < 3 or any(s.error for s in seen)):
        return _not_done(PREFIX_REUSE, sent, held, seconds)
    return msgspec.structs.replace(judge_prefix(seen, context, warm), sent=sent, seconds=seconds)


def _ask(client: Client, context: PrefixContext, times: int, vocab_size: int | None, held: Leash) -> list[PrefixSeen]:
    """The answers to one fresh prefix, one after the other; ends at the first that failed."""
    seen: list[PrefixSeen] = []
    prompts = prefix_prompts(context, secrets.randbits(48), vocab_size)
    while len(seen) < times and not held.stop.is_set():
        body = {
            "input_ids": next(prompts),
            "sampling_params": {"max_new_tokens": 4, "temperature": 0, "ignore_eos": True},
        }
        seen.append(prefix_seen(client.generate(body, cancel=held.stop)))
        if seen[-1].error:
            break
    return seen


def _not_done(name: str, sent: str, held: Leash, seconds: float) -> CheckResult:
    return CheckResult(name=name, verdict=Verdict.CANNOT_TELL, reason=held.why, sent=sent, seconds=round(seconds, 4))


def _name(value: Any) -> str | None:
    return str(value) if value else None
