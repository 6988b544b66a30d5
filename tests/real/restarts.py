"""Starts and stops a real server again and again, by the command line only, and prints what it took.

    python tests/real/restarts.py RECIPE [--python PATH] [--times 10] [--set KEY=VALUE ...]

For a GPU machine. Each time: VRAM before, ``tuner run``, ``tuner stop`` (every other time with ``--now``), VRAM after.
The first time a second ``tuner run`` is tried while the first still loads, and must be refused. Exit status 0 when
every start was ready, every stop left nothing, VRAM came back each time and the second start was refused. Checks that
a model does not pass (one with random weights answers nonsense) do not count here; they are shown.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from machine import TOLERANCE_MIB, Tuner, installed, missing_mib, options, recipe, smaller_card, table, vram_mib

HEAD = ("round", "state", "ready s", "whole s", "stop s", "stop", "how", "checks", "MiB before", "during", "after",
        "as it should be")  # fmt: skip


def second_start_is_refused(tuner: Tuner, start: list[str]) -> tuple[bool, Any]:
    """Starts one, tries another while it loads; whether the second was refused, and the first's round."""
    first = tuner.begin("run", *start)
    loading: dict[str, Any] = {}
    while first.poll() is None and not loading:
        loading = tuner("status")[1].get("running") or {}
        time.sleep(0.2)
    _, second = tuner("run", *start)
    answer = json.loads(first.communicate()[0])
    print(f"second start while the first was {loading.get('state')}: {second.get('state')}: {second.get('reason')}")
    return second.get("state") == "refused" and loading.get("state") == "starting", answer


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("recipe", help="a shipped preset, or a recipe file")
    parser.add_argument("--times", type=int, default=10)
    asked = parser.parse_args()
    good = True
    rows: list[list[object]] = []
    with tempfile.TemporaryDirectory() as folder, installed(asked) as tuner, smaller_card(asked):
        start = recipe(tuner, asked, asked.recipe, Path(folder) / "recipe.toml")
        for number in range(1, asked.times + 1):
            before = vram_mib(asked.gpu)
            began = time.monotonic()
            if number == 1:
                refused, round_ = second_start_is_refused(tuner, start)
                good &= refused
            else:
                _, round_ = tuner("run", *start)
            whole = time.monotonic() - began
            during = vram_mib(asked.gpu)
            now = number % 2 == 0
            _, stopped = tuner("stop", *(["--now"] if now else []))
            after = vram_mib(asked.gpu)
            ready = round_.get("ready_seconds")
            missing = missing_mib(before, after)
            fine = ready is not None and stopped.get("stopped") is True and missing <= TOLERANCE_MIB
            good &= fine
            checks = round_.get("checks") or []
            rows.append([
                round_.get("name", "?"),
                round_.get("state", "?"),
                f"{ready or 0:.1f}",
                f"{whole:.1f}",
                f"{stopped.get('seconds', 0):.2f}",
                "now" if now else "drain",
                stopped.get("how", "?"),
                f"{sum(check.get('verdict') == 'pass' for check in checks)} of {len(checks)}",
                *(" ".join(map(str, level)) or "–" for level in (before, during, after)),
                "yes" if fine else f"NO: {round_.get('reason') or stopped.get('reason') or missing}",
            ])  # fmt: skip
            print(*rows[-1], sep="  ", flush=True)
    print(table(HEAD, rows))
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    print("all as it should be" if good else "NOT as it should be")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
