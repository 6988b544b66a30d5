"""What live readings cost: ``python tests/bench/bench_readings.py``.

A recorded page under load is parsed; a look is taken into a full window; charts of a screen are drawn; a day of
readings at one a second is written, opened and read for charts. Limits: a page 20 ms; a day 100 MB on the disk and
0.5 s to open.
"""

from __future__ import annotations

import gc
import json
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from tuner.metrics import ReadingsWindow, parse_metrics
from tuner.metrics.model import Reach, Readings, Spread
from tuner.recipe.model import Recipe
from tuner.rounds.history import History
from tuner.rounds.model import Round, RoundState
from tuner.ui.trend import Trend
from tuner.ui.widgets.live_trend import charts

MEASURED = Path(__file__).parents[1] / "data" / "measured"
DAY_S = 86_400
BEGAN = 1_795_900_000.0
LIMITS = {"one page under load, parsed, ms": 20.0, "a day of readings on the disk, MB": 100.0,
          "a day of readings opened for a chart, s": 0.5}  # fmt: skip


def best(work: Callable[[], object], times: int = 5) -> float:
    """Seconds of the quickest of some runs."""
    quickest = float("inf")
    for _ in range(times):
        began = time.perf_counter()
        work()
        quickest = min(quickest, time.perf_counter() - began)
    return quickest


def reading(second: int) -> Readings:
    """A busy hybrid with every value in motion: the most a reading can take."""
    part = second % 977 / 977
    return Readings(
        at=BEGAN + second + part / 1000, metrics=Reach.OK, loads=Reach.OK, kv_used_tokens=100_000 + second,
        kv_total_tokens=262_294, kv_evictable_tokens=5000 + second % 777, slots_used=12, slots_total=57,
        slots_evictable=second % 40, running=3, queued=second % 5, max_running_requests=3,
        decode_tokens_per_s=151.5 + part, prefill_tokens_per_s=2710.1 + part,
        ttft_s=Spread(p50=0.831 + part, p95=1.523 + part, count=40),
        itl_s=Spread(p50=0.011 + part, p95=0.0148, count=900),
        e2e_s=Spread(p50=8.83 + part, p95=10.52, count=40), queue_s=Spread(p50=0.0123, p95=1.123 + part, count=40),
        prefix_hit_ratio=0.67 + part / 100, acceptance_length=1.8 + part, evicted_tokens=second * 30,
        eviction_seconds=second / 3000, evicted_tokens_per_s=30.0 + part, retracted_requests=second // 900,
        aborted_requests=22, stalled_seconds=part, answered_s=0.012 + part / 1000,
    )  # fmt: skip


def pages() -> dict[str, float]:
    """The largest recorded page, and a look with it into a window of a minute."""
    told = json.loads((MEASURED / "27b-48g-r15-full.json").read_text())
    page, loads = told["metrics_mid"], json.loads(told["loads_mid"])
    snapshot = parse_metrics(page)
    window = ReadingsWindow()
    for second in range(120):
        window.add(second, snapshot, loads)
    seconds = iter(range(120, 10_000))
    print(f"the page has {len(page.encode()):,} bytes")
    return {
        "one page under load, parsed, ms": 1000 * best(lambda: parse_metrics(page), 20),
        "one look into a full window, ms": 1000 * best(lambda: window.add(next(seconds), snapshot, loads), 20),
    }


def drawings() -> dict[str, float]:
    """All charts of a large screen."""
    trend = Trend()
    for second in range(0, DAY_S, 10):
        trend.take(reading(second), f"r{second // 20_000}")
    now = BEGAN + DAY_S
    hours = trend.told(DAY_S)
    return {
        "charts of five minutes drawn, ms": 1000 * best(lambda: charts(trend.told(300), 300, "", 78, 40, now)),
        "charts of a day drawn, ms": 1000 * best(lambda: charts(hours, DAY_S, "", 78, 40, now)),
    }


def day() -> dict[str, float]:
    """A day at one reading a second, ten a write."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rounds.sqlite"
        with History(path) as history:
            draft = Round(number=0, started_at=BEGAN, state=RoundState.VERIFIED, recipe=Recipe())
            number = history.open_round(draft).number
            began = time.perf_counter()
            for second in range(0, DAY_S, 10):
                history.add_samples(number, [reading(second + i) for i in range(10)])
            written = time.perf_counter() - began
        size = sum(file.stat().st_size for file in Path(folder).iterdir())

        def opened() -> None:
            with History(path) as found:
                for round_ in found.sampled_since(BEGAN):
                    found.moments(round_, 30.0)

        gc.collect()
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        figures = {
            "ten readings written, ms": 1000 * written / (DAY_S / 10),
            "a day of readings on the disk, MB": size / 1e6,
            "a day of readings opened for a chart, s": best(opened, 5),
        }
        # On a machine that others use the clock tells less than the core.
        used = time.process_time()
        opened()
        figures["the same, s of a core"] = time.process_time() - used
        figures["memory that took at its highest, MB"] = (
            resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        ) / 1000
        with History(path) as history:
            began = time.perf_counter()
            history.thin_samples(number, BEGAN + DAY_S, 10.0)
            figures["a day thinned to one in 10 s, s"] = time.perf_counter() - began
            left = history.samples(number)
        figures["a day then, readings"] = len(left)
        figures["bytes of one reading"] = len(msgspec.json.encode(left[-1]))
        return figures


def main() -> int:
    missed = 0
    for name, value in {**pages(), **drawings(), **day()}.items():
        limit = LIMITS.get(name)
        over = limit is not None and value > limit
        missed += over
        told = "" if limit is None else f"  limit {limit:g}{'  MISSED' if over else ''}"
        print(f"{name:<42}{value:10.2f}{told}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
