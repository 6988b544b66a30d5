"""Readings in words: percentiles only of enough requests, and no request that is told twice or not at all."""

from __future__ import annotations

import pytest

from tuner.measure.stats import SAMPLES_FOR
from tuner.metrics.model import Readings, Spread
from tuner.metrics.words import P50_NEEDS, P95_NEEDS, requests_words, rows, spread_words
from tuner.ui.wording import spread


def test_live_percentiles_need_as_many_requests_as_measured_ones() -> None:
    assert (SAMPLES_FOR["p50"], SAMPLES_FOR["p95"]) == (P50_NEEDS, P95_NEEDS)


@pytest.mark.parametrize(
    ("count", "words", "seconds", "milliseconds"),
    [
        # One request in the bucket of 20 to 30 s, as a real server told it.
        (1, "about 25 s, of 1", "≈25.0 / – s", "≈25000 / – ms"),
        (9, "about 25 s, of 9", "≈25.0 / – s", "≈25000 / – ms"),
        (10, "25 s p50, of 10", "25.0 / – s", "25000 / – ms"),
        (129, "25 s p50, of 129", "25.0 / – s", "25000 / – ms"),
        (130, "25 s p50, 30 s p95, of 130", "25.0 / 29.5 s", "25000 / 29500 ms"),
        (1300, "25 s p50, 30 s p95, of 1,300", "25.0 / 29.5 s", "25000 / 29500 ms"),
    ],
)
def test_no_percentile_is_told_of_too_few_requests(count: int, words: str, seconds: str, milliseconds: str) -> None:
    seen = Spread(p50=25.0, p95=29.5, count=count)
    assert spread_words(seen) == words
    assert spread(seen, milliseconds=False) == seconds
    assert spread(seen, milliseconds=True) == milliseconds


def test_short_times_keep_two_decimals_on_the_screen() -> None:
    assert spread(Spread(p50=0.834, p95=1.52, count=400), milliseconds=False) == "0.83 / 1.52 s"
    assert spread(Spread(p50=0.834, p95=12.0, count=40), milliseconds=False) == "0.83 / – s"
    assert (spread_words(None), spread(None, milliseconds=True)) == ("", "–")


def test_status_and_the_live_screen_say_it_in_the_same_words() -> None:
    told = dict(rows(Readings(at=1.0, queue_s=Spread(p50=25.0, p95=29.5, count=1))))
    assert told["Queue"] == "about 25 s, of 1"


REAL = Readings(at=1.0, running=1, queued=1, max_running_requests=4, prefill_tokens_per_s=3040.0)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        # Three requests in flight of a real server: one was in its chunks, and in neither number.
        ({}, "1 of 4 admitted run, 1 wait, prefill not counted"),
        ({"running": 0, "queued": 2}, "0 of 4 admitted run, 2 wait, prefill not counted"),
        ({"max_running_requests": None}, "1 run, 1 wait, prefill not counted"),
        # Nobody can be between the queue and the batch: it is full, or nothing is prefilled.
        ({"running": 4}, "4 of 4 admitted run, 1 wait"),
        ({"prefill_tokens_per_s": 0.0}, "1 of 4 admitted run, 1 wait"),
        ({"prefill_tokens_per_s": None}, "1 of 4 admitted run, 1 wait"),
        ({"running": 0, "queued": 0, "prefill_tokens_per_s": 0.0}, "0 of 4 admitted run, 0 wait"),
        ({"running": None}, "4 admitted"),
    ],
)
def test_while_prefill_goes_through_it_says_whom_the_numbers_leave_out(changed: dict[str, int], words: str) -> None:
    readings = {name: getattr(REAL, name) for name in REAL.__struct_fields__} | changed
    assert requests_words(Readings(**readings)) == words
