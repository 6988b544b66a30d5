"""What a prefix-cache hit must not change: a tool call, and an answer at temperature 0.

On hybrids a hit brings back a state as well as KV. A state of the wrong place, or one that came back broken from a host
cache, shows in nothing but the answer.
"""

from __future__ import annotations

import secrets
from typing import Any

import msgspec

from tuner.checks.answers import ChatSeen
from tuner.checks.bench import Bench, Stopwatch, not_done
from tuner.checks.content import came, no_answer, result
from tuner.checks.counters import CacheCounter
from tuner.checks.long_text import codes
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.prefix import too_short
from tuner.checks.tool_call import judge_tool_call, tool_call_request
from tuner.units import format_tokens

HOT_TOOL_CALL = "tool call on a cache hit"
SAME_ANSWER = "same answer cold and hot"

#: Room for the template and a slack in how many tokens a text has.
_MARGIN_TOKENS = 256
_SHORT_ANSWER = 48


def check_hot_tool_call(bench: Bench) -> CheckResult:
    """Asks for the tool twice behind one long text: cold, then with the text from the cache."""
    if skipped := _skipped(HOT_TOOL_CALL, bench):
        return skipped
    clock, counter = Stopwatch(), CacheCounter(bench.client)
    text, _, _ = codes(secrets.token_hex(4), _tokens(bench))
    bodies = [_tool_body(text, bench.chat.max_tokens) for _ in range(2)]
    sent = f"a tool and a text of about {format_tokens(_tokens(bench))} tokens, twice with another question"
    cold = bench.ask(bodies[0])
    counter.since()
    hot = cold if cold.failed else bench.ask(bodies[1])
    if bench.broken_off(cold, hot):
        return not_done(HOT_TOOL_CALL, sent, bench.held, clock.seconds)
    cached = hot.cached_tokens if hot.cached_tokens is not None else counter.since()
    first = judge_tool_call(cold, bench.chat, HOT_TOOL_CALL)
    second = judge_tool_call(hot, bench.chat, HOT_TOOL_CALL)
    verdict, reason = judge_hot_tool_call(first, second, cached)
    return msgspec.structs.replace(
        result(HOT_TOOL_CALL, hot, verdict, reason),
        sent=sent,
        seconds=clock.seconds,
        details={"cached_tokens": cached, "cold": str(first.verdict), "hot": str(second.verdict)},
    )


def judge_hot_tool_call(cold: CheckResult, hot: CheckResult, cached: int | None) -> tuple[Verdict, str]:
    """The verdict on two judged calls, the second behind ``cached`` cached tokens (None: not told). Pure."""
    if cold.verdict is not Verdict.PASS:
        return Verdict.CANNOT_TELL, f"The call does not come cold either: {cold.reason}"
    if cached == 0:
        return Verdict.CANNOT_TELL, "Nothing came from the cache the second time, so no hit was tried."
    if hot.verdict is not Verdict.PASS:
        behind = f"behind {format_tokens(cached)} cached tokens" if cached else "the second time"
        return hot.verdict, f"The call comes cold, but {behind} it does not: {hot.reason}"
    if cached is None:
        return Verdict.CANNOT_TELL, (
            "Both calls came, but nobody tells whether the second was a hit: set --enable-cache-report or "
            "--enable-metrics."
        )
    return Verdict.PASS, f"The same proper call came with {format_tokens(cached)} tokens from the cache."


