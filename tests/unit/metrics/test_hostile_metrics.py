"""Pages and answers with numbers that are none: readings stay such that any file can hold them."""

from __future__ import annotations

import math

import msgspec
import pytest

from tuner.metrics import MetricsError, ReadingsWindow, parse_metrics
from tuner.metrics.model import Reach, Readings
from tuner.metrics.snapshot import Snapshot

GAUGES = [
    "kv_used_tokens",
    "kv_available_tokens",
    "kv_evictable_tokens",
    "max_total_num_tokens",
    "mamba_used_tokens",
    "mamba_available_tokens",
    "mamba_evictable_tokens",
    "num_running_reqs",
    "num_queue_reqs",
    "gen_throughput",
    "mamba_usage",
    "spec_accept_length",
    "prompt_tokens_total",
    "cached_tokens_total",
    "evicted_tokens_total",
]
VALUES = ["NaN", "+Inf", "-Inf", "1e999", "-1e999", "-5", "1e300", "1e308", "0"]
BUCKET = "sglang:time_to_first_token_seconds_bucket"


def kept(readings: Readings) -> None:
    assert msgspec.json.decode(msgspec.json.encode(readings), type=Readings) == readings


def two_looks(first: str, second: str, loads: dict[str, object] | Reach = Reach.OFF) -> None:
    for seconds in (60.0, math.inf):
        window = ReadingsWindow(seconds=seconds)
        info = {"internal_states": [{"max_mamba_cache_size": 10}]}
        kept(window.add(1.0, parse_metrics(first), loads, info))
        kept(window.add(2.0, parse_metrics(second), loads, info))


@pytest.mark.parametrize("value", VALUES)
def test_gauges_and_counters_that_are_no_numbers(value: str) -> None:
    page = "".join(f"sglang:{name} {value}\n" for name in GAUGES)
    modes = "".join(f'sglang:realtime_tokens_total{{mode="{m}"}} {value}\n' for m in ("decode", "prefill_cache"))
    two_looks(page, page + modes)
    two_looks(f"sglang:mamba_usage {value}\n", f"sglang:mamba_usage {value}\n")


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("bound", ['{le="NaN"}', '{le="-Inf"}', '{le="+Inf"}', '{le="abc"}', '{le=""}', '{x="1"}', ""])
def test_buckets_whose_bound_or_count_is_no_number(value: str, bound: str) -> None:
    page = f'{BUCKET}{{le="0.1"}} 0\n{BUCKET}{bound} '
    two_looks(page + "0\n", page + value + "\n")


def test_a_rank_of_thousands_of_digits() -> None:
    assert parse_metrics(f'sglang:num_running_reqs{{tp_rank="{"9" * 5000}"}} 3\n').running == 3


def test_a_page_of_megabytes_of_values_is_no_sglang_page() -> None:
    with pytest.raises(MetricsError, match="characters of values"):
        parse_metrics("sglang:num_running_reqs 1\n" * 100_000)


def test_comments_of_others_are_not_read_however_many_there_are() -> None:
    assert parse_metrics("# HELP x y\n" * 300_000 + "sglang:num_running_reqs 1\n").running == 1


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e300, 10**300, -5])
def test_loads_that_are_no_numbers(value: float) -> None:
    load = {
        "num_running_reqs": value,
        "num_waiting_reqs": value,
        "num_used_tokens": value,
        "max_running_requests": value,
        "gen_throughput": value,
        "total_prefill_uncached_tokens": value,
        "speculative": {"accept_length": value},
    }
    window = ReadingsWindow()
    for at in (1.0, 2.0):
        kept(window.add(at, Reach.OFF, {"loads": [load, load]}))


@pytest.mark.parametrize("value", ["-57", "1e300", "-1e308", "9007199254740992"])
def test_a_number_that_can_be_no_count_is_not_told(value: str) -> None:
    page = "".join(f"sglang:{name} {value}\n" for name in GAUGES) + "sglang:num_running_reqs 3\n"
    loads = {"loads": [dict.fromkeys(("num_used_tokens", "max_running_requests", "gen_throughput"), float(value))]}
    info = {"internal_states": [{"max_mamba_cache_size": 1 << 62}] * 9, "max_total_num_tokens": 5}
    window = ReadingsWindow()
    window.add(1.0, parse_metrics(page), loads, info)
    told = msgspec.to_builtins(window.add(2.0, parse_metrics(page), loads, info))
    numbers = [told[name] for name in told if isinstance(told[name], int | float) and name != "at"]
    assert told["running"] == 3
    assert all(0 <= number <= 5 for number in numbers)


def test_counts_that_add_up_beyond_all_numbers_are_not_told() -> None:
    page = "".join(f'sglang:{name}{{dp_rank="{rank}"}} 1.7e308\n' for name in GAUGES for rank in range(3))
    two_looks(page, page)
    assert parse_metrics(page) == Snapshot()


@pytest.mark.parametrize("labels", ['a="' + '\\"' * 900_000 + '"', ",".join(f'a{i}="1"' for i in range(150_000))])
def test_a_line_longer_than_any_of_sglangs_is_left_out_before_it_is_parsed(labels: str) -> None:
    # The parser would take 20 s for one of these; the limit is that of the whole suite.
    page = f"sglang:num_running_reqs{{{labels}}} 1\nsglang:num_queue_reqs 2\n"
    snapshot = parse_metrics(page)
    assert (snapshot.running, snapshot.queued) == (None, 2)
