"""Puts answers of SGLang's generation endpoints together, whole or from the events of a stream. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tuner.probes.answers import ChatAnswer, GenerateAnswer

#: Characters of an answer that are put together: ten times the longest context. More is a stream that never ends.
LONGEST = 8_000_000
#: No count of tokens is as large, and no larger whole number is exact everywhere.
_MOST = 2**53
#: The stream had an error event; the text is the server's own.
_STREAM_ERROR = "The server broke off its answer: {}"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST else None


def _counts(usage: Mapping[str, Any]) -> dict[str, Any]:
    """``usage`` without numbers that are no counts."""
    return {name: value for name, value in usage.items() if isinstance(value, Mapping) or _count(value) is not None}


def error_text(body: object) -> str:
    """The server's own words in an error body: OpenAI's ``error.message``, ``message``, or FastAPI's ``detail``."""
    if isinstance(body, str):
        return body
    answer = _mapping(body)
    error = answer.get("error")
    for candidate in (_mapping(error).get("message"), error, answer.get("message"), answer.get("detail")):
        if isinstance(candidate, str) and candidate:
            return candidate
    return ""


def finish_name(value: object) -> str | None:
    """``finish_reason`` as a word: "/generate" gives ``{"type": "length", ...}``, chat a string."""
    kind = value.get("type") if isinstance(value, Mapping) else value
    return kind if isinstance(kind, str) else None


def _check_length(characters: int) -> None:
    if characters > LONGEST:
        raise ValueError("answer too long")


class GenerateAssembly:
    """An answer of ``/generate``. Its stream repeats the whole text in each event unless told to send pieces only."""

    def __init__(self, on_token: Callable[[str], None] | None = None) -> None:
        self._on_token = on_token
        self._text = ""
        self._tokens = 0
        self._times: list[float] = []
        self._meta: dict[str, Any] = {}
        self.error = ""

    def event(self, body: object, at_s: float) -> None:
        """Takes one event, or the whole answer when nothing was streamed."""
        if isinstance(body, list) and body:
            body = body[0]
        answer = _mapping(body)
        if answer.get("error"):
            self.error = _STREAM_ERROR.format(error_text(answer))
            return
        meta = _mapping(answer.get("meta_info"))
        text = _string(answer.get("text"))
        ids = answer.get("output_ids")
        total = _count(meta.get("completion_tokens"))
        # With as many ids as tokens so far, the event holds everything; otherwise (incremental streaming) a piece.
        whole = len(ids) == total if isinstance(ids, list) and total is not None else text.startswith(self._text)
        piece = text[len(self._text) :] if whole else text
        self._text = text if whole else self._text + text
        _check_length(len(self._text))
        self._meta = dict(meta) or self._meta
        if piece or (total or 0) > self._tokens:
            self._times.append(at_s)
            if self._on_token is not None:
                self._on_token(piece)
        self._tokens = max(self._tokens, total or 0)

    def answer(self, status: int | None, total_s: float, error: str, *, streamed: bool) -> GenerateAnswer:
        """The answer so far; ``error`` goes before one found in the stream."""
        usage: dict[str, Any] = {
            name: count
            for name in ("prompt_tokens", "completion_tokens")
            if (count := _count(self._meta.get(name))) is not None
        }
        return GenerateAnswer(
            status=status,
            ttft_s=self._times[0] if self._times and streamed else None,
            total_s=total_s,
            token_times=tuple(self._times) if streamed else (),
            text=self._text,
            finish_reason=finish_name(self._meta.get("finish_reason")),
            usage=usage,
            cached_tokens=_count(self._meta.get("cached_tokens")),
            meta=self._meta,
            error=error or self.error,
        )


class ChatAssembly:
    """An answer of ``/v1/chat/completions``: deltas of reasoning, content and tool calls put together."""

    def __init__(self, on_delta: Callable[[str, str], None] | None = None) -> None:
        self._on_delta = on_delta
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._times: list[float] = []
        self._finish: str | None = None
        self._usage: dict[str, Any] = {}
        self._length = 0
        self.error = ""

    def event(self, body: object, at_s: float) -> None:
        """Takes one chunk of a stream, or the whole answer when nothing was streamed."""
        chunk = _mapping(body)
        if chunk.get("error"):
            self.error = _STREAM_ERROR.format(error_text(chunk))
            return
        usage = _mapping(chunk.get("usage"))
        if usage:
            self._usage = _counts(usage)
        choices = chunk.get("choices")
        choice = _mapping(choices[0]) if isinstance(choices, list) and choices else {}
        self._finish = finish_name(choice.get("finish_reason")) or self._finish
        message = _mapping(choice.get("delta")) or _mapping(choice.get("message"))
        news = self._take("reasoning", self._reasoning, message, ("reasoning_content", "reasoning"))
        news = self._take("content", self._content, message, ("content",)) or news
        news = self._take_calls(message.get("tool_calls")) or news
        if news:
            self._times.append(at_s)

    def _take(self, kind: str, into: list[str], message: Mapping[str, Any], names: tuple[str, ...]) -> bool:
        piece = next((text for name in names if (text := _string(message.get(name)))), "")
        if not piece:
            return False
        into.append(piece)
        self._grow(piece)
        if self._on_delta is not None:
            self._on_delta(kind, piece)
        return True

    def _take_calls(self, calls: object) -> bool:
        if not isinstance(calls, list):
            return False
        for position, item in enumerate(calls):
            call = _mapping(item)
            index = _count(call.get("index"))
            known = self._calls.setdefault(
                position if index is None else index,
                {"id": None, "type": "function", "function": {"name": "", "arguments": ""}},
            )
            known["id"] = call.get("id") or known["id"]
            function = _mapping(call.get("function"))
            # An empty call takes room too.
            self._grow(" ", _string(function.get("name")), _string(function.get("arguments")))
            known["function"]["name"] += _string(function.get("name"))
            known["function"]["arguments"] += _string(function.get("arguments"))
            if self._on_delta is not None:
                self._on_delta("tool_call", _string(function.get("arguments")))
        return bool(calls)

    def _grow(self, *pieces: str) -> None:
        self._length += sum(map(len, pieces))
        _check_length(self._length)

    def answer(self, status: int | None, total_s: float, error: str, *, streamed: bool) -> ChatAnswer:
        """The answer so far; ``error`` goes before one found in the stream."""
        details = _mapping(self._usage.get("prompt_tokens_details"))
        return ChatAnswer(
            status=status,
            ttft_s=self._times[0] if self._times and streamed else None,
            total_s=total_s,
            token_times=tuple(self._times) if streamed else (),
            text="".join(self._content),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(self._calls[index] for index in sorted(self._calls)),
            finish_reason=self._finish,
            usage=self._usage,
            cached_tokens=_count(details.get("cached_tokens")),
            error=error or self.error,
        )
