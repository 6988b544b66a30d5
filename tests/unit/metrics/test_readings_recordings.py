"""Readings of the three recorded servers with metrics, against arithmetic by hand on their counters."""

import json
import math
from pathlib import Path

import pytest

from tuner.metrics import ReadingsWindow, parse_metrics
from tuner.metrics.binding import Binds, binding
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


# Counts and percentiles of the whole life of each server at three moments, by hand from the same text. Of a histogram
# the arithmetic is: lower bound + width of the bucket * (wanted - counted below it) / counted in it.

NAMES = {"r15": "27b-48g-r15-full", "dense": "dense-small", "tiny": "tiny-auto-strategy-never-hits"}


@pytest.fixture(scope="module")
def recordings() -> dict:
    return {short: recording(name) for short, name in NAMES.items()}


def alone(data: dict, moment: str, seconds: float = math.inf):
    """One look by /metrics alone, as of the server's start."""
    return ReadingsWindow(seconds).add(0, data[moment], Reach.OFF, data["info"])


@pytest.mark.parametrize(
    ("name", "moment", "kv", "slots", "requests"),
    [
        # KV tokens: in use, in all (in use + free + cached), cached; state slots: the same; requests: running, queued.
        ("r15", "idle", (0, 0 + 262294 + 0, 0), (0, 0 + 57 + 0, 0), (0, 0)),
        ("r15", "mid", (1554, 1554 + 252677 + 8063, 8063), (12, 12 + 42 + 3, 3), (3, 5)),
        ("r15", "end", (88169, 88169 + 153774 + 20351, 20351), (4, 4 + 5 + 48, 48), (0, 0)),
        ("dense", "idle", (0, 0 + 1356231 + 2, 2), (None, None, None), (0, 0)),
        ("dense", "mid", (4189, 4189 + 1346010 + 6034, 6034), (None, None, None), (8, 0)),
        ("dense", "end", (0, 0 + 1335607 + 20626, 20626), (None, None, None), (0, 0)),
        ("tiny", "idle", (0, 0 + 9525859 + 21, 21), (0, 0 + 2722 + 3, 3), (0, 0)),
        ("tiny", "mid", (4344, 4344 + 9515163 + 6373, 6373), (16, 16 + 2694 + 15, 15), (8, 0)),
        ("tiny", "end", (0, 0 + 9504915 + 20965, 20965), (0, 0 + 2662 + 63, 63), (0, 0)),
    ],
)
def test_pools_and_requests_at_three_moments(recordings, name, moment, kv, slots, requests):
    now = alone(recordings[name], moment)
    assert (now.kv_used_tokens, now.kv_total_tokens, now.kv_evictable_tokens) == kv
    assert (now.slots_used, now.slots_total, now.slots_evictable) == slots
    assert (now.running, now.queued) == requests


@pytest.mark.parametrize(
    ("name", "moment", "ratio", "aborted"),
    [
        ("r15", "idle", 0 / (0 + 16), 0),
        ("r15", "mid", 16000 / (16000 + 9725), 0),
        ("r15", "end", 16000 / (16000 + 108642), 0),
        ("dense", "idle", 0 / (0 + 5), 22),
        ("dense", "mid", 12001 / (12001 + 10109), 22),
        ("dense", "end", 12001 / (12001 + 18301), 22),
        ("tiny", "idle", 0 / (0 + 29), 0),
        ("tiny", "mid", 0 / (0 + 22298), 0),
        ("tiny", "end", 0 / (0 + 30490), 0),
    ],
)
def test_cumulative_counts_at_three_moments(recordings, name, moment, ratio, aborted):
    now = alone(recordings[name], moment)
    assert now.prefix_hit_ratio == pytest.approx(ratio)
    assert (now.aborted_requests, now.retracted_requests, now.evicted_tokens, now.eviction_seconds) == (
        aborted,
        0,
        0,
        0,
    )


