"""Names and labels from 0.5.5 to 0.5.23, and how ranks add up. Pages are written after the sources of each version."""

from __future__ import annotations

import pytest

from tuner.metrics import ReadingsWindow, parse_metrics
from tuner.metrics.model import Reach, Readings

SCHEDULER = 'engine_type="unified",model_name="m",moe_ep_rank="0",pp_rank="0"'
OLD = 'engine_type="unified",model_name="m",pp_rank="0"'

#: 0.5.5: no total, no realtime counters, no slots; counters of finished requests without labels.
PAGE_0_5_5 = f"""
sglang:num_running_reqs{{{OLD},tp_rank="0"}} 2.0
sglang:num_queue_reqs{{{OLD},tp_rank="0"}} 1.0
sglang:num_used_tokens{{{OLD},tp_rank="0"}} 700.0
sglang:token_usage{{{OLD},tp_rank="0"}} 0.07
sglang:mamba_usage{{{OLD},tp_rank="0"}} 0.25
sglang:prompt_tokens_total{{model_name="m"}} 400.0
sglang:cached_tokens_total{{model_name="m"}} 100.0
"""
#: 0.5.9: a total and realtime counters; cached tokens by source "total".
PAGE_0_5_9 = f"""
sglang:num_running_reqs{{{OLD},tp_rank="0"}} 2.0
sglang:num_used_tokens{{{OLD},tp_rank="0"}} 700.0
sglang:max_total_num_tokens{{{OLD},tp_rank="0"}} 10000.0
sglang:mamba_usage{{{OLD},tp_rank="0"}} 0.25
sglang:realtime_tokens_total{{{OLD},tp_rank="0",mode="prefill_cache"}} 60.0
sglang:realtime_tokens_total{{{OLD},tp_rank="0",mode="prefill_compute"}} 40.0
sglang:cached_tokens_total{{model_name="m",cache_source="total"}} 10.0
sglang:prompt_tokens_total{{model_name="m"}} 400.0
sglang:engine_startup_time{{model_name="m"}} 31.5
"""
#: 0.5.12: slots as "tokens"; KV by use.
PAGE_0_5_12 = f"""
sglang:num_running_reqs{{{SCHEDULER},tp_rank="0"}} 2.0
sglang:kv_used_tokens{{{SCHEDULER},tp_rank="0"}} 700.0
sglang:kv_available_tokens{{{SCHEDULER},tp_rank="0"}} 9000.0
sglang:kv_evictable_tokens{{{SCHEDULER},tp_rank="0"}} 300.0
sglang:mamba_used_tokens{{{SCHEDULER},tp_rank="0"}} 10.0
sglang:mamba_available_tokens{{{SCHEDULER},tp_rank="0"}} 25.0
sglang:mamba_evictable_tokens{{{SCHEDULER},tp_rank="0"}} 5.0
sglang:token_usage{{{SCHEDULER},tp_rank="0"}} 0.25
sglang:realtime_tokens_total{{{SCHEDULER},tp_rank="0",mode="prefill_cache"}} 60.0
sglang:realtime_tokens_total{{{SCHEDULER},tp_rank="0",mode="prefill_compute"}} 40.0
"""
#: 0.5.23: what a retraction makes it compute again counts in prefill_compute, not in the effective counters.
PAGE_0_5_23 = (
    PAGE_0_5_12
    + f"""
sglang:prefill_effective_tokens_total{{{SCHEDULER},tp_rank="0",mode="input"}} 20.0
sglang:prefill_effective_tokens_total{{{SCHEDULER},tp_rank="0",mode="device_hit"}} 50.0
sglang:prefill_effective_tokens_total{{{SCHEDULER},tp_rank="0",mode="host_hit"}} 9.0
sglang:prefill_effective_tokens_total{{{SCHEDULER},tp_rank="0",mode="storage_hit"}} 1.0
"""
)
INFO = {"internal_states": [{"max_mamba_cache_size": 40}], "max_total_num_tokens": 10000}


def read(page: str, info: dict[str, object] | None = None) -> Readings:
    return ReadingsWindow().add(0.0, parse_metrics(page), Reach.OFF, info)


