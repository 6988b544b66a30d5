"""What the rules look at: the facts of a start and the lines that may explain it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from tuner.doctor.traces import AFTERMATH, ends_in_error
from tuner.findings import Finding, FindingId, Severity
from tuner.planner.model import HEADROOM_GIB
from tuner.redact import redact_text
from tuner.serverlog.model import BootFacts, Phase
from tuner.serverlog.records import records
from tuner.text import plain

_EVIDENCE_WIDTH = 400
_ON = frozenset({"true", "1", "yes"})
_UP = (Phase.READY, Phase.STOPPING, Phase.STOPPED)


class Seen(NamedTuple):
    """A line with what a pattern found in it."""

    line: str
    match: re.Match[str]


class LogCase:
    """Facts and lines of one start.

    ``died``: it is known to have ended without being asked to. ``headroom_gib``: free VRAM wanted at ready.
    ``asked``: flags of the recipe, for what the log does not echo. ``card_gib``: memory of the whole card.
    ``counted_on_gib``: free memory before the weights that the start was planned with. ``ready_free_gib``: free memory
    at ready by the card's own reading.
    ``quiet_s``: seconds since the log grew, of a server that lives.
    """

    def __init__(
        self,
        facts: BootFacts,
        text_tail: Iterable[str],
        *,
        died: bool = False,
        headroom_gib: float = HEADROOM_GIB,
        asked: Mapping[str, Any] | None = None,
        card_gib: float | None = None,
        counted_on_gib: float | None = None,
        ready_free_gib: float | None = None,
        quiet_s: float | None = None,
    ) -> None:
        self.facts = facts
        self.headroom_gib = headroom_gib
        self.asked = asked or {}
        self.card_gib = card_gib
        self.counted_on_gib = counted_on_gib
        #: Free memory at ready: by the card where it was read, else by the log's summary.
        self.ready_free_gib = ready_free_gib if ready_free_gib is not None else facts.available_gib
        self.quiet_s = quiet_s
        tail = [record.text for line in text_tail for record in records(line)]
        self.tail = tail
        # What the reader kept comes first: a cause stands before its consequences, and a tail may have lost it.
        self.lines = tuple(dict.fromkeys((*facts.notable, *tail)))
        came_up = self.was_ready or facts.stop_asked
        self.died = died or facts.phase is Phase.DEAD or (not came_up and ends_in_error(tail))

    def find(self, pattern: re.Pattern[str], *, unless: re.Pattern[str] | None = None) -> Seen | None:
        """The first line that the pattern is found in, and ``unless`` is not."""
        for line in self.lines:
            if (match := pattern.search(line)) and not (unless and unless.search(line)):
                return Seen(line, match)
        return None

    def find_after(self, seen: Seen, pattern: re.Pattern[str], most: int = 3) -> Seen | None:
        """The first of the ``most`` lines behind ``seen`` that the pattern is found in: long lines arrive wrapped."""
        if seen.line not in self.tail:
            return None
        at = self.tail.index(seen.line)
        found = ((line, pattern.search(line)) for line in self.tail[at + 1 : at + 1 + most])
        return next((Seen(line, match) for line, match in found if match), None)

    def argument(self, name: str) -> str | None:
        """Value that the server echoed for a flag, else the asked one; None when unset or not known."""
        echoed = self.facts.server_args.get(name)
        if echoed is not None or self.facts.server_args:
            return echoed
        asked = self.asked.get(name)
        return None if asked is None or asked == "" else str(asked)

    def number(self, name: str) -> float | None:
        """``argument`` as a number."""
        return as_number(self.argument(name))

    def on(self, name: str) -> bool:
        """Whether a switch was echoed, or asked, as on."""
        return (self.argument(name) or "").lower() in _ON

    @property
    def flags_known(self) -> bool:
        """Whether the log echoes its flags, or a recipe tells them."""
        return bool(self.facts.server_args or self.asked)

    @property
    def reached(self) -> Phase:
        """How far the start had come."""
        return self.facts.reached

    @property
    def was_ready(self) -> bool:
        """Whether the server came up, whatever became of it."""
        return self.facts.reached in _UP

    @property
    def free_gib(self) -> float | None:
        """The last free memory that the log tells, GiB."""
        facts = self.facts
        candidates = (
            facts.available_gib,
            facts.free_before_graphs_gib,
            facts.free_after_draft_pools_gib,
            facts.free_after_pools_gib,
            facts.free_after_gib,
            facts.free_before_gib,
        )
        return next((x for x in candidates if x is not None), None)


def finding(
    finding_id: FindingId,
    severity: Severity,
    title: str,
    *,
    evidence: Iterable[str] = (),
    remedy: str,
    flags: Mapping[str, Any] | None = None,
) -> Finding:
    """A finding whose evidence is safe to show: no escape sequences, no secrets, not endless."""
    return Finding(
        id=finding_id,
        severity=severity,
        title=title,
        evidence=tuple(_shown(line) for line in evidence if line.strip()),
        remedy=remedy,
        flags=dict(flags or {}),
    )


def as_number(value: Any) -> float | None:
    """A number from a flag as asked or echoed; None for anything else."""
    if isinstance(value, bool) or value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _shown(line: str) -> str:
    text = redact_text(plain(line)).strip()
    return text if len(text) <= _EVIDENCE_WIDTH else text[: _EVIDENCE_WIDTH - 1] + "…"


__all__ = ["AFTERMATH", "LogCase", "Seen", "as_number", "finding"]
