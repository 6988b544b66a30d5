"""Runs ``tuner`` as a user does: a process of its own, its own home, its own port."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

REAL = Path(__file__).parents[1] / "real"


def free_port() -> int:
    """A port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class User:
    """Somebody with a home of their own at a shell."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.port = free_port()
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("TUNER_")},
            "TUNER_HOME": str(home / "tuner"),
            "COLUMNS": "120",
        }

    def run(self, *words: str, status: int | None = 0, timeout: float = 90) -> subprocess.CompletedProcess[str]:
        """Runs ``tuner words``; fails when the exit status is another (None: any)."""
        done = subprocess.run(
            [sys.executable, "-m", "tuner", *words],
            env=self.environment,
            cwd=self.home,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        if status is not None:
            assert done.returncode == status, f"exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def json(self, *words: str, status: int | None = 0, timeout: float = 90) -> Any:
        """Runs ``tuner words --json``: standard output must be one JSON value and nothing else."""
        return json.loads(self.run(*words, "--json", status=status, timeout=timeout).stdout)

    def rehearse(self, script: str, *words: str, simulator: str = '{"speed": 0}') -> str:
        """What a script for a GPU machine (tests/real) prints on the stand-in; fails unless it ends well."""
        options = ("--sim", "--port", str(self.port), "--set", f"tuner.simulator={simulator}")
        done = subprocess.run(
            [sys.executable, str(REAL / script), *words, *options],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        assert self.servers() == []
        return done.stdout

    def simulate(self, *words: str, status: int | None = 0) -> Any:
        """One round on the stand-in, on this user's port, at full speed."""
        ours = ("--sim", "--set", f"port={self.port}", "--set", 'tuner.simulator={"speed": 0}')
        return self.json("run", *words, *ours, status=status)

    @contextmanager
    def starting(self, *words: str, fault: str) -> Iterator[subprocess.Popen[str]]:
        """A round that goes on while the body runs; entered once its server process is there."""
        switches = json.dumps({"speed": 0, "fault": fault})
        ours = ("--sim", "--set", f"port={self.port}", "--set", f"tuner.simulator={switches}")
        process = subprocess.Popen(
            [sys.executable, "-m", "tuner", "run", *words, *ours],
            env=self.environment,
            cwd=self.home,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        try:
            for line in process.stderr:
                if "loading weights" in line or "sizing pools" in line:
                    break
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            process.stderr.read()
            process.wait(30)

    def servers(self) -> list[psutil.Process]:
        """Living processes of stand-in servers on this user's port."""
        found = []
        for process in psutil.process_iter(["cmdline", "status"]):
            line = process.info["cmdline"] or []
            if "tuner.sim" in line and str(self.port) in line and process.info["status"] != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found
