"""The tool call: a question that only the tool can answer, and whether a proper call came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tuner.checks.answers import Call, ChatSeen, shown
from tuner.checks.content import ChatContext, is_thought, no_answer, result, template_tokens
from tuner.checks.model import CheckResult, Verdict

TOOL_CALL = "tool call"
STREAMED_TOOL_CALL = "streamed tool call"

_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Name of the city"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
    },
    "required": ["city"],
}
_NAME = "get_weather"
_CITY = ("beijing", "peking", "北京")
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "object": (dict,),
    "array": (list,),
}


def tool_call_request(salt: str, max_tokens: int) -> dict[str, Any]:
    """A question with one tool at hand, left to the model as clients do (``tool_choice`` auto)."""
    return {
        "messages": [{"role": "user", "content": f"[check {salt}] What is the weather in Beijing?"}],
        "tools": [
            {
                "type": "function",
                # The salt stands near the start of every template's prompt: nothing of an earlier check is reused.
                "function": {
                    "name": _NAME,
                    "description": f"[{salt}] Current weather of a city",
                    "parameters": _SCHEMA,
                },
            }
        ],
        "max_tokens": max_tokens,
        "temperature": 0,
    }


def judge_tool_call(seen: ChatSeen, context: ChatContext, name: str = TOOL_CALL) -> CheckResult:
    """One call of the tool at hand, with arguments that fit its schema and the question."""
    if missing := no_answer(name, seen):
        return missing
    verdict, reason = _judged(seen, context)
    return result(name, seen, verdict, reason)


def judge_streamed_tool_call(seen: ChatSeen, context: ChatContext) -> CheckResult:
    """The same of a call whose pieces came in a stream, put together by their index."""
    return judge_tool_call(seen, context, STREAMED_TOOL_CALL)


def argument_fault(arguments: str, schema: Mapping[str, Any]) -> str:
    """What is wrong with a call's arguments, as one sentence; empty when nothing is.

    Looks at required keys, types and enumerations of the top level, which is all that the tool used here has.
    """
    try:
        values = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, UnicodeError):
        return f"The arguments are no JSON: {shown(arguments, 80) or 'nothing'}."
    if not isinstance(values, dict):
        return f"The arguments are no JSON object: {shown(arguments, 80)}."
    for key in schema.get("required", ()):
        if key not in values:
            return f'The argument "{key}" is missing.'
    for key, value in values.items():
        wanted = schema.get("properties", {}).get(key, {})
        if not _fits(value, wanted.get("type")):
            return f'The argument "{key}" is no {wanted["type"]}: {shown(repr(value), 80)}.'
        if "enum" in wanted and value not in wanted["enum"]:
            return f'The argument "{key}" is none of {", ".join(wanted["enum"])}: {shown(repr(value), 80)}.'
    return ""


def _judged(seen: ChatSeen, context: ChatContext) -> tuple[Verdict, str]:
    parser = context.tool_call_parser
    leaked = template_tokens(seen.text)
    if leaked and not is_thought(leaked) and not seen.calls:
        if parser is None:
            return Verdict.CANNOT_TELL, f"The call stayed text ({leaked[0]}): set --tool-call-parser."
        return Verdict.FAIL, (
            f"Template tokens are left in the answer ({leaked[0]}): --tool-call-parser {parser} did not read the call."
        )
    # Thoughts that leak are the thinking check's to tell: here it is the call that counts.
    if leaked and not is_thought(leaked):
        return Verdict.FAIL, f"Template tokens are left beside the call: {', '.join(leaked[:4])}."
    if leaked := template_tokens(seen.reasoning):
        return Verdict.FAIL, f"Template tokens are left in the reasoning: {', '.join(leaked[:4])}."
    if not seen.calls:
        return _no_call(seen, context)
    faults = [fault for call in seen.calls if (fault := _fault(call))]
    if faults:
        return Verdict.FAIL, faults[0]
    return Verdict.PASS, f"{_NAME} was called with arguments that fit its schema."


def _no_call(seen: ChatSeen, context: ChatContext) -> tuple[Verdict, str]:
    if context.tool_call_parser is None:
        return Verdict.CANNOT_TELL, "No call came, and --tool-call-parser is not set."
    if seen.at_limit and seen.reasoning.strip() and not seen.text.strip():
        return Verdict.CANNOT_TELL, f"It was still thinking at the limit of {context.max_tokens} tokens."
    if seen.text.strip():
        return Verdict.FAIL, "It answered in words instead of calling the tool."
    return Verdict.FAIL, "Neither a call nor an answer came."


def _fault(call: Call) -> str:
    if call.name != _NAME:
        return f"It called {shown(call.name, 40) or 'a tool without a name'}, which it was not offered."
    if fault := argument_fault(call.arguments, _SCHEMA):
        return fault
    city = str(msgspec.json.decode(call.arguments)["city"])
    if not any(name in city.casefold() for name in _CITY):
        return f"It was asked for Beijing and called for {shown(city, 40) or 'nothing'}."
    return ""


def _fits(value: Any, kind: str | None) -> bool:
    if kind is None or kind not in _TYPES:
        return True
    if isinstance(value, bool) and kind != "boolean":
        return False
    return isinstance(value, _TYPES[kind])
