"""What every check works with."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from tuner.checks.answers import ChatSeen, Client, chat_seen
from tuner.checks.content import ChatContext
from tuner.checks.leash import Leash
from tuner.checks.model import CheckResult, Verdict
from tuner.checks.prefix import PrefixContext
from tuner.planner.model import Plan
from tuner.serverlog.model import BootFacts


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """A server under check. ``flags`` are the values in effect, by underscore name."""

    client: Client
    model: str
    chat: ChatContext
    probe: PrefixContext
    held: Leash
    facts: BootFacts | None = None
    plan: Plan | None = None
    flags: dict[str, object] = {}
    vocab_size: int | None = None

    def ask(self, body: dict[str, object], *, stream: bool = False) -> ChatSeen:
        """One chat answer as it is judged."""
        asked = {"model": self.model, **body}
        tokens = body.get("max_tokens")
        if stream:
            answer = self.client.chat(asked, True, cancel=self.held.stop)
        else:
            answer = self.client.chat(asked, cancel=self.held.stop)
        return chat_seen(answer, tokens if isinstance(tokens, int) else self.chat.max_tokens)

    def broken_off(self, *seen: ChatSeen) -> bool:
        """Whether the time or the operator ended a check before it had its answers."""
        return self.held.stop.is_set() and (not seen or any(one.failed for one in seen))


Check: TypeAlias = Callable[[Bench], CheckResult]


class Stopwatch:
    """Seconds since it was made."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds so far, with the digits that a check's time deserves."""
        return round(time.monotonic() - self._began, 4)


def not_done(name: str, sent: str, held: Leash, seconds: float) -> CheckResult:
    """The result of a check that was stopped: by the operator, or because the time was used up."""
    return CheckResult(name=name, verdict=Verdict.CANNOT_TELL, reason=held.why, sent=sent, seconds=round(seconds, 4))
