"""The faults of the stand-in that kill or spoil a server are named from the log that it writes."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from tuner.doctor import Watched, diagnose_log, diagnose_readings
from tuner.findings import Finding, FindingId, Severity
from tuner.metrics import ReadingsWindow, parse_metrics
from tuner.probes.http import ServerClient
from tuner.serverlog.reader import BootReader

ROOT = Path(__file__).parents[3]
READY = "ready to roll"


class Server:
    """A stand-in with a fault, and what it has printed."""

    def __init__(self, fault: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        command = [
            sys.executable, "-m", "tuner.sim", "--model-path", "hybrid-tiny", "--sim-shape", "hybrid-tiny",
            "--host", "127.0.0.1", "--port", str(self.port), "--mem-fraction-static", "0.5",
            "--max-running-requests", "8", "--enable-metrics", "--sim-speed", "0", "--sim-free-gib", "24",
            "--sim-fault", fault,
        ]  # fmt: skip
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.lines: list[str] = []

    def until(self, text: str = "") -> None:
        """Reads until a line has ``text`` in it, or to the end."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if text and text in line:
                return
        assert not text, "".join(self.lines[-5:])
        self.process.wait(30)

    def ask(self, tokens: int) -> None:
        """A request that the server may not live to answer."""
        body = {"input_ids": list(range(tokens)), "sampling_params": {"max_new_tokens": 4}}
        try:
            httpx.post(f"http://127.0.0.1:{self.port}/generate", json=body, timeout=60)
        except httpx.HTTPError:
            return

    def diagnosed(self, **known: object) -> tuple[Finding, ...]:
        reader = BootReader()
        reader.feed("".join(self.lines))
        reader.close()
        return diagnose_log(reader.facts, reader.tail, **known)


def waiting(loads: object) -> bool:
    """Whether a request is with the server."""
    assert isinstance(loads, dict)
    return any(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads["loads"])


@contextmanager
def server(fault: str) -> Iterator[Server]:
    running = Server(fault)
    try:
        yield running
    finally:
        running.process.kill()
        running.process.wait(30)
        assert running.process.stdout is not None
        running.process.stdout.close()


@pytest.mark.parametrize(
    ("fault", "expected"),
    [
        ("refuse-at-sizing", {FindingId.SLOTS_NEGATIVE, FindingId.NO_ROOM_AT_SIZING}),
        ("oom-in-capture", {FindingId.OOM_IN_CAPTURE}),
        ("kernel-crash", {FindingId.KERNEL_CRASH}),
        ("die-after-ready:0", {FindingId.KERNEL_CRASH}),
    ],
)
def test_a_death_that_the_log_tells_is_named_from_it_alone(fault, expected):
    with server(fault) as running:
        running.until()
        (found,) = running.diagnosed()
    assert found.id in expected
    assert found.severity is Severity.FATAL


@pytest.mark.parametrize("fault", ["die-at:Memory pool end", "die-silently:0"])
def test_a_kill_without_a_word_is_told_as_one(fault):
    with server(fault) as running:
        running.until()
        (found,) = running.diagnosed(died=True)
    assert found.id is FindingId.SILENT_END


def test_memory_that_runs_out_under_a_prompt_wants_a_lower_fraction():
    with server("oom-while-serving:2048") as running:
        running.until(READY)
        asking = threading.Thread(target=running.ask, args=(4096,))
        asking.start()
        running.until()
        asking.join()
        (found,) = running.diagnosed()
    assert found.id is FindingId.OOM_WHILE_SERVING
    assert found.flags["mem_fraction_static"] < 0.5


@pytest.mark.parametrize(
    ("phase", "last_line"), [("sizing", "Load weight end"), ("capturing", "Memory pool end"), ("warming", "Uvicorn")]
)
def test_a_start_that_stands_still_is_told_after_a_while(phase, last_line):
    with server(f"hang:{phase}") as running:
        running.until(last_line)
        assert FindingId.HANG not in [f.id for f in running.diagnosed(quiet_s=60.0)]
        assert FindingId.HANG in [f.id for f in running.diagnosed(quiet_s=1_800.0)]


def test_a_server_that_answers_nothing_any_more_is_told_from_its_readings():
    with server("hang-while-serving") as running:
        running.until(READY)
        asking = threading.Thread(target=running.ask, args=(64,), daemon=True)
        asking.start()
        client, window = ServerClient(f"http://127.0.0.1:{running.port}"), ReadingsWindow()
        while not waiting(loads := client.loads()):
            pass
        looks = [window.add(at, parse_metrics(client.metrics()), loads) for at in (0.0, 70.0, 140.0)]
        client.close()
        assert FindingId.HANG in [f.id for f in diagnose_readings(Watched(looks))]
        assert FindingId.HANG not in [f.id for f in running.diagnosed()]
    asking.join(30)
