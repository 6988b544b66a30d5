"""What the app costs in a terminal of 120 by 40: ``python tests/bench/bench_app.py [--peer COMMAND ...]``.

The app alone is counted; the stand-in server runs in a process of its own, under a steady load, and is polled at 1 Hz.
With ``--peer "sgtop --port {port}"`` other programs are measured in the same run, on the same server. With
``--port PORT`` the server is the one that serves there already, started by the tuner in the home of ``TUNER_HOME``.
Limits: first paint 1.0 s, memory 60 MB, 3 % of a core, 5 kB/s to the terminal, slider to preview 30 ms at p95.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

COLUMNS, ROWS = 120, 40
SETTLE_S = 6.0
#: Keys pressed on the ratio slider, there and back.
MOVES = 60
RIGHT, LEFT = b"\x1b[C", b"\x1b[D"
#: What a terminal answers to the questions that Textual asks, so that nothing waits for a timeout.
ANSWERS = {
    b"\x1b[c": b"\x1b[?62;22c",
    b"\x1b[6n": b"\x1b[1;1R",
    b"\x1b[?2026$p": b"\x1b[?2026;2$y",
    b"\x1b[?2048$p": b"\x1b[?2048;0$y",
}
COUNT = re.compile(rb"\d{2,3},\d{3}")
LIMITS = {"first_paint_s": 1.0, "rss_mb": 60.0, "cpu_percent": 3.0, "kb_per_s": 5.0, "slider_p95_ms": 30.0}


class Screen:
    """A program in a pseudo terminal; its output is counted, not drawn."""

    def __init__(self, argv: list[str], environment: dict[str, str]) -> None:
        self.began = time.monotonic()
        self.written = 0
        self.first: float | None = None
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], argv, {**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"})
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.process = psutil.Process(self.pid)

    def read(self, seconds: float) -> bytes:
        """One piece of output, or nothing after ``seconds``."""
        if not select.select([self.fd], [], [], seconds)[0]:
            return b""
        data = os.read(self.fd, 65536)
        for question, answer in ANSWERS.items():
            if question in data:
                os.write(self.fd, answer)
        self.written += len(data)
        # The first screen is more than the switches of modes that come before it.
        if self.first is None and self.written > 2500:
            self.first = time.monotonic() - self.began
        return data

    def watch(self, seconds: float) -> None:
        """Lets it run."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self.read(min(0.05, left))

    def press(self, key: bytes) -> float:
        """Milliseconds from a key to the first count of the preview that comes back."""
        self.watch(0.1)
        began = time.monotonic()
        os.write(self.fd, key)
        while time.monotonic() - began < 2.0:
            if COUNT.search(self.read(0.2)):
                return (time.monotonic() - began) * 1000
        raise SystemExit("The preview did not answer to a key.")

    def cpu_s(self) -> float:
        """Seconds of a core used so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def end(self) -> None:
        """Ends it."""
        os.kill(self.pid, signal.SIGTERM)
        os.waitpid(self.pid, 0)
        os.close(self.fd)


def load(port: int, over: threading.Event) -> None:
    """Two requests a second or so, with a shared beginning, until told to stop."""
    number = 0
    while not over.wait(0.4):
        number += 1
        body = {"text": "The same beginning. " * 200 + str(number), "sampling_params": {"max_new_tokens": 16}}
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            urllib.request.urlopen(request, timeout=10).read()
        except (urllib.error.URLError, TimeoutError):
            continue


def at_rest(screen: Screen, watch_s: float) -> dict[str, float]:
    """What an open program costs while nobody touches it."""
    screen.watch(SETTLE_S)
    cpu, written = screen.cpu_s(), screen.written
    screen.watch(watch_s)
    return {
        "first_paint_s": screen.first or float("nan"),
        "rss_mb": screen.process.memory_info().rss / 1e6,
        "cpu_percent": 100 * (screen.cpu_s() - cpu) / watch_s,
        "kb_per_s": (screen.written - written) / watch_s / 1000,
    }


def measure(environment: dict[str, str], watch_s: float) -> dict[str, float]:
    """One opening of the app on the running server."""
    screen = Screen([sys.executable, "-m", "tuner"], environment)
    figures = at_rest(screen, watch_s)
    times = [screen.press(RIGHT if move % 2 else LEFT) for move in range(MOVES)]
    figures["slider_p50_ms"] = statistics.median(times)
    figures["slider_p95_ms"] = statistics.quantiles(times, n=20)[-1]
    screen.end()
    return figures


def measure_peer(words: list[str], environment: dict[str, str], watch_s: float) -> dict[str, float]:
    """One opening of another program."""
    screen = Screen(words, environment)
    figures = at_rest(screen, watch_s)
    screen.end()
    return figures


@contextmanager
def standing(port: int | None) -> Iterator[tuple[dict[str, str], int]]:
    """The environment and the port of a running server: the one on ``port``, or a stand-in that is stopped again."""
    if port is not None:
        yield dict(os.environ), port
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        free: int = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as home:
        environment = {**os.environ, "TUNER_HOME": home}
        tuner = [sys.executable, "-m", "tuner"]
        start = [*tuner, "run", "demo", "--set", f"port={free}"]
        subprocess.run(start, env=environment, check=True, capture_output=True)
        try:
            yield environment, free
        finally:
            subprocess.run([*tuner, "stop"], env=environment, check=True, capture_output=True)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=3)
    options.add_argument("--watch", type=float, default=20.0, help="seconds of watching at rest, each run")
    options.add_argument(
        "--peer", action="append", default=[], metavar="COMMAND", help="another program; {port} is the server's"
    )
    options.add_argument("--port", type=int, help="on the server that serves there, not on the stand-in")
    asked = options.parse_args()
    with standing(asked.port) as (environment, port):
        peers = {command: shlex.split(command.replace("{port}", str(port))) for command in asked.peer}
        found: dict[str, list[dict[str, float]]] = {"tuner": [], **{command: [] for command in peers}}
        over = threading.Event()
        worker = threading.Thread(target=load, args=(port, over))
        worker.start()
        try:
            # In turn, so that whatever else the machine does meets all of them alike.
            for _ in range(asked.runs):
                found["tuner"].append(measure(environment, asked.watch))
                for command, words in peers.items():
                    found[command].append(measure_peer(words, environment, asked.watch))
        finally:
            over.set()
            worker.join()
    missed = 0
    for command, runs in found.items():
        print(f"{command}: the best of {asked.runs}, then all")
        for name in runs[0]:
            best = min(run[name] for run in runs)
            limit = LIMITS.get(name) if command == "tuner" else None
            missed += limit is not None and best > limit
            told = "" if limit is None else f"  limit {limit:g}{'' if best <= limit else '  MISSED'}"
            print(f"  {name:<16}{best:8.2f}  {', '.join(f'{run[name]:.2f}' for run in runs)}{told}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
