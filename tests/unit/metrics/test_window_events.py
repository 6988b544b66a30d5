"""Stalls, restarts, resets, outages: what a window says of a server that does not just run on."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.metrics import ReadingsWindow, parse_metrics
from tuner.metrics.model import Reach
from tuner.metrics.stalls import Step, is_stall
from tuner.metrics.words import rows, stalls_words

BUCKET = "sglang:inter_token_latency_seconds_bucket"


def page(decoded: float, prefilled: float = 0, running: int = 2, started: str = "") -> str:
    text = (
        f'sglang:realtime_tokens_total{{mode="decode"}} {decoded}\n'
        f'sglang:realtime_tokens_total{{mode="prefill_compute"}} {prefilled}\n'
        f"sglang:num_running_reqs {running}\n"
        f'{BUCKET}{{le="0.1"}} {decoded}\n{BUCKET}{{le="+Inf"}} {decoded}\n'
    )
    return text + (f'sglang:startup_time_seconds{{phase="load_weight"}} {started}\n' if started else "")


def test_decode_that_stands_still_behind_prefill_is_a_stall() -> None:
    window = ReadingsWindow()
    for at in range(10):
        now = window.add(at, parse_metrics(page(at * 100)), Reach.OFF)
        assert not now.stalled
    now = window.add(10, parse_metrics(page(905, prefilled=8000)), Reach.OFF)
    assert (now.stalled, now.stalled_seconds) == (True, 1)
    assert "stands still now" in stalls_words(now)
    now = window.add(11, parse_metrics(page(1005, prefilled=8000)), Reach.OFF)
    assert (now.stalled, now.stalled_seconds) == (False, 1)
    for at in range(12, 80):
        now = window.add(at, parse_metrics(page(1005 + (at - 11) * 100, prefilled=8000)), Reach.OFF)
    assert now.stalled_seconds == 0


@pytest.mark.parametrize(
    ("step", "stall"),
    [
        (Step(1, 0, 4000, 2), True),
        (Step(1, 24, 4000, 2), True),
        (Step(1, 26, 4000, 2), False),  # slower, but going on
        (Step(1, 0, 0, 2), False),  # nothing is prefilled: not what holds it up
        (Step(1, 0, 4000, 0), False),  # nobody decodes
        (Step(1, 0, 4000, None), False),
    ],
)
def test_what_is_a_stall(step: Step, stall: bool) -> None:
    steady = [Step(1, 100, 0, 2)] * 6
    assert is_stall(step, steady) is stall
    assert not is_stall(step, steady[:4])


def test_a_reset_of_the_counters_is_said_and_no_rate_falls_below_nothing() -> None:
    window = ReadingsWindow()
    window.add(0, parse_metrics(page(5000)), Reach.OFF)
    window.add(1, parse_metrics(page(5100)), Reach.OFF)
    now = window.add(2, parse_metrics(page(10)), Reach.OFF)
    assert (now.decode_tokens_per_s, now.itl_s, now.began_anew_s) == (None, None, 0)
    assert "began anew" in now.notice
    now = window.add(3, parse_metrics(page(60)), Reach.OFF)
    assert (now.decode_tokens_per_s, now.began_anew_s) == (50, 1)
    now = window.add(63, parse_metrics(page(60)), Reach.OFF)
    assert (now.began_anew_s, now.notice.startswith("/v1/loads")) == (None, True)


def test_a_server_that_comes_back_as_another_one_is_not_compared_with_the_one_before() -> None:
    window = ReadingsWindow()
    window.add(0, parse_metrics(page(100, started="30.1")), Reach.OFF)
    for at in range(1, 20):
        gone = window.add(at, Reach.UNREACHABLE, Reach.UNREACHABLE)
        assert (gone.decode_tokens_per_s, gone.kv_used_tokens, gone.running) == (None, None, None)
    now = window.add(20, parse_metrics(page(9000, started="28.7")), Reach.OFF)
    assert now.began_anew_s == 0
    assert (now.decode_tokens_per_s, now.itl_s) == (None, None)


def test_after_an_outage_of_the_same_server_rates_go_on() -> None:
    window = ReadingsWindow()
    window.add(0, parse_metrics(page(100)), Reach.OFF)
    for at in range(1, 20):
        window.add(at, Reach.UNREACHABLE, Reach.UNREACHABLE)
    now = window.add(20, parse_metrics(page(300)), Reach.OFF)
    assert now.decode_tokens_per_s == pytest.approx(10)
    assert now.began_anew_s is None


def test_slow_answers_are_said() -> None:
    loads = {"loads": [{"num_running_reqs": 0}]}
    quick = ReadingsWindow().add(0, parse_metrics(page(1)), loads, answered_s=0.02)
    slow = ReadingsWindow().add(0, parse_metrics(page(1)), loads, answered_s=1.3)
    assert (quick.notice, slow.notice) == ("", "The server answers slowly: the last look took 1.3 s.")


def test_a_window_over_a_whole_life_holds_no_more_looks_than_rates_need() -> None:
    window = ReadingsWindow(float("inf"))
    for at in range(500):
        window.add(at, parse_metrics(page(at)), Reach.OFF)
    assert len(window._looks) <= 12


LOOK = st.one_of(
    st.sampled_from([Reach.OFF, Reach.UNREACHABLE, Reach.NONSENSE, Reach.LOCKED]),
    st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 9), st.sampled_from(["", "1.5", "2.5"])),
)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(st.floats(0, 30), LOOK), min_size=1, max_size=25))
def test_whatever_a_server_does_readings_stay_in_their_bounds(looks: list[tuple[float, object]]) -> None:
    window, at = ReadingsWindow(), 0.0
    for pause, look in looks:
        at += pause
        now = window.add(at, look if isinstance(look, Reach) else parse_metrics(page(*look)), Reach.OFF)
        for rate in (now.decode_tokens_per_s, now.prefill_tokens_per_s, now.evicted_tokens_per_s, now.stalled_seconds):
            assert rate is None or rate >= 0
        if isinstance(look, Reach):
            assert (now.running, now.itl_s, now.prefix_hit_ratio) == (None, None, None)
        assert all(name and words for name, words in rows(now))
