"""How bad it is to stay below the headroom line."""

from __future__ import annotations

from tuner.findings import Severity

#: A start that comes this near to its line is only told so.
_NEARLY = 0.8


def headroom_severity(free_gib: float, line_gib: float) -> Severity:
    """Of ``free_gib`` at ready, below a line of ``line_gib``."""
    return Severity.WARNING if free_gib < _NEARLY * line_gib else Severity.NOTE
