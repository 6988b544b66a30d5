"""What a generation through the server gave."""

from __future__ import annotations

from typing import Any

import msgspec


class GenerateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``/generate``. Times are seconds from sending the request; None: it never came.

    ``error`` is one sentence, empty when all went well; ``text`` is as the model wrote it, escape sequences and all.
    """

    status: int | None = None
    ttft_s: float | None = None
    total_s: float = 0.0
    #: When each event with new tokens came.
    token_times: tuple[float, ...] = ()
    text: str = ""
    finish_reason: str | None = None
    usage: dict[str, Any] = {}
    cached_tokens: int | None = None
    #: ``meta_info`` of the last event.
    meta: dict[str, Any] = {}
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether a whole answer came."""
        return not self.error and self.status == 200


class ChatAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``/v1/chat/completions``; fields as in ``GenerateAnswer``.

    ``ttft_s`` is the first token of reasoning, content or a tool call; None without streaming. ``tool_calls`` are in
    OpenAI's form, arguments still as text: ``{"id", "type", "function": {"name", "arguments"}}``.
    """

    status: int | None = None
    ttft_s: float | None = None
    total_s: float = 0.0
    token_times: tuple[float, ...] = ()
    text: str = ""
    reasoning: str = ""
    tool_calls: tuple[dict[str, Any], ...] = ()
    finish_reason: str | None = None
    usage: dict[str, Any] = {}
    #: Needs ``--enable-cache-report``; None when the server does not report it.
    cached_tokens: int | None = None
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether a whole answer came."""
        return not self.error and self.status == 200
