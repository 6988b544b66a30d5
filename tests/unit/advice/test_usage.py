"""Hours of readings come down to what the workload asked of the server."""

from __future__ import annotations

import pytest
from advice_cases import look

from tuner.advice import Usage, usage_of
from tuner.advice.need import derived_need
from tuner.metrics.model import Spread


def test_nothing_seen_is_nothing_known() -> None:
    assert usage_of([]) == usage_of([("r1", ())]) == Usage()
    assert derived_need(usage_of([("r1", [look(0, running=0, queued=0, kv_used_tokens=0)])])) is None


def test_a_burst_in_one_look_of_hundreds_is_no_usual_load() -> None:
    looks = [look(m, running=3, queued=0) for m in range(300)]
    looks[150] = look(150, running=3, queued=60)
    usage = usage_of([("r1", looks)])
    assert (usage.peak_running, usage.peak_queued, usage.peak_at_once) == (3, 0, 3)
    assert usage_of([("r1", looks[148:153])]).peak_at_once == 63  # few looks cannot tell a burst from a habit


def test_the_longest_request_is_the_most_tokens_that_one_held() -> None:
    looks = [
        look(0, running=3, queued=0, kv_used_tokens=90_000, kv_evictable_tokens=20_000),
        look(1, running=1, queued=0, kv_used_tokens=68_000, kv_evictable_tokens=60_000),
        look(2, running=0, queued=0, kv_used_tokens=200_000),  # a stale gauge of an idle server
    ]
    usage = usage_of([("r1", looks)])
    assert usage.longest_request == 68_000
    assert usage.peak_kv_used == 90_000


def test_a_pause_in_which_nobody_watched_is_no_time_watched() -> None:
    looks = [look(m, running=1, prefill_tokens_per_s=100.0) for m in (0, 1, 2, 500, 501)]
    usage = usage_of([("r1", looks)])
    assert usage.watched_s == 180
    assert usage.computed_tokens == 18_000


def test_counters_of_several_rounds_add_up_and_the_longer_watched_says_more_of_hits() -> None:
    first = [look(m, running=1, evicted_tokens=100 * m, prefix_hit_ratio=0.9) for m in range(10)]
    second = [look(m, running=1, evicted_tokens=50 * m, prefix_hit_ratio=0.1) for m in range(40)]
    usage = usage_of([("r1", first), ("r4", second)])
    assert usage.rounds == ("r1", "r4")
    assert usage.evicted_tokens == 900 + 1950
    assert usage.hit_ratio == pytest.approx((0.9 * 10 + 0.1 * 40) / 50)


def test_acceptance_needs_more_than_a_few_looks_at_decoding() -> None:
    looks = [look(m, running=1, acceptance_length=1.8) for m in range(9)]
    assert usage_of([("r1", looks)]).acceptance_length is None
    looks += [look(9 + m, running=1, acceptance_length=1.7) for m in range(12)]
    looks += [look(30, running=0, acceptance_length=1.0)]
    assert usage_of([("r1", looks)]).acceptance_length == 1.7


def test_latencies_are_those_of_most_answers() -> None:
    looks = [look(m, running=1, ttft_s=Spread(p50=1.0, p95=2.0, count=100)) for m in range(10)]
    looks += [look(11, running=1, ttft_s=Spread(p50=9.0, p95=30.0, count=1))]
    usage = usage_of([("r1", looks)])
    assert (usage.ttft_p50_s, usage.ttft_p95_s) == (1.0, 2.0)


def test_slots_of_an_idle_server_are_not_called_lost() -> None:
    idle = [look(m, running=0, queued=0, slots_used=12) for m in range(100)]
    assert usage_of([("r1", idle)], slots_per_request=5).slots_beyond is None


@pytest.mark.parametrize(("used", "beyond"), [(10, 0), (23, 8)])
def test_slots_beyond_what_requests_can_hold_are(used: int, beyond: int) -> None:
    busy = [look(m, running=2, queued=1, slots_used=used) for m in range(40)]
    assert usage_of([("r1", busy)], slots_per_request=5).slots_beyond == beyond


def test_a_need_is_derived_and_says_so() -> None:
    looks = [look(m, running=2, queued=0, kv_used_tokens=80_000, prefix_hit_ratio=0.5) for m in range(60)]
    need = derived_need(usage_of([("r1", looks)]))
    assert need is not None
    assert (need.input_tokens, need.agents, need.warm_prefixes) == (40_000, 2, 4)
    assert need.sentence.startswith("Derived, not stated: 60 looks at r1 in 59 min")


def test_checks_after_a_start_are_no_work() -> None:
    checks = [look(m / 60, running=1, queued=0, kv_used_tokens=8_000) for m in range(90)]
    assert not usage_of([("r1", checks)]).tells
    assert usage_of([("r1", [look(m, running=1) for m in range(40)])]).tells


def test_waiting_requests_count_as_needed_only_where_they_often_wait() -> None:
    often = [look(m, running=2, queued=m % 2, kv_used_tokens=80_000) for m in range(60)]
    seldom = [look(m, running=2, queued=int(m % 20 == 0), kv_used_tokens=80_000) for m in range(60)]
    assert [n.agents for looks in (often, seldom) if (n := derived_need(usage_of([("r1", looks)])))] == [3, 2]


def test_the_need_of_one_replica_is_its_share() -> None:
    looks = [look(m, running=8, queued=0, kv_used_tokens=80_000) for m in range(60)]
    need = derived_need(usage_of([("r1", looks)]), replicas=4)
    assert need is not None and need.agents == 2
