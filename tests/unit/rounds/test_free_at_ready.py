"""What is free at ready, and how high VRAM was: one number each, on every page."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tuner.rounds.chart import memory_chart
from tuner.rounds.diff import FREE_AT_READY, diff
from tuner.rounds.measures import measure
from tuner.rounds.memory import free_at_ready_gib, peak_mib
from tuner.rounds.model import Round
from tuner.rounds.report import round_markdown, round_text
from tuner.serverlog.model import BootFacts
from tuner.serverlog.reader import read_boot

REAL = Path(__file__).parents[2] / "data" / "real_rounds"
CARD_MIB = 143_771


def real(name: str) -> Round:
    return msgspec.json.decode((REAL / f"{name}.json").read_bytes(), type=Round)


def facts(name: str) -> BootFacts:
    return read_boot((REAL / f"{name}.log").read_text(encoding="utf-8"))


def test_every_page_tells_the_cards_reading_and_none_the_logs() -> None:
    old, new = real("27b-48g-auto-r1"), real("27b-48g-auto-r2")
    assert new.boot is not None and new.boot.available_gib == 3.06
    line = next(line for line in round_text(new).splitlines() if line.strip().startswith("free at ready"))
    assert line.split()[3:] == ["2.90", "GiB", "2.86", "GiB"]
    assert "| free at ready | 2.90 GiB | 2.86 GiB |" in round_markdown(new)
    change = next(change for change in diff(old, new).pools if change.name == FREE_AT_READY)
    assert (change.old, change.new) == (4.52, 2.86)
    charted = measure("available_gib")
    assert charted is not None
    value = charted.read(new)
    assert value is not None and charted.show(value) == "2.86 GiB"
    assert memory_chart(new)[-1].split()[-2:] == ["2.86", "GiB"]


def test_of_a_card_that_others_hold_too_only_what_nobody_holds_is_free() -> None:
    round_ = real("27b-48g-auto-r2")
    # 95,131 MiB were others' before the start: neither in the plan's free memory nor in what came of it.
    assert round_.plan is not None and round_.plan.card_gib is not None and round_.vram_mib["before"] == 95_131
    own = (round_.vram_mib["ready"] - round_.vram_mib["before"]) / 1024
    others = round_.vram_mib["before"] / 1024
    assert free_at_ready_gib(round_) == pytest.approx(round_.plan.card_gib - others - own)
    assert free_at_ready_gib(round_) == pytest.approx(round_.plan.ready_free_gib, abs=0.05)


def test_without_a_reading_the_log_tells_it_as_far_as_it_can() -> None:
    unread = msgspec.structs.replace(real("27b-48g-auto-r2"), vram_mib={"before": 95_131})
    assert free_at_ready_gib(unread) == pytest.approx(3.00)
    assert free_at_ready_gib(msgspec.structs.replace(unread, boot=None)) is None
    full = BootFacts(available_gib=0.01)
    assert free_at_ready_gib(msgspec.structs.replace(unread, boot=full)) == 0.0


@pytest.mark.parametrize(
    ("name", "sampled", "highest"),
    [
        # The draft's own embedding and head are there for a moment: 0.31 and 18.34 GiB were left.
        ("27b-48g-auto-r2", 142_936, 143_454),
        ("next-80b-whole-card", 124_170, 124_991),
        # Without speculation the capture of the graphs is higher than anything the log tells.
        ("27b-48g-auto-r1", 139_862, 139_862),
    ],
)
def test_the_highest_vram_is_what_the_log_saw_where_samples_missed_it(name: str, sampled: int, highest: int) -> None:
    assert real(name).vram_mib["peak"] == sampled
    assert peak_mib(sampled, CARD_MIB, facts(name)) == highest


def test_the_log_of_a_server_on_several_cards_says_nothing_of_one_card() -> None:
    assert peak_mib(142_936, None, facts("27b-48g-auto-r2")) == 142_936


def test_a_card_that_cannot_be_read_has_no_highest_vram() -> None:
    assert peak_mib(None, None, facts("27b-48g-auto-r2")) is None
    assert peak_mib(None, CARD_MIB, BootFacts()) is None
