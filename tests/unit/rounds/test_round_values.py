"""Each number of a round is written with the precision of its field, its change too."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.rounds.ab import Side
from tuner.rounds.model import Change, ChangeVerdict
from tuner.rounds.report import ab_text
from tuner.rounds.values import change_text, seconds_text, value_text


@pytest.mark.parametrize(
    ("name", "old", "new", "texts"),
    [
        ("KV tokens", 220_883, 321_431, ("220,883", "321,431", "+100,548")),
        ("state slots (predicted)", 81, 39, ("81", "39", "-42")),
        ("KV pool, GiB", 6.74, 9.8, ("6.74", "9.80", "+3.06")),
        ("free at ready, GiB (predicted)", 4.5, 4.0, ("4.50", "4.00", "-0.50")),
        ("decode, tokens/s", 1_530.4173, 1_672.4946, ("1,530", "1,672", "+9.3 %")),
        ("load 4x1,024+64: TTFT p50, s", 0.0801, 0.5123, ("80.1 ms", "512 ms", "+540 %")),
        ("ready, s", 15.6848, 15.69, ("15.7 s", "15.7 s", "+0.0 %")),
        ("prefix hit ratio", 0.6661, 0.7, ("66.6 %", "70.0 %", "+3.4 points")),
        ("acceptance length", 1.7, 2.9041, ("1.70", "2.90", "+1.20")),
        ("mem_fraction_static", 0.86, 0.98, ("0.86", "0.98", "+0.12")),
        ("chunked_prefill_size", 4096, 16_384, ("4096", "16,384", "+12,288")),
        ("port", 30_000, 30_001, ("30000", "30001", "")),
        ("enable_metrics", False, True, ("off", "on", "")),
        ("max_running_requests", None, 3, ("-", "3", "")),
        ("schedule_policy", "fcfs", "lpm\x1b[31m", ("fcfs", "lpm", "")),
    ],
)
def test_values_and_changes_have_the_precision_of_their_field(
    name: str, old: Any, new: Any, texts: tuple[str, str, str]
) -> None:
    assert (value_text(name, old), value_text(name, new), change_text(name, old, new)) == texts


@settings(max_examples=200, deadline=None)
@given(st.floats(-1e6, 1e6))
def test_times_have_three_digits_and_never_a_power_of_ten(seconds: float) -> None:
    text = seconds_text(seconds)
    assert "e" not in text and text.endswith(("s", "ms"))
    assert len(text.split()[0].replace(",", "").replace(".", "").lstrip("-0")) <= 7


def test_an_ab_with_a_value_missing_on_one_side_is_told() -> None:
    changes = (
        Change(name="TTFT p50, s", old=None, new=0.5, verdict=ChangeVerdict.NOT_COMPARABLE),
        Change(name="output, tokens/s", old=151.50912, new=170.0, change="+12 %", verdict=ChangeVerdict.BETTER),
    )
    text = ab_text(Side(value="schedule_policy=lpm", rounds=("r1", "r4")), Side(value="schedule_policy=fcfs"), changes)
    rows = [line.split() for line in text.splitlines()]
    assert ["TTFT", "p50", "-", "500", "ms", "not", "comparable"] in rows
    assert ["output,", "tokens/s", "152", "170", "+12", "%", "better"] in rows
    assert ab_text(Side(value="a"), Side(value="b"), ()).endswith("Nothing was measured on both sides.")
