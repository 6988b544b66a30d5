"""Judges the content of chat answers. Pure: what came in, a verdict with its reason out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tuner.checks.answers import ChatSeen, failure, shown
from tuner.checks.model import CheckResult, Verdict

#: What chat templates put around thoughts, calls and turns, and what no answer may show.
_TEMPLATE_TOKEN = re.compile(
    r"<\|[A-Za-z0-9_ ]{2,40}\|>"  # <|im_start|>, <|endoftext|>, <|eot_id|>, <|channel|>
    r"|<\uff5c[^<>]{2,40}\uff5c>"  # the wide bars of DeepSeek
    r"|</?(?:think|thinking|tool_call|tool_calls|tool_response|arg_key|arg_value)>"
    r"|</?(?:function|parameter)(?:=[^<>\n]{0,60})?>"
    r"|\[/?(?:TOOL_CALLS|TOOL_RESULTS|AVAILABLE_TOOLS|INST|THINK)\]"
    r"|\u25c1/?think\u25b7"
)
_THINK = re.compile(r"think", re.IGNORECASE)


class ChatContext(msgspec.Struct, frozen=True, kw_only=True):
    """How the answer was asked for: the parsers of the server (None: not set) and the tokens it was given."""

    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    max_tokens: int = 512


def template_tokens(text: str) -> tuple[str, ...]:
    """Template tokens in a text, each once, in the order they come."""
    return tuple(dict.fromkeys(shown(found, 40) for found in _TEMPLATE_TOKEN.findall(text)))


def is_thought(tokens: Sequence[str]) -> bool:
    """Whether all of these template tokens mark thinking."""
    return all(_THINK.search(token) for token in tokens)


def holds_number(text: str, number: int) -> bool:
    """Whether a text holds this number, on its own and not as part of a longer one."""
    return re.search(rf"(?<!\d){number}(?!\d)", text) is not None


def no_answer(name: str, seen: ChatSeen) -> CheckResult | None:
    """The result when there is nothing to judge, else None."""
    return result(name, seen, Verdict.FAIL, failure(seen.status, seen.error)) if seen.failed else None


def result(name: str, seen: ChatSeen, verdict: Verdict, reason: str) -> CheckResult:
    """A check's result with what came, clipped and plain."""
    details: dict[str, Any] = {"tokens": seen.tokens, "at_limit": seen.at_limit}
    return CheckResult(
        name=name, verdict=verdict, reason=reason, came=came(seen), seconds=round(seen.seconds, 4), details=details
    )


def came(seen: ChatSeen) -> str:
    """The answer in one line, its parts named."""
    parts = []
    if seen.reasoning.strip():
        parts.append(f"reasoning: {shown(seen.reasoning, 150)}")
    parts += [f"call: {shown(call.name, 40)}({shown(call.arguments, 150)})" for call in seen.calls[:3]]
    if seen.text.strip():
        parts.append(f"answer: {shown(seen.text, 250)}")
    if not parts and seen.error:
        parts.append(shown(seen.error, 250))
    return " | ".join(parts) or "nothing to see"
