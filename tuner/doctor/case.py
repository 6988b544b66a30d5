"""What the rules look at: the facts of a start and the lines that may explain it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from tuner.findings import Finding, FindingId, Severity
from tuner.planner.model import HEADROOM_GIB
from tuner.redact import redact_text
from tuner.serverlog import records
from tuner.serverlog.model import BootFacts, Phase
from tuner.text import plain

_EVIDENCE_WIDTH = 400
_ON = frozenset({"true", "1", "yes"})

#: Lines that come after any death, or mean nothing: never the evidence of an unknown one.
AFTERMATH = re.compile(
    r"kill_process_tree called|[Rr]eceived sigquit|SIGQUIT received|Sleeping \d+ seconds before crash|"
    r"No live scheduler processes|destroy_process_group\(\)|^\s*\^+\s*$|^\s*File \"|^Traceback|"
    r"The above exception was the direct cause|During handling of the above|"
    r"INFO:\s|Ignore import error when loading|Fail to set RLIMIT_NOFILE|UserWarning|warnings\.warn|"
    r"TokenizersBackend after retries|Setup Custom allreduce failed|Using default .* kernel config"
)


class Seen(NamedTuple):
    """A line with what a pattern found in it."""

    line: str
    match: re.Match[str]


class LogCase:
    """Facts and lines of one start. ``died``: it ended without being asked to; ``headroom_gib``: free VRAM wanted."""

    def __init__(
        self, facts: BootFacts, text_tail: Iterable[str], *, died: bool, headroom_gib: float = HEADROOM_GIB
    ) -> None:
        self.facts = facts
        self.headroom_gib = headroom_gib
        self.died = died
        tail = [record.text for line in text_tail for record in records(line)]
        self.tail = tail
        # What the reader kept comes first: a cause stands before its consequences, and a tail may have lost it.
        self.lines = tuple(dict.fromkeys((*facts.notable, *tail)))

    def find(self, pattern: re.Pattern[str]) -> Seen | None:
        """The first line that the pattern is found in."""
        for line in self.lines:
            if match := pattern.search(line):
                return Seen(line, match)
        return None

    def argument(self, name: str) -> str | None:
        """Value that the server echoed for a flag; None when unset or not known."""
        return self.facts.server_args.get(name)

    def number(self, name: str) -> float | None:
        """``argument`` as a number."""
        return as_number(self.argument(name))

    def on(self, name: str) -> bool:
        """Whether a switch was echoed as on."""
        return (self.argument(name) or "").lower() in _ON

    @property
    def reached(self) -> Phase:
        """How far the start had come."""
        return self.facts.reached

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
    flags: dict[str, Any] | None = None,
) -> Finding:
    """A finding whose evidence is safe to show: no escape sequences, no secrets, not endless."""
    return Finding(
        id=finding_id,
        severity=severity,
        title=title,
        evidence=tuple(_shown(line) for line in evidence if line.strip()),
        remedy=remedy,
        flags=flags or {},
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
