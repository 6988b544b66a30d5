"""What the stand-in says: sensible, short, the same for the same prompt, and in the prompt's language."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any
from zlib import crc32

import msgspec

from tuner.sim.faults import Fault, Faults
from tuner.sim.tokens import pieces


class PieceKind(StrEnum):
    """What a token of an answer belongs to."""

    REASONING = "reasoning"
    CONTENT = "content"
    #: Marks that a parser swallows and that come as text when there is none.
    MARK = "mark"
    TOOL_NAME = "tool-name"
    TOOL_ARGUMENTS = "tool-arguments"


class Piece(msgspec.Struct, frozen=True):
    """One token of an answer. ``call`` numbers tool calls from 0."""

    text: str
    kind: PieceKind
    call: int = 0


class ToolCall(msgspec.Struct, frozen=True):
    """A call with its arguments as JSON text."""

    name: str
    arguments: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer before it is cut into tokens."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[ToolCall, ...] = ()


class Parsers(msgspec.Struct, frozen=True):
    """Which parsers the server runs: without one, marks come as text."""

    reasoning: bool
    tools: bool


_WORDS = (
    "the", "pool", "holds", "states", "and", "tokens", "of", "each", "request", "in", "turn", "while", "memory",
    "stays", "free", "for", "longer", "inputs", "then", "another", "prefix", "is", "reused", "from", "cache",
)  # fmt: skip
_OPERATIONS = {"+": "plus", "-": "minus", "−": "minus", "*": "times", "x": "times", "×": "times", "·": "times"}
_ARITHMETIC = re.compile(r"(\d{1,9})\s*([-+*x×·−])\s*(\d{1,9})")
_SPELLED = re.compile(r"(\d{1,9})\s+(plus|minus|times)\s+(\d{1,9})", re.IGNORECASE)
_ECHO = re.compile(
    r"(?:reply|answer|respond|say|repeat)\b[^.\n]{0,40}?(?:\bword\b|\bwith\b|\bexactly\b|:)\s*(?:only\s*|just\s*)?"
    r"(?:the\s+word\s*)?[:\s]*[\"'“]?([\w-]{1,40})",
    re.IGNORECASE,
)
_ECHO_ZH = re.compile(r"(?:回答|回复|说|重复)[^。\n]{0,12}[:：「“\"']\s*([^」”\"'。\n]{1,40})")
_RECALL = re.compile(r"code of box (\w{1,20})\?", re.IGNORECASE)
_HAN = re.compile(r"[\u4e00-\u9fff]")
_SAMPLES = {"integer": 3, "number": 21.5, "boolean": True, "null": None}


def is_chinese(text: str) -> bool:
    """Whether an answer should be in Chinese."""
    return len(_HAN.findall(text)) * 4 > len(text.strip())


def _result(text: str) -> str | None:
    found = _ARITHMETIC.search(text)
    words = _SPELLED.search(text)
    if found:
        left, sign, right = int(found[1]), _OPERATIONS[found[2]], int(found[3])
    elif words:
        left, sign, right = int(words[1]), words[2].lower(), int(words[3])
    else:
        return None
    return str({"plus": left + right, "minus": left - right, "times": left * right}[sign])


def _recalled(question: str, told: str) -> str | None:
    """What earlier messages said of the thing asked for."""
    asked = _RECALL.search(question)
    found = re.search(rf"code of box {asked[1]} is (\w{{1,20}})", told, re.IGNORECASE) if asked else None
    return found[1] if found else None


def _plain_content(question: str, told: str) -> str:
    chinese = is_chinese(question)
    recalled = _recalled(question, told)
    if recalled is not None:
        return f"The code is {recalled}."
    result = _result(question)
    if result is not None:
        return f"答案是 {result}。" if chinese else f"The answer is {result}."
    echoed = _ECHO_ZH.search(question) or _ECHO.search(question)
    if echoed:
        return echoed[1]
    if "capital of france" in question.lower() or "法国的首都" in question:
        return "巴黎。" if chinese else "Paris."
    if chinese:
        return "这是模拟服务器的回答:两个显存池都可用,请求可以继续。"
    return "This is the stand-in's answer: both pools have room, and the request can go on."


def _value(schema: Any, question: str) -> Any:
    if not isinstance(schema, Mapping):
        return "value"
    if schema.get("enum"):
        return schema["enum"][0]
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type", "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        return _object(schema, question)
    if kind == "array":
        return [_value(schema.get("items", {}), question)]
    if kind in ("integer", "number"):
        stated = re.search(r"\d+", question)
        low = schema.get("minimum")
        number = int(stated[0]) if stated else _SAMPLES[kind]
        return max(number, low) if isinstance(low, int | float) and isinstance(number, int | float) else number
    if kind in _SAMPLES:
        return _SAMPLES[kind]
    name = re.search(r"\b(?:in|for|of|to)\s+([A-Z][\w-]+)", question) or re.search(r"([\u4e00-\u9fff]{2})", question)
    return name[1] if name else "Berlin"


def _object(schema: Mapping[str, Any], question: str) -> dict[str, Any]:
    properties = schema.get("properties") or {}
    names = schema.get("required") or list(properties)
    return {name: _value(properties.get(name, {}), question) for name in names}


def tool_call(tools: Sequence[Any], question: str, wanted: str | None = None) -> ToolCall | None:
    """A call of the wanted tool (or the first) whose arguments fit its schema."""
    functions = [tool.get("function", tool) for tool in tools if isinstance(tool, Mapping)]
    functions = [f for f in functions if isinstance(f, Mapping) and f.get("name")]
    if not functions:
        return None
    chosen = next((f for f in functions if f["name"] == wanted), functions[0])
    arguments = _object(chosen.get("parameters") or {}, question)
    return ToolCall(str(chosen["name"]), json.dumps(arguments, ensure_ascii=False))


def chat_answer(
    question: str,
    tools: Sequence[Any],
    *,
    thinking: bool,
    tool_choice: Any = None,
    answered_by_tool: bool = False,
    told: str = "",
) -> Answer:
    """The answer to a chat request; ``told`` is all that the conversation says."""
    reasoning = ""
    if thinking:
        reasoning = (
            "用户在问一个简单的问题,我先想一想再回答。"
            if is_chinese(question)
            else "The user asks something short. I think about it once and answer directly."
        )
    wanted = None
    if isinstance(tool_choice, Mapping):
        wanted = (tool_choice.get("function") or {}).get("name")
    if tools and tool_choice != "none" and not answered_by_tool:
        call = tool_call(tools, question, wanted)
        if call is not None:
            return Answer(reasoning=reasoning, calls=(call,))
    return Answer(reasoning=reasoning, content=_plain_content(question, told))


def spoil(answer: Answer, faults: Faults, cached_tokens: int, *, streamed: bool = False) -> Answer:
    """The answer with the faults that are switched on."""
    if faults.has(Fault.CACHE_WRONG) and cached_tokens and answer.calls:
        answer = msgspec.structs.replace(answer, calls=(), content="As I said about the other document, see above.")
    if faults.has(Fault.HOT_ANSWER_DIFFERS) and cached_tokens and answer.content:
        answer = msgspec.structs.replace(answer, content="On second thought, no. " + answer.content)
    if faults.has(Fault.REASONING_LEAKS) and answer.reasoning:
        answer = msgspec.structs.replace(
            answer, reasoning="", content=f"{answer.reasoning}\n</think>\n\n{answer.content}"
        )
    if faults.has(Fault.TEMPLATE_LEAKS):
        answer = msgspec.structs.replace(answer, content=f"{answer.content}<|im_end|>\n<|im_start|>assistant")
    if faults.text(Fault.BROKEN_TOOL_ARGS) in ("", "streamed" if streamed else "whole"):
        broken = tuple(ToolCall(call.name, call.arguments[:-1] + ", }") for call in answer.calls)
        answer = msgspec.structs.replace(answer, calls=broken)
    if faults.has(Fault.EMPTY_ANSWER):
        answer = msgspec.structs.replace(answer, content="")
    return answer


def _pieces(text: str, kind: PieceKind, call: int = 0) -> list[Piece]:
    return [Piece(token, kind, call) for token in pieces(text)]


def cut(answer: Answer, parsers: Parsers, *, thinking: bool) -> list[Piece]:
    """The tokens of an answer, marks of the template between its parts."""
    kind = PieceKind.REASONING if parsers.reasoning else PieceKind.CONTENT
    cut_up: list[Piece] = []
    if thinking:
        cut_up += _pieces(answer.reasoning, kind)
        cut_up += _pieces("\n</think>\n\n", PieceKind.MARK if parsers.reasoning else PieceKind.CONTENT)
    cut_up += _pieces(answer.content, PieceKind.CONTENT)
    for number, call in enumerate(answer.calls):
        if not parsers.tools:
            cut_up += _pieces(_raw_call(call), PieceKind.CONTENT)
            continue
        cut_up += _pieces("<tool_call>", PieceKind.MARK, number)
        cut_up.append(Piece(call.name, PieceKind.TOOL_NAME, number))
        cut_up += _pieces(call.arguments, PieceKind.TOOL_ARGUMENTS, number)
        cut_up += _pieces("</tool_call>", PieceKind.MARK, number)
    return cut_up


def _raw_call(call: ToolCall) -> str:
    return f'<tool_call>\n{{"name": "{call.name}", "arguments": {call.arguments}}}\n</tool_call>'


def babble(seed: bytes, count: int) -> list[Piece]:
    """``count`` tokens for ``/generate``, which knows no conversation: the same for the same prompt."""
    words = random.Random(crc32(seed))
    return [Piece(" " + words.choice(_WORDS), PieceKind.CONTENT) for _ in range(count)]