@pytest.mark.parametrize(
    ("name", "moment", "field", "count", "p50", "p95"),
    [
        ("r15", "idle", "ttft_s", 1, 0.4 + 0.2 * (0.5 - 0) / 1, 0.4 + 0.2 * (0.95 - 0) / 1),
        ("r15", "mid", "ttft_s", 10, 0.4 + 0.2 * (5 - 4) / 1, 80 + 20 * (9.5 - 9) / 1),
        ("r15", "end", "ttft_s", 32, 2 + 2 * (16 - 9) / 9, 20 + 20 * (30.4 - 30) / 1),
        ("r15", "mid", "itl_s", 128, 0.015 + 0.005 * (64 - 3) / 73, 0.035 + 0.005 * (121.6 - 112) / 13),
        ("r15", "end", "itl_s", 2315, 0.015 + 0.005 * (1157.5 - 6) / 1976, 0.02 + 0.005 * (2199.25 - 1982) / 306),
        ("r15", "mid", "e2e_s", 7, 1 + 1 * (3.5 - 3) / 3, 80 + 20 * (6.65 - 6) / 1),
        ("r15", "end", "e2e_s", 32, 4 + 2 * (16 - 9) / 9, 20 + 20 * (30.4 - 30) / 1),
        ("dense", "mid", "ttft_s", 11, 0.1 + 0.1 * (5.5 - 2) / 4, 0.4 + 0.2 * (10.45 - 6) / 5),
        ("dense", "end", "ttft_s", 27, 0 + 0.1 * (13.5 - 0) / 18, 0.4 + 0.2 * (25.65 - 22) / 5),
        ("dense", "mid", "itl_s", 290, 0.01 + 0.005 * (145 - 34) / 246, 0.01 + 0.005 * (275.5 - 34) / 246),
        ("dense", "end", "itl_s", 2301, 0.01 + 0.005 * (1150.5 - 912) / 1374, 0.01 + 0.005 * (2185.95 - 912) / 1374),
        ("dense", "mid", "e2e_s", 3, 0.1 + 0.1 * (1.5 - 1) / 1, 0.2 + 0.2 * (2.85 - 2) / 1),
        ("dense", "end", "e2e_s", 27, 1 + 1 * (13.5 - 11) / 16, 1 + 1 * (25.65 - 11) / 16),
        ("tiny", "idle", "ttft_s", 1, 6 + 2 * (0.5 - 0) / 1, 6 + 2 * (0.95 - 0) / 1),
        ("tiny", "mid", "ttft_s", 15, 0.8 + 0.2 * (7.5 - 7) / 7, 6 + 2 * (14.25 - 14) / 1),
        ("tiny", "end", "ttft_s", 31, 0 + 0.1 * (15.5 - 0) / 22, 0.8 + 0.2 * (29.45 - 23) / 7),
        ("tiny", "mid", "itl_s", 483, 0 + 0.002 * (241.5 - 0) / 284, 0.002 + 0.002 * (458.85 - 284) / 198),
        ("tiny", "end", "itl_s", 2315, 0 + 0.002 * (1157.5 - 0) / 1648, 0.002 + 0.002 * (2199.25 - 1648) / 640),
        ("tiny", "mid", "e2e_s", 7, 0 + 0.1 * (3.5 - 0) / 4, 6 + 2 * (6.65 - 6) / 1),
        ("tiny", "end", "e2e_s", 31, 0.1 + 0.1 * (15.5 - 4) / 17, 1 + 1 * (29.45 - 22) / 8),
    ],
)
def test_percentiles_of_a_whole_life(recordings, name, moment, field, count, p50, p95):
    told = getattr(alone(recordings[name], moment), field)
    assert told.count == count
    assert told.p50 == pytest.approx(p50)
    assert told.p95 == pytest.approx(p95)


@pytest.mark.parametrize(("name", "moment"), [("dense", "idle"), ("tiny", "idle"), ("r15", "idle")])
def test_a_histogram_that_is_not_there_yet_has_no_percentiles(recordings, name, moment):
    assert alone(recordings[name], moment).itl_s is None


@pytest.mark.parametrize(("name", "counts"), [("r15", (6, 15, 37)), ("dense", (5, 16, 32)), ("tiny", (19, 33, 49))])
def test_every_request_that_was_taken_from_the_queue_counts(recordings, name, counts):
    told = [alone(recordings[name], moment).queue_s for moment in ("idle", "mid", "end")]
    assert tuple(queue.count for queue in told) == counts


def test_from_the_middle_to_the_end_percentiles_are_those_of_what_came_between(recordings):
    data = recordings["r15"]
    window = ReadingsWindow()
    window.add(0, data["mid"], Reach.OFF)
    now = window.add(30, data["end"], Reach.OFF)
    # 32 - 10 first tokens; up to 4 s 18 - 9 of them, up to 6 s 30 - 9.
    assert now.ttft_s.count == 32 - 10
    assert now.ttft_s.p50 == pytest.approx(4 + 2 * (11 - 9) / (21 - 9))
    assert now.e2e_s.count == 32 - 7
    assert now.itl_s.count == 2315 - 128


def test_gauges_that_an_idle_server_has_left_at_its_last_batch_are_marked(recordings):
    data = recordings["r15"]
    end = alone(data, "end")
    assert end.running == 0
    assert end.stale == ("kv_used_tokens", "kv_evictable_tokens", "slots_used", "slots_evictable", "acceptance_length")
    # /v1/loads is fresh, and so is what comes from it.
    fresh = ReadingsWindow().add(0, data["end"], data["loads_idle"], data["info"])
    assert fresh.kv_used_tokens == 0
    assert "kv_used_tokens" not in fresh.stale
    assert alone(data, "mid").stale == ()
    assert alone(data, "idle").stale == ()


def test_the_kv_share_is_not_the_gauge_that_is_the_larger_of_kv_and_states(recordings):
    now = under_load(recordings["r15"])
    # sglang:token_usage said 0.21 then, which is 12 of 57 slots.
    assert now.slots_used / now.slots_total == pytest.approx(0.21, abs=0.005)
    assert now.kv_used_tokens / now.kv_total_tokens == pytest.approx(1635 / 262294)


def test_what_bound_a_busy_server(recordings):
    busy = binding(under_load(recordings["r15"]))
    assert (busy.kind, busy.words) == (Binds.REQUESTS, "Requests: 3 of 3 admitted run; 5 requests wait.")
    asked_more = binding(under_load(recordings["r15"]), asked_requests=32)
    assert asked_more.kind is Binds.SLOTS
    assert "57 admit 3 of 32 asked" in asked_more.words
    assert binding(under_load(recordings["dense"])).kind is Binds.NOTHING
    assert binding(alone(recordings["tiny"], "end")).words == "Nothing binds: the server is idle."
