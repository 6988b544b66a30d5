"""Provoked failures on a real server: what the doctor calls each, against what it should.

    python tests/real/failures.py --python PATH --model DIR [--wheels DIR] [--env NAME=VALUE ...] [--only NAME]

Every start is real and forced past the tuner's own refusals, so that it is SGLang that fails, and its log that is
read. Exit status 0 when every failure was named rightly and nothing was left behind.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from machine import Tuner, installed, options, recipe, smaller_card, table, vram_mib

PRESET = "qwen3.8-27b-r01"
TOLERANCE_MIB = 64

#: Name, flags, and the finding ids that are right, the first found must be one of them.
STARTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("fraction too low", ("mem_fraction_static=0.55",), ("slots-negative", "no-room-at-sizing")),
    ("fraction too high", ("mem_fraction_static=0.995",), ("oom-in-capture", "oom-while-serving")),
    ("ratio near zero", ("mamba_full_memory_ratio=0.0005",), ("slots-negative", "no-room-at-sizing")),
    (
        "unified memory with fp8 KV",
        ("enable_unified_memory=true", "kv_cache_dtype=fp8_e4m3"),
        ("flag-conflict", "kernel-crash"),
    ),
    ("wrong interpreter", ("python=/usr/bin/false",), ("module-missing",)),
    ("missing model", ("model_path=/no/such/model",), ("model-missing",)),
    # Gone since 0.5.12, and still in many guides.
    ("bad flag", ("hybrid_kvcache_ratio=0.5",), ("unknown-flag",)),
)


def first_finding(answer: Any) -> str:
    """The id that stands first, or what was said instead."""
    findings = (answer or {}).get("findings") or []
    return findings[0]["id"] if findings else f"none ({(answer or {}).get('reason') or (answer or {}).get('error')})"


def failed_start(tuner: Tuner, start: Sequence[str], flags: Sequence[str]) -> tuple[str, str]:
    """What a start with ``flags`` was called, and how it ended."""
    sets = [word for pair in flags for word in ("--set", pair)]
    _, answer = tuner("run", *start, *sets, "--force")
    tuner("stop", "--now")
    return first_finding(answer), str(answer.get("state") or answer.get("error"))


def second_server(tuner: Tuner, start: Sequence[str]) -> tuple[str, str]:
    """A second start while the first still loads."""
    first = tuner.begin("run", *start)
    while first.poll() is None and not tuner("status")[1].get("running"):
        time.sleep(0.2)
    _, answer = tuner("run", *start)
    first.wait()
    return first_finding(answer), str(answer.get("state"))


def scheduler_killed(tuner: Tuner) -> tuple[str, str]:
    """SIGKILL of the scheduler of the running server."""
    _, status = tuner("status")
    pid = (status.get("running") or {}).get("pid")
    children = subprocess.run(["pgrep", "-P", str(pid)], stdout=subprocess.PIPE, text=True, check=False).stdout.split()
    for child in children:
        if "scheduler" in Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8", errors="replace"):
            subprocess.run(["kill", f"-{signal.SIGKILL.value}", child], check=True)
    for _ in range(100):
        if not tuner("status")[1].get("running"):
            break
        time.sleep(0.5)
    _, answer = tuner("doctor")
    return first_finding(answer), "gone"


def metrics_off(tuner: Tuner, start: Sequence[str]) -> tuple[str, str]:
    """A server without ``--enable-metrics``."""
    _, answer = tuner("run", *start, "--set", "enable_metrics=false")
    _, found = tuner("doctor")
    ids = [finding["id"] for finding in found.get("findings", [])]
    tuner("stop", "--now")
    return ("metrics-off" if "metrics-off" in ids else f"none of {ids}"), str(answer.get("state"))


def api_key(tuner: Tuner, start: Sequence[str]) -> tuple[str, str]:
    """A server that wants a key, which the environment has: looks, checks and readings work."""
    tuner.environment["STORY_KEY"] = "not-a-secret-1234"
    _, answer = tuner("run", *start, "--set", "api_key=${STORY_KEY}")
    _, status = tuner("status")
    _, shown = tuner("show", str(answer.get("name")))
    tuner("stop", "--now")
    leaked = "not-a-secret" in json.dumps([answer, status, shown])
    locked = (status.get("readings") or {}).get("metrics") == "locked"
    return ("leaked" if leaked else "locked" if locked else "works"), str(answer.get("state"))


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    asked = parser.parse_args()
    rows: list[list[object]] = []
    good = True

    def tried(name: str, wanted: Sequence[str], attempt: Callable[[], tuple[str, str]]) -> None:
        nonlocal good
        if asked.only and name not in asked.only:
            return
        began = time.monotonic()
        found, ended = attempt()
        right = found in wanted
        good &= right
        rows.append(
            [name, " or ".join(wanted), found, ended, f"{time.monotonic() - began:.0f} s", "yes" if right else "NO"]
        )
        print(f"{name}: {found} ({ended})", flush=True)

    before = vram_mib()
    with (
        tempfile.TemporaryDirectory() as folder,
        installed(asked) as tuner,
        smaller_card(asked.python, asked.card_gib),
    ):
        start = recipe(tuner, asked, PRESET, Path(folder) / "r01.toml")
        for name, flags, wanted in STARTS:
            tried(name, wanted, lambda flags=flags: failed_start(tuner, start, flags))
        tried("second server", ("double-start",), lambda: second_server(tuner, start))
        tried("SIGKILL of the scheduler", ("silent-end", "host-memory-kill"), lambda: scheduler_killed(tuner))
        tuner("stop", "--now")
        tried("metrics off", ("metrics-off",), lambda: metrics_off(tuner, start))
        tried("API key set", ("works",), lambda: api_key(tuner, start))
    after = vram_mib()
    print(table(["failure", "should be called", "called", "ended", "took", "right"], rows))
    missing = max((b - a for a, b in zip(before, after, strict=True)), default=0)
    if missing > TOLERANCE_MIB:
        good = False
        print(f"{missing} MiB did not come back")
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
