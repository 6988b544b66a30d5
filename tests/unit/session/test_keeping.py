"""Readings are kept with their round at one a second, a day of them in few bytes, by one watcher."""

from __future__ import annotations

import gc
import os
import threading
from pathlib import Path

import msgspec
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner.metrics.model import Reach, Readings, Spread
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.rounds.samples import High, Moment, moment, packed, thinned
from tuner.server.model import ServerHandle
from tuner.session import watching
from tuner.session.keeping import Keeper
from tuner.session.watching import Running, Watch

#: Hours of the simulated watch; the full count by TUNER_WATCH_HOURS=8.
HOURS = float(os.environ.get("TUNER_WATCH_HOURS", "0.25"))


class Clock:
    """Seconds that pass as told."""

    def __init__(self) -> None:
        self.now = 5000.0

    def __call__(self) -> float:
        return self.now


def opened(history: History, started_at: float = 1.0) -> Round:
    draft = Round(number=0, started_at=started_at, state=RoundState.VERIFIED, recipe=Recipe())
    return msgspec.structs.replace(history.open_round(draft), ready_seconds=5.0)


def busy(at: float, running: int = 1) -> Readings:
    return Readings(
        at=at, metrics=Reach.OK, loads=Reach.OK, kv_used_tokens=100 + running, kv_total_tokens=1000, running=running,
        queued=0, decode_tokens_per_s=10.123456789 * running, ttft_s=Spread(p50=0.123456789, p95=1.5, count=3),
        answered_s=0.004 + at % 1,
    )  # fmt: skip


@pytest.fixture
def history(tmp_path: Path) -> History:
    return History(Home.at(tmp_path).database)


def times(history: History, number: int = 1) -> list[float]:
    return [sample.at for sample in history.samples(number)]


def test_readings_are_kept_at_one_a_second_and_written_a_few_at_a_time(history: History, tmp_path: Path) -> None:
    opened(history)
    clock = Clock()
    keeper = Keeper(history, 1, tmp_path / "lock", clock)
    for second in range(25):
        keeper.take(busy(1000.0 + second, running=second))
        keeper.take(busy(1000.5 + second, running=second))
        clock.now += 1
    assert times(history) == [1000.0 + s for s in range(21)]
    keeper.close()
    assert times(history) == [1000.0 + s for s in range(25)]


def test_of_a_server_that_does_not_change_one_reading_in_ten_seconds_is_kept(history: History, tmp_path: Path) -> None:
    opened(history)
    clock = Clock()
    keeper = Keeper(history, 1, tmp_path / "lock", clock)
    for second in range(41):
        keeper.take(busy(1000.0 + second))
        clock.now += 1
    keeper.take(busy(1041.0, running=2))
    keeper.close()
    assert times(history) == [1000.0, 1010.0, 1020.0, 1030.0, 1040.0, 1041.0]


def test_a_second_keeper_keeps_nothing_until_the_first_has_gone(history: History, tmp_path: Path) -> None:
    opened(history)
    clock = Clock()
    first, second = (Keeper(history, 1, tmp_path / "lock", clock) for _ in range(2))
    first.take(busy(1.0))
    second.take(busy(2.0))
    first.close()
    clock.now += 11
    second.take(busy(3.0))
    second.close()
    assert times(history) == [1.0, 3.0]


def test_what_is_kept_reads_back_with_numbers_rounded_and_without_what_was_not_told(history: History) -> None:
    opened(history)
    history.add_samples(1, [busy(1795983480.123456)])
    (back,) = history.samples(1)
    assert back.at == 1795983480.123
    assert back.decode_tokens_per_s == 10.123
    assert back.ttft_s == Spread(p50=0.12346, p95=1.5, count=3)
    assert back.kv_used_tokens == 101
    assert "slots_total" not in packed(busy(1.0))


NUMBER = st.none() | st.floats(allow_nan=False, allow_infinity=False, width=32)


@settings(max_examples=100, deadline=None)
@given(NUMBER, NUMBER, st.none() | st.integers(-(2**53), 2**53))
def test_any_readings_read_back(speed: float | None, ratio: float | None, count: int | None) -> None:
    told = Readings(at=1.0, decode_tokens_per_s=speed, prefix_hit_ratio=ratio, running=count)
    body = msgspec.json.encode(packed(told))
    back = msgspec.json.decode(body, type=Readings)
    assert back.running == count
    assert back.decode_tokens_per_s == (None if speed is None else pytest.approx(speed, rel=1e-4, abs=0))
    assert moment(body).running == count


