"""What looks at a running server tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.doctor.readings_rules import Watched, readings_findings
from tuner.findings import Finding
from tuner.metrics.model import GpuReading, Readings
from tuner.planner.model import HEADROOM_GIB
from tuner.serverlog.model import BootFacts


def diagnose_readings(
    samples: Sequence[Readings],
    *,
    gpus: Sequence[GpuReading] = (),
    flags: Mapping[str, Any] | None = None,
    facts: BootFacts | None = None,
    headroom_gib: float = HEADROOM_GIB,
    alone_prefill_tokens_per_s: float | None = None,
    computed_tokens: float | None = None,
) -> tuple[Finding, ...]:
    """Findings of looks at a running server, oldest first: one is enough for some rules, an hour is better.

    ``flags`` are the recipe's, ``facts`` the log's. ``alone_prefill_tokens_per_s``: of a cold prompt that had the
    server to itself, where one was measured; ``computed_tokens``: prompt tokens computed so far, where known.
    """
    return readings_findings(
        Watched(
            samples,
            gpus=gpus,
            flags=flags,
            facts=facts,
            headroom_gib=headroom_gib,
            alone_prefill_tokens_per_s=alone_prefill_tokens_per_s,
            computed_tokens=computed_tokens,
        )
    )
