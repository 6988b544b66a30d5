"""OpenAI's chat format: requests to prompts, tokens to messages and to streamed deltas."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tuner.sim.answers import Answer, Parsers, Piece, PieceKind, babble, chat_answer, cut, spoil
from tuner.sim.faults import Fault, Faults
from tuner.sim.requests import Request
from tuner.sim.tokens import chat_prompt, last_user_text


class BadRequest(Exception):
    """A body that is no chat request; the message is one sentence."""


class ChatBody(msgspec.Struct, kw_only=True):
    """The fields of a chat request that the stand-in looks at."""

    messages: list[dict[str, Any]]
    model: str = ""
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool = False
    stream_options: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None
    chat_template_kwargs: dict[str, Any] | None = None
    separate_reasoning: bool = True
    ignore_eos: bool = False
    rid: str | None = None


class ChatTurn(msgspec.Struct, kw_only=True):
    """A chat request made ready for the engine."""

    body: ChatBody
    prompt: str
    thinking: bool
    answer: Answer
    parsers: Parsers

    def compose(self, cached_tokens: int, faults: Faults, tokens: int = 0) -> list[Piece]:
        """The tokens of the answer; with ``ignore_eos`` it goes on to ``tokens``."""
        spoilt = spoil(self.answer, faults, cached_tokens, streamed=self.body.stream)
        made = cut(spoilt, self.parsers, thinking=self.thinking)
        more = max(0, tokens - len(made)) if self.body.ignore_eos else 0
        return made + babble(self.prompt.encode("utf-8", "surrogatepass"), more)


def read_chat(raw: bytes, parsers: Parsers, template: dict[str, Any], faults: Faults | None = None) -> ChatTurn:
    """A chat body to a turn. Raises BadRequest."""
    try:
        body = msgspec.json.decode(raw, type=ChatBody)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadRequest(f"The body is no chat request: {error}") from None
    if not body.messages:
        raise BadRequest("Messages cannot be empty.")
    kwargs = template | (body.chat_template_kwargs or {})
    thinks_anyway = faults is not None and faults.has(Fault.THINKS_ANYWAY)
    thinking = thinks_anyway or bool(kwargs.get("enable_thinking", True))
    tools = body.tools or []
    answered = bool(body.messages) and body.messages[-1].get("role") == "tool"
    return ChatTurn(
        body=body,
        prompt=chat_prompt(body.messages, tools, thinking=thinking),
        thinking=thinking,
        answer=chat_answer(
            last_user_text(body.messages),
            tools,
            thinking=thinking,
            tool_choice=body.tool_choice,
            answered_by_tool=answered,
            told=chat_prompt(body.messages, (), thinking=False),
        ),
        parsers=msgspec.structs.replace(parsers, reasoning=parsers.reasoning and body.separate_reasoning),
    )


def usage(request: Request, cache_report: bool) -> dict[str, Any]:
    """Token counts of a request; cached ones only with ``--enable-cache-report``."""
    output = len(request.output)
    return {
        "prompt_tokens": request.prompt_tokens,
        "total_tokens": request.prompt_tokens + output,
        "completion_tokens": output,
        "prompt_tokens_details": {"cached_tokens": request.cached_tokens} if cache_report else None,
        "reasoning_tokens": sum(1 for piece in request.output if piece.kind is PieceKind.REASONING),
    }


def _text(output: Sequence[Piece], kind: PieceKind) -> str:
    return "".join(piece.text for piece in output if piece.kind is kind)


def _call_id(request: Request, number: int) -> str:
    return f"call_{request.rid[:20]}{number:04d}"


def _calls(request: Request) -> list[dict[str, Any]]:
    numbers = sorted({p.call for p in request.output if p.kind is PieceKind.TOOL_NAME})
    return [
        {
            "id": _call_id(request, number),
            "index": number,
            "type": "function",
            "function": {
                "name": _text([p for p in request.output if p.call == number], PieceKind.TOOL_NAME),
                "arguments": _text([p for p in request.output if p.call == number], PieceKind.TOOL_ARGUMENTS),
            },
        }
        for number in numbers
    ]


def finish_reason(request: Request) -> str | None:
    """As OpenAI says it."""
    if request.finish_reason == "stop" and any(p.kind is PieceKind.TOOL_NAME for p in request.output):
        return "tool_calls"
    return request.finish_reason


def completion(request: Request, turn: ChatTurn, model: str, cache_report: bool) -> dict[str, Any]:
    """The whole answer, not streamed."""
    reasoning = _text(request.output, PieceKind.REASONING)
    calls = _calls(request)
    content = _text(request.output, PieceKind.CONTENT)
    return {
        "id": request.rid,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [
            {
                "index": 0,
                "message": {
                    "role": "assistant",
                    "content": None if calls and not content else content,
                    "reasoning_content": reasoning or None,
                    "tool_calls": calls or None,
                },
                "logprobs": None,
                "finish_reason": finish_reason(request),
                "matched_stop": None,
            }
        ],
        "usage": usage(request, cache_report),
        "metadata": {"weight_version": "default"},
    }


class ChatStream:
    """Turns tokens, as they come, into the chunks of a streamed answer."""

    def __init__(self, request: Request, model: str) -> None:
        self._request = request
        self._model = model
        self._sent = 0

    def _chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        return {
            "id": self._request.rid,
            "object": "chat.completion.chunk",
            "created": int(time.time()),
            "model": self._model,
            "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason, "matched_stop": None}],
            "usage": None,
        }

    def first(self) -> dict[str, Any]:
        """The chunk that opens the answer."""
        return self._chunk({"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None})

    def news(self) -> Iterator[dict[str, Any]]:
        """Chunks for the tokens made since the last call."""
        new = self._request.output[self._sent :]
        self._sent += len(new)
        for piece in new:
            if piece.kind is PieceKind.REASONING:
                yield self._chunk({"reasoning_content": piece.text})
            elif piece.kind is PieceKind.CONTENT:
                yield self._chunk({"content": piece.text})
            elif piece.kind is PieceKind.TOOL_NAME:
                yield self._call(piece, {"name": piece.text, "arguments": ""})
            elif piece.kind is PieceKind.TOOL_ARGUMENTS:
                yield self._call(piece, {"name": None, "arguments": piece.text})

    def _call(self, piece: Piece, function: dict[str, Any]) -> dict[str, Any]:
        named = function["name"] is not None
        call = {
            "id": _call_id(self._request, piece.call) if named else None,
            "index": piece.call,
            "type": "function",
            "function": function,
        }
        return self._chunk({"tool_calls": [call]})

    def last(self) -> dict[str, Any]:
        """The chunk that says why the answer ended."""
        return self._chunk({}, finish_reason(self._request))

    def usage_chunk(self, cache_report: bool) -> dict[str, Any]:
        """The chunk with token counts, for ``stream_options.include_usage``."""
        chunk = self._chunk({})
        chunk["choices"] = []
        chunk["usage"] = usage(self._request, cache_report)
        return chunk