@pytest.mark.parametrize(
    ("page", "hits", "cached_slots"),
    [
        (PAGE_0_5_5, 100 / 400, None),
        (PAGE_0_5_9, 60 / (60 + 40), None),
        (PAGE_0_5_12, 60 / (60 + 40), 5),
        (PAGE_0_5_23, (50 + 9 + 1) / (50 + 9 + 1 + 20), 5),
    ],
    ids=["0.5.5", "0.5.9", "0.5.12", "0.5.23"],
)
def test_each_version_gives_the_same_readings(page: str, hits: float, cached_slots: int | None) -> None:
    now = read(page, INFO)
    assert (now.kv_used_tokens, now.kv_total_tokens, now.running) == (700, 10000, 2)
    # A quarter of 40 slots by the share, or 10 by count.
    assert (now.slots_used, now.slots_total, now.slots_evictable) == (10, 40, cached_slots)
    assert now.prefix_hit_ratio == pytest.approx(hits)


EVICTED = 'sglang:evicted_tokens_total{{cache_type="MambaRadixCache"{labels}}} {value}\n'
TOOK = 'sglang:eviction_duration_seconds_sum{{cache_type="MambaRadixCache"{labels}}} {value}\n'


def evictions(**labels: str) -> str:
    text = "".join(f',{name}="{value}"' for name, value in labels.items())
    return EVICTED.format(labels=text, value=800) + TOOK.format(labels=text, value=0.4)


@pytest.mark.parametrize(
    ("info", "tokens"),
    [
        ({}, 800),
        ({"tp_size": 4, "pp_size": 1}, 800 / 4),
        ({"tp_size": 2, "pp_size": 2}, 800 / 4),
        # Two replicas of their own, four ranks each: the replicas' evictions add up.
        ({"tp_size": 4, "pp_size": 1, "dp_size": 2}, 800 / 4),
        # Four ranks in two attention groups: two ranks hold the same cache.
        ({"tp_size": 4, "dp_size": 2, "enable_dp_attention": True}, 800 / 2),
    ],
)
def test_evictions_that_every_rank_counted_without_a_label_count_once(info: dict[str, object], tokens: float) -> None:
    """Until 0.5.17 the cache's metrics have no rank labels, and the page shows the sum over the ranks."""
    now = read(PAGE_0_5_12 + evictions(), {**INFO, **info})
    assert now.evicted_tokens == tokens
    assert now.eviction_seconds == pytest.approx(0.4 * tokens / 800)


def test_evictions_with_rank_labels_are_those_of_the_first_rank_of_each_replica() -> None:
    page = "".join(evictions(tp_rank=str(tp), pp_rank="0", dp_rank=str(dp)) for dp in (0, 1) for tp in range(4))
    now = read(PAGE_0_5_23 + page, {**INFO, "tp_size": 4, "dp_size": 2, "enable_dp_attention": True})
    assert now.evicted_tokens == 2 * 800
    assert now.eviction_seconds == pytest.approx(2 * 0.4)


def test_stages_of_a_pipeline_that_say_the_same_count_once() -> None:
    page = "".join(
        f'sglang:kv_used_tokens{{model_name="m",pp_rank="{pp}",tp_rank="{tp}"}} 100\n' for pp in (0, 1) for tp in (0, 1)
    )
    assert read(page).kv_used_tokens == 100


def test_counters_of_several_replicas_add_up_by_mode() -> None:
    page = "".join(
        f'sglang:realtime_tokens_total{{dp_rank="{dp}",tp_rank="{tp}",mode="{mode}"}} {value}\n'
        for dp in (0, 1, 2)
        for tp in (2 * dp, 2 * dp + 1)
        for mode, value in (("prefill_cache", 30), ("prefill_compute", 10), ("decode", 7))
    )
    found = parse_metrics(page)
    assert (found.prefill_cached, found.prefill_computed, found.decoded) == (90, 30, 21)


def test_the_admitted_limit_is_that_of_all_replicas() -> None:
    loads = {"loads": [{"dp_rank": 0, "max_running_requests": 3}, {"dp_rank": 1, "max_running_requests": 3}]}
    assert ReadingsWindow().add(0.0, Reach.OFF, loads).max_running_requests == 6
    states = [{"effective_max_running_requests_per_dp": 3}] * 2
    now = ReadingsWindow().add(0.0, parse_metrics(PAGE_0_5_12), Reach.OFF, {"internal_states": states})
    assert now.max_running_requests == 6
