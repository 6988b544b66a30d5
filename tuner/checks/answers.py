"""What the checks need of a client, and one answer as they judge it."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import msgspec

from tuner.redact import redact_text
from tuner.text import clip, plain

#: Cells of an answer that are kept with a result.
_CAME_WIDTH = 400


class GenerateAnswer(Protocol):
    """Answer of ``/generate``. ``status`` is None when no HTTP answer came; ``error`` is then one sentence."""

    @property
    def status(self) -> int | None: ...
    @property
    def ttft_s(self) -> float | None: ...
    @property
    def cached_tokens(self) -> int | None: ...
    @property
    def total_s(self) -> float: ...
    @property
    def usage(self) -> Mapping[str, Any]: ...
    @property
    def meta(self) -> Mapping[str, Any]: ...
    @property
    def error(self) -> str | None: ...


class ChatAnswer(Protocol):
    """Answer of ``/v1/chat/completions``; ``tool_calls`` and ``usage`` as OpenAI's JSON has them."""

    @property
    def status(self) -> int | None: ...
    @property
    def text(self) -> str | None: ...
    @property
    def reasoning(self) -> str | None: ...
    @property
    def tool_calls(self) -> Sequence[Mapping[str, Any]] | None: ...
    @property
    def usage(self) -> Mapping[str, Any] | None: ...
    @property
    def finish_reason(self) -> str | None: ...
    @property
    def cached_tokens(self) -> int | None: ...
    @property
    def total_s(self) -> float: ...
    @property
    def error(self) -> str | None: ...


class Client(Protocol):
    """The part of ``tuner.probes.http.ServerClient`` that checks use. Neither method raises on a dead server."""

    def generate(self, body: dict[str, Any], *, cancel: threading.Event | None = None) -> GenerateAnswer: ...
    def chat(
        self, body: dict[str, Any], stream: bool = False, *, cancel: threading.Event | None = None
    ) -> ChatAnswer: ...


class Call(msgspec.Struct, frozen=True):
    """One tool call: ``arguments`` is JSON text, as it came."""

    name: str
    arguments: str


class ChatSeen(msgspec.Struct, frozen=True, kw_only=True):
    """A chat answer as it is judged. ``at_limit``: it used up all tokens it was given."""

    status: int | None
    text: str = ""
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    tokens: int | None = None
    at_limit: bool = False
    error: str = ""
    seconds: float = 0.0
    #: Prompt tokens that came from the cache; None where the server does not tell.
    cached_tokens: int | None = None

    @property
    def failed(self) -> bool:
        """Whether there is no answer to judge."""
        return self.status is None or self.status >= 400 or bool(self.error)


def chat_seen(answer: ChatAnswer, max_tokens: int) -> ChatSeen:
    """What a client's answer to a request with ``max_tokens`` says."""
    used = (answer.usage or {}).get("completion_tokens")
    tokens = used if isinstance(used, int) else None
    return ChatSeen(
        status=answer.status,
        text=answer.text or "",
        reasoning=answer.reasoning or "",
        calls=tuple(call_of(call) for call in answer.tool_calls or ()),
        tokens=tokens,
        at_limit=answer.finish_reason == "length" or (tokens is not None and tokens >= max_tokens),
        error=answer.error or "",
        seconds=answer.total_s,
        cached_tokens=answer.cached_tokens,
    )


def call_of(call: Mapping[str, Any]) -> Call:
    """A tool call from OpenAI's JSON; what is missing or of another type is empty."""
    function = call.get("function")
    parts = function if isinstance(function, Mapping) else {}
    name, arguments = parts.get("name"), parts.get("arguments")
    return Call(name if isinstance(name, str) else "", arguments if isinstance(arguments, str) else "")


def shown(text: str, cells: int = _CAME_WIDTH) -> str:
    """Text of a model or server in one line, fit for a terminal, a file and a table."""
    return clip(redact_text(" ".join(plain(text).split())), cells)


def failure(status: int | None, error: str) -> str:
    """One sentence for an answer that is none."""
    if error:
        return shown(error, 300)
    return "The server did not answer." if status is None else f"The server answered with status {status}."
