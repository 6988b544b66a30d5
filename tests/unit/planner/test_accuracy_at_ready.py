"""How far the plan of free memory was off, by what the card itself showed."""

from __future__ import annotations

import msgspec
import pytest
from real_rounds import facts_of, planned_from

from tuner.planner.accuracy import accuracy, accuracy_text


def test_the_cards_reading_at_ready_goes_before_the_logs_summary() -> None:
    planned, came = planned_from("27b-48g-auto-r1", "27b-48g-auto-r2"), facts_of("27b-48g-auto-r2")
    assert planned.card_gib == pytest.approx(143_771 / 1024)
    assert accuracy(planned, came, ready_mib=140_844).ready_free_actual == pytest.approx(2.858, abs=0.001)
    assert accuracy(planned, came).ready_free_actual == pytest.approx(3.00)
    unknown = msgspec.structs.replace(planned, card_gib=None)
    assert accuracy(unknown, came, ready_mib=140_844).ready_free_actual == pytest.approx(3.00)


def test_a_difference_too_small_to_be_printed_has_no_minus() -> None:
    planned, came = planned_from("27b-48g-auto-r1", "27b-48g-auto-r2"), facts_of("27b-48g-auto-r2")
    hair = msgspec.structs.replace(accuracy(planned, came), ready_free_predicted=3.001, ready_free_actual=3.0)
    assert accuracy_text(hair).endswith("free at ready +0.00 GiB")
