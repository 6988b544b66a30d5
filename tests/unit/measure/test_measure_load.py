from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "checks"))

from checks_simulator import free_port, simulator

from tuner.measure.load import measure
from tuner.measure.model import Load, Physics, Progress, Slo, SpeedPoint, Timing
from tuner.measure.physics import alone_ttft_s, cause_of, lengths_within, physics
from tuner.measure.report import measurement_text, physics_text
from tuner.measure.watch import Budget
from tuner.measure.wire import Target
from tuner.measure.workload import read_workload

LOAD = Load(concurrency=4, requests=24, repeats=3, input_tokens=96, output_tokens=8)


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """A fast server that tells cached tokens, with tokens 2 ms apart."""
    with simulator(
        "--mamba-radix-cache-strategy", "extra_buffer", "--enable-cache-report", "--api-key", "sk-load-key-12345",
        "--sim-speed", "1", "--sim-ttft", "0.002", "--sim-itl", "0.002", "--sim-compile", "0",
    ) as client:  # fmt: skip
        yield Target(url=client.url, model="hybrid-tiny", api_key="sk-load-key-12345")


def test_a_closed_loop_scores_its_repeats_and_keeps_every_sample(target: Target) -> None:
    seen: list[Progress] = []
    slo = Slo(ttft_s=5.0, itl_s=1.0)
    found = measure(target, LOAD, slo=slo, budget=Budget(60), on_progress=seen.append)
    assert (found.failed, found.errors, found.ended_early, found.repeats_done) == (0, (), "", 3)
    assert len(found.samples) == 72
    assert {sample.output_tokens for sample in found.samples} == {8}
    assert found.ttft_s is not None
    assert found.ttft_s.count == 72
    assert len(found.ttft_s.repeats) == len(found.output_tokens_per_s) == len(found.good_per_s) == 3
    # 72 samples make a p90 but no p95; 504 gaps make a p95 but no p99.
    assert found.ttft_s.p90 is not None
    assert found.ttft_s.p95 is None
    assert found.gaps_s is not None
    assert (found.gaps_s.count, found.gaps_s.p99) == (504, None)
    assert found.good_share == 1.0
    assert [progress.stage for progress in seen][:1] == ["warm-up"]
    assert {"repeat 1 of 3", "repeat 3 of 3"} <= {progress.stage for progress in seen}
    assert "72" in measurement_text(found)


def test_nothing_of_an_earlier_repeat_is_in_the_cache(target: Target) -> None:
    first, second = (measure(target, LOAD, budget=Budget(60)) for _ in range(2))
    cached = [sample.cached_tokens for found in (first, second) for sample in found.samples]
    assert set(cached) == {0}


def test_a_recorded_workload_keeps_its_own_times_and_what_it_shares(target: Target) -> None:
    shared = "The rules of the house are these. " * 40
    lines = "\n".join(
        f'{{"ts": {100 + 0.02 * n}, "body": {{"messages": [{{"role": "system", "content": "{shared}"}}, '
        f'{{"role": "user", "content": "Question {n}?"}}], "max_tokens": 4}}}}'
        for n in range(6)
    )
    workload = read_workload(lines)
    load = Load(
        concurrency=2, requests=6, repeats=3, input_tokens=0, output_tokens=0, timing=Timing.RECORDED, workload="w"
    )
    found = measure(target, load, recorded=workload.asks, budget=Budget(60))
    assert found.failed == 0
    for repeat in range(3):
        mine = sorted((s for s in found.samples if s.repeat == repeat), key=lambda s: s.sent_at_s)
        assert all(sample.sent_at_s >= 0.02 * n for n, sample in enumerate(mine))
        # The first of a repeat finds nothing, whoever comes after it does.
        assert mine[0].cached_tokens == 0
        assert (mine[-1].cached_tokens or 0) > 0


def test_a_load_ends_at_once_when_it_is_broken_off(target: Target) -> None:
    cancel = threading.Event()
    endless = Load(concurrency=4, requests=4_000, repeats=3, input_tokens=64, output_tokens=8)

    def stop(progress: Progress) -> None:
        if progress.stage.startswith("repeat") and progress.done:
            cancel.set()

    found = measure(target, endless, budget=Budget(60, cancel), on_progress=stop)
    assert found.ended_early == "It was broken off."
    assert 0 < len(found.samples) < 4_000


def test_a_load_that_takes_too_long_ends_with_its_budget(target: Target) -> None:
    endless = Load(concurrency=2, requests=4_000, repeats=3, input_tokens=64, output_tokens=8)
    found = measure(target, endless, budget=Budget(0.7))
    assert found.ended_early == "The time for it (0.7 s) was used up."


def test_a_wrong_key_and_a_dead_server_are_told_and_the_key_is_not(target: Target) -> None:
    small = Load(concurrency=2, requests=3, repeats=3, input_tokens=64, output_tokens=4)
    locked = measure(Target(url=target.url, model="m", api_key="sk-other-key-99999"), small, budget=Budget(20))
    assert locked.failed == 9
    assert locked.errors == ("The server wants an API key, or another one (status 401).",)
    dead = measure(Target(url=f"http://127.0.0.1:{free_port()}", model="m"), small, budget=Budget(20))
    assert dead.failed == 9
    assert dead.errors[0].startswith("Nothing answers at http://127.0.0.1:")
    assert "sk-" not in repr(target) + repr(locked)


def test_one_request_alone_shows_the_speed_by_length(target: Target) -> None:
    found = physics(target, (256, 1_024), budget=Budget(60))
    assert [point.tokens for point in found.points] == [256, 1_024]
    assert all(point.prefill_tokens_per_s and point.decode_tokens_per_s and point.tries == 2 for point in found.points)
    assert found.ended_early == ""
    assert "1,024" in physics_text(found)


PHYSICS = Physics(
    at=1.0,
    points=(
        SpeedPoint(tokens=1_000, ttft_s=0.1, prefill_tokens_per_s=10_000.0),
        SpeedPoint(tokens=9_000, ttft_s=0.9, prefill_tokens_per_s=10_000.0),
    ),
)


def test_a_slow_answer_is_told_from_a_wrong_flag() -> None:
    assert alone_ttft_s(PHYSICS, 5_000) == pytest.approx(0.5)
    assert alone_ttft_s(PHYSICS, 17_000) == pytest.approx(1.7)
    assert alone_ttft_s(PHYSICS, 10) == 0.1
    assert "physics, not a flag" in cause_of(PHYSICS, 5_000, 0.55)
    assert "4.0 times" in cause_of(PHYSICS, 5_000, 2.0)
    assert cause_of(Physics(at=1.0), 5_000, 2.0).startswith("Too few lengths")


def test_lengths_fit_the_server() -> None:
    assert lengths_within(20_000) == (1_024, 4_096, 16_384)
    assert lengths_within(500) == ()
    assert lengths_within(None) == (1_024, 4_096, 16_384)
