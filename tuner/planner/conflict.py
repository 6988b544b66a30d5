"""What the rules of the preflight look at, and how they tell what they find. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from tuner.findings import Finding, FindingId, Severity
from tuner.modelcard import ModelShape
from tuner.planner.asked import Asked
from tuner.planner.versions import RADIX_SINCE, Rules


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """The model, its flags as given and as read, and the rules of the version."""

    shape: ModelShape
    flags: dict[str, Any]
    environment: dict[str, str]
    asked: Asked
    rules: Rules

    @property
    def hybrid(self) -> bool:
        """Whether the model keeps states."""
        return self.shape.state is not None

    @property
    def validated(self) -> bool:
        """Whether this version checks the strategy of this model class at all (from 0.5.14 only listed ones)."""
        since = RADIX_SINCE.get(self.shape.architecture)
        return since is not None and self.rules.version >= since

    def on(self, name: str) -> bool:
        """Whether a switch is asked for."""
        return self.flags.get(name) not in (None, False, "", "false", "False", 0, "0")

    def flag_since(self, version: tuple[int, int, int]) -> bool:
        """Whether the server's version is ``version`` or newer."""
        return self.rules.version >= version


def finding(
    severity: Severity,
    title: str,
    *,
    remedy: str,
    flags: dict[str, Any] | None = None,
    evidence: tuple[str, ...] = (),
    kind: FindingId = FindingId.FLAG_CONFLICT,
) -> Finding:
    return Finding(id=kind, severity=severity, title=title, remedy=remedy, flags=flags or {}, evidence=evidence)


def fatal(title: str, *, remedy: str, flags: dict[str, Any] | None = None, evidence: tuple[str, ...] = ()) -> Finding:
    return finding(Severity.FATAL, title, remedy=remedy, flags=flags, evidence=evidence)


def warning(title: str, *, remedy: str, flags: dict[str, Any] | None = None, evidence: tuple[str, ...] = ()) -> Finding:
    return finding(Severity.WARNING, title, remedy=remedy, flags=flags, evidence=evidence)


def note(title: str, *, remedy: str, flags: dict[str, Any] | None = None) -> Finding:
    return finding(Severity.NOTE, title, remedy=remedy, flags=flags)
