"""Findings of several sources as one list."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.findings import Finding, Severity

_ORDER = {Severity.FATAL: 0, Severity.WARNING: 1, Severity.NOTE: 2}


def merged(*groups: Sequence[Finding]) -> tuple[Finding, ...]:
    """Findings of several sources, worst first; of one id those of the first source that has it."""
    found: list[Finding] = []
    for group in groups:
        known = {f.id for f in found}
        found += [f for f in group if f.id not in known]
    return tuple(sorted(found, key=lambda f: _ORDER[f.severity]))
