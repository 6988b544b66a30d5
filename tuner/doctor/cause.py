"""A cause of death as data: what its line looks like, what it means, what to do."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from tuner.doctor.case import LogCase, finding
from tuner.findings import Finding, FindingId, Severity

Rule = Callable[[LogCase], Finding | None]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause that a line tells on its own.

    ``title`` and ``remedy`` may name groups of the pattern in braces; ``unless``: a line that only looks like it.
    """

    id: FindingId
    line: str
    title: str
    remedy: str
    flags: Mapping[str, Any] = {}
    unless: str | None = None


def told_by_a_line(causes: Iterable[Cause]) -> Rule:
    """A rule that knows the first of the causes whose line is in the log."""
    compiled = [(c, re.compile(c.line), re.compile(c.unless) if c.unless else None) for c in causes]

    def rule(case: LogCase) -> Finding | None:
        for cause, pattern, unless in compiled:
            if seen := case.find(pattern, unless=unless):
                groups = {name: text or "" for name, text in seen.match.groupdict().items()}
                return finding(
                    cause.id,
                    Severity.FATAL,
                    cause.title.format_map(groups),
                    evidence=(seen.line,),
                    remedy=cause.remedy.format_map(groups),
                    flags=cause.flags,
                )
        return None

    return rule
