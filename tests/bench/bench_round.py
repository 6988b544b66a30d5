"""What a round costs beside the server's start and the checks: ``python tests/bench/bench_round.py [--rounds 5]``.

Rounds on the stand-in, by the command line, in a home of their own. A prober asks ``/health`` all the time, so the
moment of the server's first answer is not the tuner's own word. Limits: from that answer to the first check 0.5 s,
the tuner's share of a round (all but the server's start, our warm-up requests and the checks) 1 s, its own start as a
program included; a stop of a server that ignores everything within the bound that is stated. On a busy machine the
best round counts, and the CPU time tells what the share would be on an idle one.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx

from tuner.paths import Home
from tuner.server.ports import port_free
from tuner.session.session import Session

FIRST_CHECK_S = 0.5
SHARE_S = 1.0


class Prober:
    """Asks a server for its health until it says 200."""

    def __init__(self, port: int) -> None:
        self.first_answer = 0.0
        self._url = f"http://127.0.0.1:{port}/health"
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with httpx.Client(trust_env=False, timeout=2.0) as client:
            while not self._over.is_set():
                try:
                    if client.get(self._url).status_code == 200:
                        self.first_answer = time.time()
                        return
                except httpx.HTTPError:
                    pass
                self._over.wait(0.01)

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class Bench:
    """A home and a port for the rounds."""

    def __init__(self, folder: Path, port: int) -> None:
        self.home = Home.at(folder)
        self.port = port
        self.environment = {**os.environ, "TUNER_HOME": str(folder)}

    def tuner(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "tuner", *words]

    def round(self, fault: str = "") -> dict[str, Any]:
        """One round as a whole program: its JSON and the moments of it, Unix time."""
        switches = json.dumps({"speed": 0, **({"fault": fault} if fault else {})})
        words = ("run", "--sim", "--set", f"port={self.port}", "--set", f"tuner.simulator={switches}")
        prober = Prober(self.port)
        cpu_before = _cpu_s()
        began = time.time()
        with subprocess.Popen(
            self.tuner(*words), env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            first_check = 0.0
            for line in process.stderr:
                if line.lstrip().startswith(("pass:", "fail:", "cannot")):
                    first_check = first_check or time.time()
            process.wait()
        ended = time.time()
        cpu = _cpu_s() - cpu_before
        prober.close()
        session = Session(self.home, self.environment)
        try:
            running, kept = session.running(self.port), session.history.list(limit=1)[0]
            spawned = running.handle.started_at if running else 0.0
        finally:
            session.close()
        checks = sum(result.seconds for result in kept.checks)
        first = kept.checks[0].seconds if kept.checks else 0.0
        return {
            "state": str(kept.state),
            "whole": ended - began,
            "to spawn": spawned - began,
            "server": prober.first_answer - spawned,
            "noticed": spawned + (kept.ready_seconds or 0.0) - prober.first_answer,
            "to first check": first_check - first - prober.first_answer,
            "checks": checks,
            "CPU of tuner": cpu,
            "share": (ended - began) - (prober.first_answer - spawned) - checks,
        }

    def stop(self, *words: str) -> tuple[float, dict[str, Any]]:
        began = time.time()
        done = subprocess.run(
            self.tuner("stop", "--port", str(self.port), "--json", *words),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return time.time() - began, json.loads(done.stdout)


def _cpu_s() -> float:
    """CPU seconds of ended children: the tuners, not their servers, which live on."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def free_port() -> int:
    return next(port for port in range(24000, 31000) if port_free("127.0.0.1", port))


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--worst-stop", action="store_true", help="also stop a server that ignores everything: 2 min")
    options = parser.parse_args()
    slow = False
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder) / "home", free_port())
        rows = []
        for _ in range(options.rounds):
            rows.append(bench.round())
            bench.stop("--now")
        print("seconds, by round:  " + "  ".join(f"{name:>14}" for name in rows[0] if name != "state"))
        for number, row in enumerate(rows, start=1):
            print(f"  r{number} {row['state']:14}  " + "  ".join(f"{v:14.3f}" for k, v in row.items() if k != "state"))
        for name, limit in (("to first check", FIRST_CHECK_S), ("share", SHARE_S)):
            best, worst = min(row[name] for row in rows), max(row[name] for row in rows)
            # Other work on the machine only makes it longer.
            slow |= best >= limit
            print(
                f"{name:16} best {best:.3f} s, worst {worst:.3f} s, limit {limit} s  {'ok' if best < limit else 'SLOW'}"
            )
        if options.worst_stop:
            for words in (("--now",), ()):
                bench.round("ignore-signals")
                session = Session(bench.home, bench.environment)
                bound = session.stop_bound_s(drain=not words)
                session.close()
                whole, outcome = bench.stop(*words)
                slow |= not outcome["stopped"] or outcome["seconds"] > bound
                print(
                    f"stop {' '.join(words) or 'with drain':10} of a server that ignores everything: {whole:.1f} s, "
                    f"stated bound {bound:.1f} s; {outcome['how']}; left {outcome['left_processes']}, port free "
                    f"{outcome['port_free']}, VRAM missing {outcome['vram_missing_mib']}"
                )
    return int(slow)


if __name__ == "__main__":
    sys.exit(main())
