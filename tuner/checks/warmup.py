"""Requests that nobody scores: the first ones after a start compile for a minute or more (83 s on a 27B)."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from tuner.checks.answers import Client, failure
from tuner.checks.leash import leash
from tuner.checks.thinking import non_thinking_request, thinking_request
from tuner.checks.tool_call import tool_call_request
from tuner.units import format_seconds

_MAX_TOKENS = 16
_BUDGET_S = 600.0


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """How a warm-up went: seconds of each answered request, and one sentence when it ended early."""

    seconds: tuple[float, ...] = ()
    error: str = ""


def warm_up(
    client: Client,
    *,
    model: str,
    on_progress: Callable[[str], None] = lambda _: None,
    cancel: threading.Event | None = None,
    budget_s: float = _BUDGET_S,
) -> WarmUp:
    """Sends one short request of each kind that is checked later, with other prompts, and scores none.

    Ends early when the server does not answer, at ``cancel`` or after ``budget_s`` seconds; never raises for these.
    """
    kinds = (
        ("with thinking", thinking_request),
        ("without thinking", non_thinking_request),
        ("with a tool", tool_call_request),
    )
    seconds: list[float] = []
    with leash(cancel or threading.Event(), budget_s) as held:
        for number, (kind, request) in enumerate(kinds, start=1):
            on_progress(_line(number, len(kinds), kind, seconds))
            body: dict[str, Any] = {"model": model, **request(f"warm-up {secrets.token_hex(4)}", _MAX_TOKENS)}
            answer = client.chat(body, cancel=held.stop)
            if held.stop.is_set():
                return WarmUp(seconds=tuple(seconds), error=held.why)
            if answer.status is None:
                return WarmUp(seconds=tuple(seconds), error=failure(answer.status, answer.error or ""))
            seconds.append(answer.total_s)
    return WarmUp(seconds=tuple(seconds))


def _line(number: int, of: int, kind: str, seconds: list[float]) -> str:
    if not seconds:
        return f"First answer {number} of {of}, {kind}: after a start it can take more than a minute."
    return f"First answer {number} of {of}, {kind}; the one before took {format_seconds(seconds[-1])}."
