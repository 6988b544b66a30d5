"""What a server log tells: what a start died of, or what is worth saying of one that lives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.doctor.boot_rules import boot_findings
from tuner.doctor.case import LogCase
from tuner.doctor.deaths import cause_of_death
from tuner.findings import Finding
from tuner.planner.model import HEADROOM_GIB
from tuner.serverlog.model import BootFacts


def diagnose_log(
    facts: BootFacts,
    text_tail: Sequence[str] = (),
    *,
    died: bool = False,
    headroom_gib: float = HEADROOM_GIB,
    asked: Mapping[str, Any] | None = None,
    card_gib: float | None = None,
    counted_on_gib: float | None = None,
    ready_free_gib: float | None = None,
    quiet_s: float | None = None,
) -> tuple[Finding, ...]:
    """What a server log tells: the cause of a death, or else what is worth saying of its pools.

    ``text_tail`` are lines of the log, at least the last ones. ``died``: the process is known to be gone without
    having been asked, though its log does not say so. ``headroom_gib``: free VRAM at ready that is wanted.
    ``asked``: flags of the recipe, for a log that does not echo them. ``card_gib``: memory of the whole card.
    ``counted_on_gib``: free memory before the weights that the start was planned with: what others held then is no
    cause of its death. ``ready_free_gib``: free memory at ready by the card's own reading, which comes after the log's.
    ``quiet_s``: seconds since a living server's log grew.
    """
    case = LogCase(
        facts,
        text_tail,
        died=died,
        headroom_gib=headroom_gib,
        asked=asked,
        card_gib=card_gib,
        counted_on_gib=counted_on_gib,
        ready_free_gib=ready_free_gib,
        quiet_s=quiet_s,
    )
    if case.died:
        # Advice on pools beside it would only blur what it died of.
        cause = cause_of_death(case)
        return () if cause is None else (cause,)
    return boot_findings(case)
