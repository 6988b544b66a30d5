"""Readings of the three recorded servers with metrics, against arithmetic by hand on their counters."""

import json
import math
from pathlib import Path

import pytest

from tuner.metrics import ReadingsWindow, parse_metrics
from tuner.metrics.model import Reach

MEASURED = Path(__file__).parents[2] / "data" / "measured"


def recording(name: str) -> dict:
    data = json.loads((MEASURED / f"{name}.json").read_text())
    return {
        "idle": parse_metrics(data["endpoints"]["/metrics"]["body"]),
        "mid": parse_metrics(data["metrics_mid"]),
        "end": parse_metrics(data["metrics_end"]),
        "loads_idle": json.loads(data["endpoints"]["/v1/loads"]["body"]),
        "loads_mid": json.loads(data["loads_mid"]),
        "info": json.loads(data["endpoints"]["/server_info"]["body"]),
    }


@pytest.fixture(scope="module")
def r15() -> dict:
    return recording("27b-48g-r15-full")


@pytest.fixture(scope="module")
def dense() -> dict:
    return recording("dense-small")


def under_load(data: dict, seconds: float = 8.0):
    window = ReadingsWindow()
    window.add(100.0, data["idle"], data["loads_idle"], data["info"])
    return window.add(100.0 + seconds, data["mid"], data["loads_mid"], data["info"])


def test_pools_and_requests_of_a_busy_hybrid(r15):
    now = under_load(r15)
    assert (now.kv_used_tokens, now.kv_total_tokens, now.kv_evictable_tokens) == (1635, 262294, 8063)
    assert (now.slots_used, now.slots_total, now.slots_evictable) == (12, 57, 3)
    assert (now.running, now.queued, now.max_running_requests) == (3, 5, 3)
    assert now.acceptance_length == 1.0
    assert (now.metrics, now.loads, now.notice) == (Reach.OK, Reach.OK, "")


def test_rates_are_differences_of_counters(r15):
    now = under_load(r15)
    assert now.decode_tokens_per_s == pytest.approx((293 - 13) / 8)
    assert now.prefill_tokens_per_s == pytest.approx((9725 - 16) / 8)


def test_percentiles_are_those_of_the_window_only(r15):
    now = under_load(r15)
    # Gained up to 0.6 s: 4 of 9, up to 0.8 s: 5; so half of 9 lies in the middle of that bucket.
    assert now.ttft_s.p50 == pytest.approx(0.6 + 0.2 * (4.5 - 4) / (5 - 4))
    # Gained up to 80 s: 8 of 9, up to 100 s: 9.
    assert now.ttft_s.p95 == pytest.approx(80 + 20 * (8.55 - 8) / (9 - 8))
    assert now.ttft_s.count == 9


def test_the_hit_ratio_is_cumulative(r15, dense):
    assert under_load(r15).prefix_hit_ratio == pytest.approx(16000 / (16000 + 9725))
    end = ReadingsWindow().add(0, r15["end"], Reach.OFF)
    assert end.prefix_hit_ratio == pytest.approx(16000 / (16000 + 108642))
    assert under_load(dense).prefix_hit_ratio == pytest.approx(12001 / (12001 + 10109))
    assert under_load(recording("tiny-auto-strategy-never-hits")).prefix_hit_ratio == 0.0


def test_a_plain_model_has_no_slots_though_it_exports_their_gauges(dense):
    now = under_load(dense)
    assert (now.slots_used, now.slots_total, now.slots_evictable) == (None, None, None)
    assert now.acceptance_length is None
    assert (now.running, now.queued) == (8, 0)
    assert now.aborted_requests == 22


def test_counters_that_are_not_there_yet_are_zero(r15):
    now = ReadingsWindow().add(0, r15["idle"], r15["loads_idle"])
    assert (now.evicted_tokens, now.retracted_requests, now.aborted_requests) == (0, 0, 0)


def test_a_first_look_has_no_rates_and_no_percentiles(r15):
    now = ReadingsWindow().add(0, r15["mid"], r15["loads_mid"])
    assert (now.decode_tokens_per_s, now.prefill_tokens_per_s, now.ttft_s, now.itl_s) == (None, None, None, None)


def test_a_window_without_end_covers_the_servers_life(r15):
    now = ReadingsWindow(math.inf).add(0, r15["end"], r15["loads_mid"])
    assert now.itl_s.count == 2315
    # 1,982 of 2,315 up to 20 ms, 6 up to 15 ms.
    assert now.itl_s.p50 == pytest.approx(0.015 + 0.005 * (1157.5 - 6) / (1982 - 6))


def test_without_metrics_the_loads_carry_the_readings(r15):
    window = ReadingsWindow()
    window.add(0, Reach.OFF, r15["loads_idle"], r15["info"])
    now = window.add(8, Reach.OFF, r15["loads_mid"], r15["info"])
    assert (now.kv_used_tokens, now.kv_total_tokens) == (1635, 262294)
    assert (now.running, now.queued, now.max_running_requests) == (3, 5, 3)
    assert now.decode_tokens_per_s == 14.78
    assert now.prefill_tokens_per_s == pytest.approx((9720 - 11) / 8)
    assert now.slots_total == 57
    assert now.acceptance_length == 1.0
    assert (now.slots_used, now.ttft_s, now.prefix_hit_ratio, now.evicted_tokens) == (None, None, None, None)
    assert "--enable-metrics" in now.notice


def test_without_loads_the_metrics_carry_the_readings(r15):
    now = ReadingsWindow().add(0, r15["mid"], Reach.OFF, r15["info"])
    assert (now.running, now.queued, now.max_running_requests) == (3, 5, 3)
    assert now.kv_used_tokens == 1554


def test_a_restart_of_the_server_clears_the_window(r15):
    window = ReadingsWindow()
    window.add(0, r15["end"], r15["loads_mid"])
    now = window.add(5, r15["idle"], r15["loads_idle"])
    assert (now.decode_tokens_per_s, now.ttft_s) == (None, None)
    assert window.add(6, r15["mid"], r15["loads_mid"]).decode_tokens_per_s == 280


def test_another_server_with_higher_counters_is_a_restart_too(r15, dense):
    window = ReadingsWindow()
    window.add(0, dense["idle"], Reach.OFF)
    assert window.add(5, r15["end"], Reach.OFF).decode_tokens_per_s is None


def test_a_restart_shows_in_the_loads_alone(r15):
    window = ReadingsWindow()
    window.add(0, Reach.OFF, r15["loads_mid"])
    assert window.add(5, Reach.OFF, r15["loads_idle"]).prefill_tokens_per_s is None