def check_same_answer(bench: Bench) -> CheckResult:
    """Asks the same at temperature 0 behind one long text: cold, then twice hot."""
    if skipped := _skipped(SAME_ANSWER, bench):
        return skipped
    clock, counter = Stopwatch(), CacheCounter(bench.client)
    text, box, code = codes(secrets.token_hex(4), _tokens(bench))
    body = _recall_body(text, box)
    sent = f"a list of about {format_tokens(_tokens(bench))} tokens and a question on box {box}, three times the same"
    seen = [bench.ask(body)]
    counter.since()
    cached: int | None = None
    while len(seen) < 3 and not seen[-1].failed and not bench.held.stop.is_set():
        seen.append(bench.ask(body))
        if len(seen) == 2:
            counted = counter.since()
            cached = seen[1].cached_tokens if seen[1].cached_tokens is not None else counted
    if bench.broken_off(*seen):
        return not_done(SAME_ANSWER, sent, bench.held, clock.seconds)
    failed = next((no_answer(SAME_ANSWER, one) for one in seen if one.failed), None)
    if failed is not None:
        # A refused request says nothing of the cache; a dead server does not pass.
        gone = seen[-1].status is None or seen[-1].status >= 500
        verdict = Verdict.FAIL if gone else Verdict.CANNOT_TELL
        return msgspec.structs.replace(failed, verdict=verdict, sent=sent, seconds=clock.seconds)
    verdict, reason = judge_same_answer(seen, code, cached)
    return CheckResult(
        name=SAME_ANSWER,
        verdict=verdict,
        reason=reason,
        sent=sent,
        came=" || ".join(dict.fromkeys(came(one) for one in seen)),
        seconds=clock.seconds,
        details={"cached_tokens": cached, "right": [code in one.text for one in seen]},
    )


def judge_same_answer(seen: list[ChatSeen], code: str, cached: int | None) -> tuple[Verdict, str]:
    """The verdict on one cold and two hot answers to one question, ``cached`` tokens of it hot. Pure.

    Two hot answers that agree with each other and not with the cold one are the cache's doing. Where the hot ones
    differ too, the server is not deterministic, and only a lost fact tells anything.
    """
    cold, hot, again = (one.text.strip() for one in seen)
    if cached == 0:
        return Verdict.CANNOT_TELL, "Nothing came from the cache the second time, so nothing hot was compared."
    if code in cold and code not in hot and code not in again:
        return Verdict.FAIL, f"Cold it knew what the text says ({code}), from the cache it does not."
    if hot == again != cold:
        return Verdict.FAIL, "From the cache another answer comes than cold, at temperature 0, and again the same one."
    if not cold == hot == again:
        return Verdict.CANNOT_TELL, "Answers at temperature 0 differ from hit to hit too: the server is not repeatable."
    if code not in cold:
        return Verdict.CANNOT_TELL, (
            f"The answer is the same cold and hot, but wrong (no {code}): wrong weights or a weak model."
        )
    if cached is None:
        return Verdict.CANNOT_TELL, (
            "The same right answer came three times, but nobody tells whether it was a hit: set --enable-cache-report "
            "or --enable-metrics."
        )
    return Verdict.PASS, f"The same right answer came cold and with {format_tokens(cached)} tokens from the cache."


def _skipped(name: str, bench: Bench) -> CheckResult | None:
    if bench.held.stop.is_set():
        return not_done(name, "", bench.held, 0.0)
    if not bench.probe.cache_on:
        return CheckResult(
            name=name, verdict=Verdict.PASS, reason="off: the prefix cache is turned off, as asked; nothing is reused."
        )
    if too_short(bench.probe):
        return CheckResult(
            name=name,
            verdict=Verdict.CANNOT_TELL,
            reason="The pools leave no room for a text long enough to be reused.",
        )
    return None


def _tokens(bench: Bench) -> int:
    return max(_MARGIN_TOKENS, bench.probe.prefix_tokens - _MARGIN_TOKENS)


def _tool_body(text: str, max_tokens: int) -> dict[str, Any]:
    body = tool_call_request("", max_tokens)
    question = f"[{secrets.token_hex(4)}] What is the weather in Beijing?"
    body["messages"] = [{"role": "system", "content": text}, {"role": "user", "content": question}]
    return body


def _recall_body(text: str, box: str) -> dict[str, Any]:
    return {
        "messages": [
            {"role": "system", "content": text},
            {"role": "user", "content": f"What is the code of box {box}? Answer with the code only."},
        ],
        "chat_template_kwargs": {"enable_thinking": False},
        "max_tokens": _SHORT_ANSWER,
        "temperature": 0,
    }
