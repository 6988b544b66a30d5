"""A simulator process, with a client of it and what its log said."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tuner.probes.http import ServerClient
from tuner.serverlog.model import BootFacts
from tuner.serverlog.reader import read_boot

ROOT = Path(__file__).parents[3]


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@contextmanager
def simulator(*switches: str) -> Iterator[ServerClient]:
    with started(*switches) as (client, _):
        yield client


@contextmanager
def started(*switches: str) -> Iterator[tuple[ServerClient, BootFacts]]:
    port = free_port()
    command = [
        sys.executable, "-m", "tuner.sim", "--model-path", "hybrid-tiny", "--sim-shape", "hybrid-tiny",
        "--host", "127.0.0.1", "--port", str(port), "--mem-fraction-static", "0.5", "--max-running-requests", "8",
        "--reasoning-parser", "qwen3", "--tool-call-parser", "qwen3_coder",
        "--sim-speed", "0", "--sim-free-gib", "24", *switches,
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        assert server.stdout is not None
        lines = []
        for line in server.stdout:
            lines.append(line)
            if "ready to roll" in line:
                break
        else:
            raise AssertionError("".join(lines[-5:]))
        drain = threading.Thread(target=server.stdout.read, daemon=True)
        drain.start()
        client = ServerClient(f"http://127.0.0.1:{port}")
        try:
            yield client, read_boot("".join(lines))
        finally:
            client.close()
            server.terminate()
            server.wait(30)
            drain.join()
