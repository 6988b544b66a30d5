"""Starts and stops a real server again and again, by the command line only, and prints what it took.

    python tests/real/restarts.py RECIPE [--python PATH] [--times 10] [--set KEY=VALUE ...]

For a GPU machine. Each time: VRAM before, ``tuner run``, ``tuner stop`` (every other time with ``--now``), VRAM after.
The first time a second ``tuner run`` is tried while the first still loads, and must be refused. Exit status 0 when
every start was ready, every stop left nothing, VRAM came back each time and the second start was refused. Checks that
a model does not pass (one with random weights answers nonsense) do not count here; they are shown.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from typing import Any

#: VRAM of an idle card moves by this much.
TOLERANCE_MIB = 64


def tuner(*words: str) -> tuple[int, Any]:
    """Exit status and JSON answer of ``tuner words``."""
    done = subprocess.run(
        [sys.executable, "-m", "tuner", *words, "--json"], stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        return done.returncode, json.loads(done.stdout)
    except json.JSONDecodeError:
        return done.returncode, {"error": done.stdout.strip() or "no answer"}


def vram_mib() -> list[int]:
    """Used memory of each GPU, from nvidia-smi: not the tuner's own reading. Empty on a machine without it."""
    query = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(query, stdout=subprocess.PIPE, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return []
    return [int(line) for line in done.stdout.split()]


def second_start_is_refused(run: list[str]) -> tuple[bool, Any]:
    """Starts one, tries another while it loads; whether the second was refused, and the first's round."""
    first = subprocess.Popen([sys.executable, "-m", "tuner", *run, "--json"], stdout=subprocess.PIPE, text=True)
    assert first.stdout is not None
    while first.poll() is None:
        _, status = tuner("status")
        if status.get("running"):
            break
        time.sleep(0.2)
    loading = status.get("running") or {}
    _, second = tuner(*run)
    answer = json.loads(first.stdout.read())
    first.wait()
    refused = second.get("state") == "refused"
    print(f"second start while the first was {loading.get('state')}: {second.get('state')}: {second.get('reason')}")
    return refused and loading.get("state") == "starting", answer


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--python", help="interpreter that has SGLang")
    parser.add_argument("--sim", action="store_true", help="try this script on the stand-in server")
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    run = ["run", options.recipe, *(["--python", options.python] if options.python else [])]
    run += ["--sim"] if options.sim else []
    run += [word for assignment in options.set for word in ("--set", assignment)]
    good = True
    lines = []
    for number in range(1, options.times + 1):
        before = vram_mib()
        began = time.monotonic()
        if number == 1:
            refused, round_ = second_start_is_refused(run)
            good &= refused
        else:
            _, round_ = tuner(*run)
        whole = time.monotonic() - began
        during = vram_mib()
        now = number % 2 == 0
        _, stopped = tuner("stop", *(["--now"] if now else []))
        after = vram_mib()
        ready = round_.get("ready_seconds")
        missing = max((b - a for a, b in zip(before, after, strict=True)), default=0)
        fine = ready is not None and stopped.get("stopped") is True and missing <= TOLERANCE_MIB
        good &= fine
        checks = round_.get("checks") or []
        passed = sum(check.get("verdict") == "pass" for check in checks)
        lines.append(
            f"{round_.get('name', '?'):>5} {round_.get('state', '?'):>10} {ready or 0:8.1f} {whole:8.1f} "
            f"{stopped.get('seconds', 0):7.2f} {'now' if now else 'drain':>6} {stopped.get('how', '?'):>10} "
            f"{passed}/{len(checks)}  {_mib(before):>14} {_mib(during):>14} {_mib(after):>14}  "
            f"{'ok' if fine else 'WRONG: ' + str(round_.get('reason') or stopped.get('reason') or missing)}"
        )
    print(
        f"{'round':>5} {'state':>10} {'ready s':>8} {'whole s':>8} {'stop s':>7} {'stop':>6} {'how':>10} checks "
        f"{'MiB before':>12} {'during':>14} {'after':>14}"
    )
    print("\n".join(lines))
    print("all as it should be" if good else "NOT as it should be")
    return 0 if good else 1


def _mib(values: list[int]) -> str:
    return " ".join(map(str, values)) or "-"


if __name__ == "__main__":
    sys.exit(main())
