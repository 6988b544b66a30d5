"""Deaths provoked by tests/real/failures.py on a real SGLang 0.5.17: each log is called what it died of.

A 27B hybrid on 47.5 GiB of an H200: another process held the rest of the card, and the plan counted on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tuner.doctor import diagnose_log
from tuner.findings import Finding, FindingId
from tuner.serverlog.reader import BootReader

DATA = Path(__file__).parents[2] / "data" / "real_failures"
CARD_GIB = 143_771 / 1024
COUNTED_ON_GIB = 46.83


def found(name: str, counted_on_gib: float | None) -> Sequence[Finding]:
    lines = (DATA / f"{name}.log").read_text(encoding="utf-8").splitlines()
    reader = BootReader()
    reader.feed("".join(f"{line}\n" for line in lines))
    return diagnose_log(reader.facts, lines, died=True, card_gib=CARD_GIB, counted_on_gib=counted_on_gib)


@pytest.mark.parametrize(
    ("name", "cause"),
    [
        ("fraction-too-low", FindingId.SLOTS_NEGATIVE),
        # 0.995: the decode graphs were captured into the last 0.15 GiB, and the first prefill found 0.01.
        ("fraction-too-high", FindingId.OOM_WHILE_SERVING),
        ("ratio-near-zero", FindingId.SLOTS_NEGATIVE),
        ("unified-memory-fp8", FindingId.KERNEL_CRASH),
        ("wrong-interpreter", FindingId.MODULE_MISSING),
        ("missing-model", FindingId.MODEL_MISSING),
        ("bad-flag", FindingId.UNKNOWN_FLAG),
        ("scheduler-killed", FindingId.HOST_MEMORY_KILL),
    ],
)
def test_a_real_death_is_called_what_it_was(name: str, cause: FindingId) -> None:
    assert [finding.id for finding in found(name, COUNTED_ON_GIB)] == [cause]


@pytest.mark.parametrize("name", ["fraction-too-low", "fraction-too-high"])
def test_memory_that_another_process_took_after_the_plan_is_what_it_died_of(name: str) -> None:
    assert [finding.id for finding in found(name, CARD_GIB)] == [FindingId.GPU_BUSY]


def test_a_ratio_without_a_slot_is_no_matter_of_a_busy_card() -> None:
    assert [finding.id for finding in found("ratio-near-zero", CARD_GIB)] == [FindingId.SLOTS_NEGATIVE]


def test_the_remedies_would_have_started() -> None:
    low, high = (found(name, COUNTED_ON_GIB)[0].flags for name in ("fraction-too-low", "fraction-too-high"))
    assert 0.588 < low["mem_fraction_static"] < 0.7
    assert 0.9 < high["mem_fraction_static"] < 0.985
