import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.metrics import MetricsError, ReadingsWindow, parse_metrics
from tuner.metrics.model import Reach
from tuner.metrics.percentile import spread
from tuner.metrics.snapshot import Histogram


def histogram(*buckets: tuple[float, float]) -> Histogram:
    return Histogram(buckets=buckets, count=buckets[-1][1])


def decoded(tokens: float, *more: str) -> str:
    return "\n".join([f'sglang:realtime_tokens_total{{mode="decode"}} {tokens}', *more])


def test_several_replicas_add_up():
    text = "\n".join(
        f'sglang:{name}{{dp_rank="{dp}",tp_rank="{dp * 4}"}} {value}'
        for dp in (0, 1)
        for name, value in {
            "kv_used_tokens": 100,
            "max_total_num_tokens": 1000,
            "mamba_used_tokens": 3,
            "mamba_available_tokens": 4,
            "mamba_evictable_tokens": 5,
            "num_running_reqs": 2,
            "spec_accept_length": 2 + dp,
        }.items()
    )
    now = ReadingsWindow().add(0, parse_metrics(text), Reach.OFF)
    assert (now.kv_used_tokens, now.kv_total_tokens, now.running) == (200, 2000, 4)
    assert (now.slots_used, now.slots_total) == (6, 24)
    assert now.acceptance_length == 2.5


def test_ranks_that_repeat_each_other_count_once():
    text = "\n".join(f'sglang:kv_used_tokens{{tp_rank="{tp}"}} 100' for tp in range(4))
    assert parse_metrics(text).kv_used == 100


def test_the_total_over_priorities_counts_once():
    text = 'sglang:num_running_reqs{priority=""} 3\nsglang:num_running_reqs{priority="5"} 2'
    assert parse_metrics(text).running == 3


def test_labels_of_newer_versions_are_summed_over():
    text = "\n".join(
        [
            'sglang:prompt_tokens_total{is_streaming="true"} 60',
            'sglang:prompt_tokens_total{is_streaming="false"} 40',
            'sglang:cached_tokens_total{cache_source="device"} 20',
            'sglang:cached_tokens_total{cache_source="host"} 5',
            'sglang:time_to_first_token_seconds_bucket{is_streaming="true",le="1.0"} 2',
            'sglang:time_to_first_token_seconds_bucket{is_streaming="false",le="1.0"} 1',
            'sglang:time_to_first_token_seconds_bucket{is_streaming="true",le="+Inf"} 2',
            'sglang:time_to_first_token_seconds_bucket{is_streaming="false",le="+Inf"} 2',
        ]
    )
    now = ReadingsWindow(math.inf).add(0, parse_metrics(text), Reach.OFF)
    assert now.prefix_hit_ratio == 0.25
    assert now.ttft_s.count == 4
    assert now.ttft_s.p95 == 1.0


def test_an_older_server_without_slot_gauges_takes_the_total_from_server_info():
    text = 'sglang:mamba_usage{tp_rank="0"} 0.25\nsglang:num_used_tokens 7'
    now = ReadingsWindow().add(0, parse_metrics(text), Reach.OFF, {"internal_states": [{"max_mamba_cache_size": 40}]})
    assert (now.slots_used, now.slots_total, now.kv_used_tokens) == (10, 40, 7)


def test_not_a_number_is_no_number():
    assert parse_metrics("sglang:kv_used_tokens NaN\nsglang:num_running_reqs 1").kv_used is None


@pytest.mark.parametrize(
    "text",
    ["", "<html><body>login</body></html>", '{"detail":"Not Found"}', "python_info 1\n", "sglang:x{", 'a{b="c} 1'],
)
def test_another_answer_is_refused_with_a_sentence(text):
    with pytest.raises(MetricsError, match=r"^/metrics answered .*\.$"):
        parse_metrics(text)


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from('sglang:kv_used_tokens{}="\\,01.e+ \n#TYPE counter NaN'), max_size=200))
def test_no_answer_makes_the_parser_fail_in_another_way(text):
    try:
        parse_metrics(text + "\n" + decoded(1))
    except MetricsError as error:
        assert str(error)


@pytest.mark.parametrize(
    ("metrics", "loads", "said"),
    [
        (Reach.OFF, Reach.LOCKED, "MY_KEY"),
        (Reach.UNREACHABLE, Reach.UNREACHABLE, "does not answer"),
        (Reach.NONSENSE, Reach.OFF, "host and port"),
        (Reach.UNREACHABLE, {"loads": [{}]}, "/metrics does not answer"),
        (Reach.OFF, {"loads": "?"}, "--enable-metrics"),
    ],
)
def test_what_is_missing_is_said_in_one_sentence(metrics, loads, said):
    now = ReadingsWindow(key_variable="MY_KEY").add(0, metrics, loads)
    assert said in now.notice


@pytest.mark.parametrize("loads", [{}, {"loads": []}, {"loads": [1]}, {"loads": [{"num_running_reqs": "x"}]}])
def test_loads_of_another_kind_are_nonsense_and_no_error(loads):
    assert ReadingsWindow().add(0, Reach.OFF, loads, {"internal_states": "?"}).loads == Reach.NONSENSE


def test_rates_forget_what_is_older_than_ten_seconds():
    window = ReadingsWindow(60)
    for at in range(0, 31):
        now = window.add(at, parse_metrics(decoded(min(at, 15) * 100)), Reach.OFF)
    assert now.decode_tokens_per_s == 0
    window = ReadingsWindow(60)
    for at in (0, 30, 60):
        now = window.add(at, parse_metrics(decoded(at * 7)), Reach.OFF)
    assert now.decode_tokens_per_s == pytest.approx(7)


def test_percentiles_forget_what_left_the_window():
    window = ReadingsWindow(60)
    name = "sglang:inter_token_latency_seconds_bucket"
    slow = f'{name}{{{{le="1.0"}}}} {{0}}\n{name}{{{{le="+Inf"}}}} {{1}}'
    window.add(0, parse_metrics(slow.format(0, 0)), Reach.OFF)
    assert window.add(30, parse_metrics(slow.format(5, 10)), Reach.OFF).itl_s.count == 10
    assert window.add(120, parse_metrics(slow.format(5, 10)), Reach.OFF).itl_s is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 20), st.integers(0, 500)), min_size=1, max_size=30))
def test_rates_are_never_negative(steps):
    window, at, total = ReadingsWindow(), 0.0, 0
    for pause, gain in steps:
        at += pause
        total = total + gain if gain % 7 else 0
        now = window.add(at, parse_metrics(decoded(total)), Reach.OFF)
        assert now.decode_tokens_per_s is None or now.decode_tokens_per_s >= 0


@given(st.lists(st.integers(0, 50), min_size=2, max_size=8))
def test_percentiles_stay_in_order_and_within_the_buckets(counts):
    total, buckets = 0, []
    for i, count in enumerate(counts):
        total += count
        buckets.append((float(i + 1) if i < len(counts) - 1 else math.inf, float(total)))
    found = spread(Histogram(), histogram(*buckets))
    if total == 0:
        assert found is None
    else:
        assert 0 <= found.p50 <= found.p95 <= len(counts) - 1
        assert found.count == total


def test_a_percentile_in_the_open_bucket_is_its_lower_bound():
    assert spread(Histogram(), histogram((1.0, 0), (math.inf, 4))).p50 == 1.0
