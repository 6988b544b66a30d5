"""How long the planner takes: ``python tests/bench/bench_planner.py``.

Limits: a plan 1 ms, a solve 100 ms, ``tuner plan --json`` as a whole process 0.3 s.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "planner"))

from planner_cases import inputs_for

from tuner.planner import plan
from tuner.planner.need import Need
from tuner.planner.solve import solve

FLAGS = {
    "mem_fraction_static": 0.98,
    "kv_cache_dtype": "fp8_e4m3",
    "max_running_requests": 3,
    "mamba_radix_cache_strategy": "extra_buffer",
    "speculative_algorithm": "NEXTN",
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
}
INPUTS = inputs_for("qwen3.8-27b-fp8-text", "0.5.17", 46.83, 13.76, free_after_has_draft=True, **FLAGS)


def best_ms(work: Callable[[], object], rounds: int, inner: int) -> float:
    """Milliseconds of one call, the best of ``rounds``: other work on the machine only makes it longer."""
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(inner):
            work()
        times.append((time.perf_counter() - start) / inner * 1000)
    return min(times)


def process_s(rounds: int = 5) -> float:
    """Seconds of ``tuner plan --json`` as a whole process."""
    command = [sys.executable, "-c", "from tuner.cli import main; main()", "plan",
               "--model", "tuner/shapes/qwen3.8-27b-fp8-text.json",
               "--sglang", "0.5.17", "--free-before", "46.83", "--free-after", "19.29",
               "--set", "mem_fraction_static=0.86", "--json"]  # fmt: skip
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run(command, check=True, capture_output=True, cwd=Path(__file__).parents[2])
        times.append(time.perf_counter() - start)
    return min(times)


if __name__ == "__main__":
    hard = Need(input_tokens=250_000, agents=48, warm_prefixes=40)
    easy = Need(input_tokens=60_000, agents=3)
    rows = [
        ("plan", best_ms(lambda: plan(INPUTS), 20, 50), 1.0, "ms"),
        ("solve, met", best_ms(lambda: solve(INPUTS, easy), 10, 5), 100.0, "ms"),
        ("solve, nothing fits", best_ms(lambda: solve(INPUTS, hard), 10, 2), 100.0, "ms"),
        ("tuner plan --json", process_s(), 0.3, "s"),
    ]
    for name, taken, limit, unit in rows:
        print(f"{name:24} {taken:8.3f} {unit:2}  limit {limit:g} {unit}  {'ok' if taken < limit else 'TOO SLOW'}")
    sys.exit(any(taken >= limit for _, taken, limit, _ in rows))