def test_a_stretch_of_time_has_its_highest_use_and_its_mean_speed() -> None:
    together = thinned(
        [
            Moment(at=0.0, running=1, decode_tokens_per_s=10.0, ttft_s=High(0.5)),
            Moment(at=4.0, running=5, decode_tokens_per_s=None, kv_used_tokens=7),
            Moment(at=9.0, running=2, decode_tokens_per_s=30.0, ttft_s=High(2.5)),
            Moment(at=10.0, running=9),
        ],
        10.0,
    )
    assert together == (
        Moment(at=9.0, running=5, decode_tokens_per_s=20.0, ttft_s=High(2.5), kv_used_tokens=7),
        Moment(at=10.0, running=9),
    )


def test_charts_read_a_long_round_in_as_many_points_as_they_have_columns(history: History) -> None:
    opened(history)
    history.add_samples(1, [busy(1000.0 + s, running=s) for s in range(3000)])
    assert len(history.moments(1)) in (600, 601)
    assert [m.running for m in history.moments(1, 1000.0, since=1500.0)] == [999, 1999, 2999]
    assert history.moments(1, since=9999.0) == ()


def test_only_rounds_that_were_watched_lately_are_charted(history: History) -> None:
    for _ in range(3):
        opened(history)
    history.add_samples(1, [busy(100.0)])
    history.add_samples(3, [busy(100.0), busy(900.0)])
    assert history.sampled_since(50.0) == (1, 3)
    assert history.sampled_since(500.0) == (3,)


def test_readings_of_more_than_a_day_ago_are_thinned(history: History, tmp_path: Path) -> None:
    opened(history)
    history.add_samples(1, [busy(s, running=s) for s in range(0, 60)])
    clock = Clock()
    keeper = Keeper(history, 1, tmp_path / "lock", clock)
    keeper.take(busy(86_400.0 + 30))
    keeper.close()
    assert times(history) == [0.0, 10.0, 20.0, *(float(s) for s in range(30, 60)), 86_430.0]
    assert history.thin_samples(1, 86_400.0, 10.0) == 27


class CountingServer:
    """A server that decodes ten tokens a second, without a socket."""

    def __init__(self, url: str, api_key: str | None = None, timeout: float = 1.0) -> None:
        # Both pages are asked for at once: each has its own count.
        self.decoded = 0
        self.looked = 0

    def metrics(self) -> str:
        self.decoded += 10
        return (
            f'sglang:realtime_tokens_total{{mode="decode"}} {self.decoded}\nsglang:num_running_reqs 2\n'
            f'sglang:time_to_first_token_seconds_bucket{{le="0.5"}} {self.decoded // 7}\n'
            f'sglang:time_to_first_token_seconds_bucket{{le="+Inf"}} {self.decoded // 7}\n'
        )

    def loads(self) -> dict[str, object]:
        self.looked += 1
        return {"loads": [{"num_running_reqs": 2 + self.looked % 5, "num_waiting_reqs": 0}]}

    def server_info(self) -> dict[str, object]:
        return {"model_path": "/m", "internal_states": []}

    def close(self) -> None:
        pass


def test_hours_of_watching_leave_nothing_behind(
    history: History, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A watch on a fast clock: memory, open files, threads and the file on the disk."""
    monkeypatch.setattr(watching, "ServerClient", CountingServer)
    round_ = opened(history)
    handle = ServerHandle(
        pid=4_000_000, create_time=1.0, host="127.0.0.1", port=30000, log_path="", started_at=1.0, simulated=True,
        recipe=Recipe(), round_name="r1",
    )  # fmt: skip
    clock = Clock()
    watch = Watch(Home.at(tmp_path), history, {}, clock=clock)
    process = psutil.Process()

    def hours(count: float) -> tuple[int, int, int]:
        for _ in range(int(count * 3600)):
            clock.now += 1
            now = watch.read(Running(handle, round_), keep=True)
            assert now is not None
        assert now.decode_tokens_per_s == pytest.approx(10)
        gc.collect()
        return process.num_fds(), threading.active_count(), len(gc.get_objects())

    before = hours(0.05)
    after = hours(HOURS)
    watch.close()
    assert after[0] <= before[0]
    assert after[1] <= before[1]
    assert after[2] - before[2] <= 500
    kept = history.samples(1)
    assert len(kept) == int(0.05 * 3600) + int(HOURS * 3600)
    # A day at this pace stays below 100 MB.
    assert len(msgspec.json.encode(packed(kept[-1]))) < 1000
