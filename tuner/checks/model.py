"""What a check of a running server says."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec


class Verdict(StrEnum):
    """Outcome of a check."""

    PASS = "pass"  # noqa: S105
    FAIL = "fail"
    CANNOT_TELL = "cannot tell"


class CheckResult(msgspec.Struct, frozen=True, kw_only=True):
    """One check: what was sent, what came, how long it took, and the verdict with its reason in one sentence.

    ``sent`` and ``came`` are clipped, without escape sequences; ``details`` holds numbers (cached tokens, TTFT in s).
    """

    name: str
    verdict: Verdict
    reason: str
    sent: str = ""
    came: str = ""
    seconds: float = 0.0
    details: dict[str, Any] = {}
