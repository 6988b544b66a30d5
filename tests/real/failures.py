"""Provoked failures on a real server: what the tuner says before the start, and what the doctor calls the death.

    python tests/real/failures.py --python PATH --model DIR [--wheels DIR] [--env NAME=VALUE ...] [--only NAME]

A start that the tuner refuses is made again with ``--force``, so that it is SGLang that fails, and its log that is
read: by the round, and by ``tuner doctor`` after it. What it refuses even then (another SGLang is on the machine) is
started by the script that it exports. Exit status 0 when everything was named rightly and nothing was left behind.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from machine import TOLERANCE_MIB, Tuner, installed, missing_mib, options, recipe, smaller_card, table, vram_mib

PRESET = "qwen3.8-27b-r01"
WRONG_PYTHON = "{folder}/python-without-sglang"

#: Name, what is set, and the finding ids that are right, before the start as after it.
STARTS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("fraction too low", ("mem_fraction_static=0.55",), ("slots-negative",)),
    # Where the decode graphs still find room, it is the first prefill that does not.
    ("fraction too high", ("mem_fraction_static=0.995",), ("oom-in-capture", "oom-while-serving")),
    ("ratio near zero", ("mamba_full_memory_ratio=0.0005",), ("slots-negative",)),
    # With any other attention backend the argument parser refuses it before a kernel can fail.
    (
        "unified memory with fp8 KV",
        ("enable_unified_memory=true", "kv_cache_dtype=fp8_e4m3", "attention_backend=triton"),
        ("kernel-crash",),
    ),
    ("wrong interpreter", (f"python={WRONG_PYTHON}",), ("module-missing",)),
    # The stand-in is any model that the recipe has a shape for.
    ("missing model", ("model_path=/no/such/model", "tuner.model_shape="), ("model-missing",)),
    # There until 0.5.12, and still in many guides.
    ("bad flag", ("enable_piecewise_cuda_graph=true",), ("unknown-flag",)),
)
SECOND_SERVER, SCHEDULER, METRICS, KEY = "second server", "SIGKILL of the scheduler", "metrics off", "API key set"
NAMES = (*(name for name, _, _ in STARTS), SECOND_SERVER, SCHEDULER, METRICS, KEY)


class Seen(NamedTuple):
    """One failure as it was told: before a start, by its round, by the doctor; "" where there is nothing to tell."""

    refused: str = ""
    round: str = ""
    doctor: str = ""
    ended: str = ""


def first_finding(answer: Any) -> str:
    """The id of the first finding, worst first; or what was said instead."""
    findings = sorted((answer or {}).get("findings") or [], key=lambda finding: finding["severity"] != "fatal")
    return findings[0]["id"] if findings else f"none ({(answer or {}).get('reason') or (answer or {}).get('error')})"


def words(pairs: Sequence[str]) -> list[str]:
    return [word for pair in pairs for word in ("--set", pair)]


def stop(tuner: Tuner) -> None:
    if tuner("status")[1].get("running"):
        tuner("stop", "--now")


def failed_start(tuner: Tuner, start: Sequence[str], flags: Sequence[str]) -> Seen:
    """A start that dies; refused first, where the tuner knows better."""
    refused = ""
    _, answer = tuner("run", *start, *words(flags))
    if answer.get("state") == "refused":
        refused = first_finding(answer)
        _, answer = tuner("run", *start, *words(flags), "--force")
        if answer.get("state") == "refused":
            return started_by_script(tuner, refused, answer["name"])
    _, told = tuner("doctor")
    if answer.get("state") != "failed":
        stop(tuner)
    return Seen(refused, first_finding(answer), first_finding(told), str(answer.get("state") or answer.get("error")))


def started_by_script(tuner: Tuner, refused: str, round_: str) -> Seen:
    """The start of a refused round by its exported script, which looks at no card; the doctor reads the log."""
    with tempfile.TemporaryDirectory() as folder:
        script = str(Path(folder) / "start.sh")
        tuner("export", round_, "--format", "sh", "-o", script)
        done = subprocess.run(
            ["bash", script],
            env={**tuner.environment, "XDG_STATE_HOME": folder},
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            check=False,
        )
        log = done.stdout.partition("Log: ")[2].strip()
        _, told = tuner("doctor", "--log", log)
    return Seen(refused, doctor=first_finding(told), ended=f"exit {done.returncode}")


def second_server(tuner: Tuner, start: Sequence[str]) -> Seen:
    """A second start while the first still loads; ``--force`` does not change that. Ctrl-C then ends the first."""
    # The stand-in is ready in no time.
    slow = words(['tuner.simulator={"speed": 0, "fault": "bind-late:60"}']) if "python=simulator" in start else []
    first = tuner.begin("run", *start, *slow)
    while first.poll() is None and (tuner("status")[1].get("running") or {}).get("state") != "starting":
        time.sleep(0.2)
    ids = []
    for force in ((), ("--force",)):
        _, answer = tuner("run", *start, *force)
        ids.append(first_finding(answer) if answer.get("state") == "refused" else str(answer.get("state")))
    loads = first.poll() is None
    first.send_signal(signal.SIGINT)
    answer = json.loads(first.communicate()[0])
    ended = answer.get("state") if loads and not tuner("status")[1].get("running") else "not as it should be"
    stop(tuner)
    return Seen(refused=ids[0] if len(set(ids)) == 1 else str(ids), ended=f"the first: {ended}")


def scheduler_killed(tuner: Tuner, start: Sequence[str]) -> Seen:
    """SIGKILL of the scheduler of a server that serves."""
    tuner("run", *start)
    pid = (tuner("status")[1].get("running") or {}).get("pid")
    # The children of each of its threads.
    files = Path(f"/proc/{pid}/task").glob("*/children")
    children = [child for file in files for child in file.read_text(encoding="ascii").split()]
    schedulers = [child for child in children if b"scheduler" in Path(f"/proc/{child}/cmdline").read_bytes()]
    for child in schedulers:
        os.kill(int(child), signal.SIGKILL)
    for _ in range(100):
        if not tuner("status")[1].get("running"):
            break
        time.sleep(0.5)
    ended = "gone" if schedulers and not tuner("status")[1].get("running") else f"killed {schedulers}, runs on"
    _, told = tuner("doctor")
    stop(tuner)
    return Seen(doctor=first_finding(told), ended=ended)


def metrics_off(tuner: Tuner, start: Sequence[str]) -> Seen:
    """A server without ``--enable-metrics``."""
    _, answer = tuner("run", *start, "--set", "enable_metrics=false")
    _, found = tuner("doctor")
    ids = [finding["id"] for finding in found.get("findings", [])]
    stop(tuner)
    return Seen(doctor="metrics-off" if "metrics-off" in ids else f"none of {ids}", ended=str(answer.get("state")))


def api_key(tuner: Tuner, start: Sequence[str]) -> Seen:
    """A server that wants a key, which the environment has: looks, checks and readings work, and no key is shown."""
    tuner.environment["STORY_KEY"] = "not-a-secret-1234"
    _, answer = tuner("run", *start, "--set", "api_key=${STORY_KEY}")
    _, status = tuner("status")
    _, shown = tuner("show", str(answer.get("name")))
    without = {name: value for name, value in tuner.environment.items() if name != "STORY_KEY"}
    with_key, tuner.environment = tuner.environment, without
    _, locked_out = tuner("doctor")
    tuner.environment = with_key
    stop(tuner)
    leaked = "not-a-secret" in json.dumps([answer, status, shown, locked_out])
    locked = (status.get("readings") or {}).get("metrics") == "locked"
    ids = [finding["id"] for finding in locked_out.get("findings", [])]
    return Seen(
        round="leaked" if leaked else "locked" if locked else "works",
        doctor="secret-missing" if "secret-missing" in ids else f"none of {ids}",
        ended=str(answer.get("state")),
    )


#: What is right for the others: a server that is up has no round that failed.
OTHERS: tuple[tuple[str, Callable[[Tuner, Sequence[str]], Seen], tuple[str, ...]], ...] = (
    (SECOND_SERVER, second_server, ("double-start",)),
    (SCHEDULER, scheduler_killed, ("host-memory-kill", "silent-end")),
    (METRICS, metrics_off, ("metrics-off",)),
    (KEY, api_key, ("works", "secret-missing")),
)


def right(name: str, seen: Seen, wanted: Sequence[str]) -> bool:
    """Whether a failure was named as it should be, wherever it was named."""
    told = [one for one in (seen.refused, seen.round, seen.doctor) if one]
    ends = {
        "failed": seen.round and seen.doctor,
        "verified": seen.doctor,
        # A model with random weights passes no check of its words.
        "unverified": seen.doctor,
        "gone": seen.doctor,
        "the first: aborted": True,
    }
    ended = seen.refused and seen.doctor if seen.ended.startswith("exit ") else ends.get(seen.ended)
    dies = name in {start for start, _, _ in STARTS}
    return (
        bool(told and ended)
        and all(one in wanted for one in told)
        and not (dies and seen.ended in ("verified", "unverified"))
    )


def main() -> int:
    parser = options(__doc__ or "")
    parser.add_argument("--only", action="append", default=[], choices=NAMES, metavar="NAME")
    asked = parser.parse_args()
    rows: list[list[object]] = []
    good = True
    before = vram_mib(asked.gpu)
    with (
        tempfile.TemporaryDirectory() as folder,
        installed(asked) as tuner,
        smaller_card(asked),
    ):
        wrong = Path(WRONG_PYTHON.format(folder=folder))
        wrong.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n', encoding="utf-8")
        wrong.chmod(0o755)
        start = recipe(tuner, asked, PRESET, Path(folder) / "r01.toml")
        tries: list[tuple[str, Callable[[Tuner, Sequence[str]], Seen], Sequence[str]]] = [
            (name, partial(failed_start, flags=[flag.format(folder=folder) for flag in flags]), wanted)
            for name, flags, wanted in STARTS
        ]
        for name, attempt, wanted in (*tries, *OTHERS):
            if asked.only and name not in asked.only:
                continue
            began = time.monotonic()
            seen = attempt(tuner, start)
            good &= (fine := right(name, seen, wanted))
            took = f"{time.monotonic() - began:.0f} s"
            rows.append([name, " or ".join(wanted), *(one or "–" for one in seen), took, "yes" if fine else "NO"])
            print(f"{name}: {seen} {'' if fine else 'WRONG'}".rstrip(), flush=True)
    after = vram_mib(asked.gpu)
    head = [
        "failure",
        "should be called",
        "before the start",
        "by the round",
        "by the doctor",
        "ended",
        "took",
        "right",
    ]
    print(table(head, rows))
    missing = missing_mib(before, after)
    if missing > TOLERANCE_MIB:
        good = False
        print(f"{missing} MiB did not come back")
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1), encoding="utf-8")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
