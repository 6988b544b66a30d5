"""Deaths provoked by tests/real/failures.py on a real SGLang 0.5.17: each log is called what it died of.

A 27B hybrid on 47.5 GiB of an H200: another process held the rest of the card, and the plan counted on that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tuner.doctor import diagnose_log, with_remedy
from tuner.findings import Finding, FindingId
from tuner.modelfile import load_shape
from tuner.planner.model import PlanInputs, Source, Sourced
from tuner.serverlog.reader import BootReader

DATA = Path(__file__).parents[2] / "data" / "real_failures"
CARD_GIB = 143_771 / 1024
COUNTED_ON_GIB = 46.83


def found(name: str, counted_on_gib: float | None, *changes: tuple[str, str]) -> Sequence[Finding]:
    text = (DATA / f"{name}.log").read_text(encoding="utf-8")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    lines = text.splitlines()
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


@pytest.mark.parametrize(
    ("counted_on_gib", "change"),
    [
        # It came while the weights loaded.
        (139.13, ("avail mem=46.83", "avail mem=139.13")),
        # It held 92.29 GiB when the start was planned.
        (COUNTED_ON_GIB, ("has 92.29 GiB", "has 110.00 GiB")),
    ],
)
def test_a_process_that_grew_while_the_start_loaded_is_what_it_died_of(
    counted_on_gib: float, change: tuple[str, str]
) -> None:
    assert [finding.id for finding in found("fraction-too-high", counted_on_gib, change)] == [FindingId.GPU_BUSY]


def test_a_card_without_room_for_one_slot_is_no_matter_of_the_ratio() -> None:
    busy = ("total_rest_memory=12.73", "total_rest_memory=0.10")
    assert [finding.id for finding in found("ratio-near-zero", CARD_GIB, busy)] == [FindingId.GPU_BUSY]


def test_a_ratio_without_a_slot_is_no_matter_of_a_busy_card() -> None:
    assert [finding.id for finding in found("ratio-near-zero", CARD_GIB)] == [FindingId.SLOTS_NEGATIVE]


def test_the_remedies_would_have_started() -> None:
    low, high = (found(name, COUNTED_ON_GIB)[0] for name in ("fraction-too-low", "fraction-too-high"))
    assert 0.588 < low.flags["mem_fraction_static"] < 0.7
    # 0.01 GiB were free at ready, the line is 4.40, and the card of the start had 46.83.
    assert high.flags["mem_fraction_static"] == pytest.approx(0.995 - 4.39 / 46.83, abs=0.001)
    assert "4.40 GiB stay free" in high.remedy


def test_with_the_recipe_known_the_remedy_keeps_to_the_headroom_line() -> None:
    (died,) = found("fraction-too-high", COUNTED_ON_GIB)
    recorded = msgspec.json.decode((DATA.parent / "real_rounds" / "27b-48g-r01.json").read_bytes())
    asked = PlanInputs(
        shape=load_shape("qwen3.8-27b-fp8-text"),
        flags=recorded["recipe"]["flags"] | {"mem_fraction_static": 0.995},
        free_before=Sourced(46.83, Source.BOOT_LOG),
        free_after=Sourced(19.29, Source.BOOT_LOG),
    )
    after = with_remedy(died, asked).after
    assert after is not None and after.ready_free_gib >= after.headroom_line_gib


def test_a_server_that_had_been_ready_was_not_killed_while_kernels_compiled() -> None:
    assert "MAX_JOBS" not in found("scheduler-killed", COUNTED_ON_GIB)[0].remedy
