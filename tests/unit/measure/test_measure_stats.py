from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.measure.model import Sample, Slo
from tuner.measure.stats import SAMPLES_FOR, by_repeat, good, good_share, percentile, rank_error, rates, stat


def sample(repeat: int = 0, ttft: float | None = 0.2, itl: float | None = 0.02, ok: bool = True) -> Sample:
    return Sample(repeat, 0.0, ttft, 1.0, itl, 100, 50, None, ok)


@pytest.mark.parametrize(
    ("count", "told"),
    [
        (9, set()),
        (63, set()),
        (64, {"p90"}),
        (130, {"p90", "p95"}),
        (661, {"p90", "p95"}),
        (662, {"p90", "p95", "p99"}),
    ],
)
def test_a_percentile_is_told_only_from_enough_samples(count: int, told: set[str]) -> None:
    found = stat([[float(n) for n in range(count)]])
    assert found is not None
    assert {name for name in ("p90", "p95", "p99") if getattr(found, name) is not None} == told
    assert (found.low, found.p50, found.high) == (0.0, (count - 1) / 2, count - 1.0)


def test_the_median_and_its_spread_over_the_repeats_are_kept() -> None:
    found = stat([[1.0] * 10, [2.0] * 10, [3.0] * 10])
    assert found is not None
    assert found.repeats == (1.0, 2.0, 3.0)
    # Within a repeat nothing scatters, from repeat to repeat much does.
    assert found.errors["p50"] == pytest.approx(1 / 3**0.5, abs=1e-6)


def test_the_error_of_a_median_is_what_repeated_draws_show() -> None:
    chance = random.Random(4)
    draws = [sorted(chance.gauss(10, 1) for _ in range(400)) for _ in range(200)]
    medians = [percentile(draw, 0.5) for draw in draws]
    mean = sum(medians) / len(medians)
    seen = (sum((m - mean) ** 2 for m in medians) / len(medians)) ** 0.5
    told = sum(rank_error(draw, 0.5) for draw in draws) / len(draws)
    assert told == pytest.approx(seen, rel=0.2)


def test_nothing_measured_is_nothing_told() -> None:
    assert stat([]) is None
    assert stat([[], []]) is None


def test_goodput_counts_what_failed_and_what_was_late() -> None:
    slo = Slo(ttft_s=0.5, itl_s=0.03)
    samples = [sample(), sample(ttft=0.6), sample(itl=0.04), sample(ttft=None, ok=False), sample(itl=None)]
    assert [good(one, slo) for one in samples] == [True, False, False, False, True]
    assert good_share(samples, slo) == 0.4
    assert good_share(samples, Slo()) is None


def test_rates_are_those_of_each_repeat() -> None:
    samples = [sample(0), sample(0), sample(1), sample(1, ok=False)]
    tokens, requests, kept = rates(samples, [2.0, 1.0, 1.0], Slo(ttft_s=0.1))
    assert (tokens, requests, kept) == ([50.0, 50.0], [1.0, 1.0], [0.0, 0.0])
    assert rates(samples, [2.0], Slo())[2] == []


def test_values_are_taken_by_repeat_and_failed_requests_left_out() -> None:
    samples = [sample(0, ttft=0.1), sample(1, ttft=0.3), sample(1, ttft=None, ok=False), sample(0, ttft=0.2)]
    assert by_repeat(samples, "ttft_s") == [[0.1, 0.2], [0.3]]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(0, 1e4), min_size=1, max_size=300))
def test_percentiles_stay_within_the_samples_and_in_order(values: list[float]) -> None:
    ordered = sorted(values)
    found = [percentile(ordered, share) for share in (0.0, 0.5, 0.9, 0.95, 0.99, 1.0)]
    assert found[0] == ordered[0]
    assert found[-1] == ordered[-1]
    assert all(a <= b + 1e-9 for a, b in itertools.pairwise(found))
    assert rank_error(ordered, 0.95) >= 0


def test_the_floors_are_those_of_the_rule() -> None:
    assert dict(SAMPLES_FOR) == {"p50": 10, "p90": 64, "p95": 130, "p99": 662}
