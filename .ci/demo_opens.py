"""Runs the README's demo command in a fresh clone with an empty home, in a terminal, until the demo is on screen."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

import pyte

ROWS, COLUMNS = 40, 120
LIMIT_S = 420
WANTED = ("SIMULATED", "KV")


def main() -> None:
    command = sys.argv[1]
    with tempfile.TemporaryDirectory() as folder:
        clone, home = Path(folder) / "clone", Path(folder) / "home"
        home.mkdir()
        subprocess.run(["git", "clone", "-q", str(Path.cwd()), str(clone)], check=True)
        ended = _watch(command, clone, home)
    sys.exit(ended)


def _watch(command: str, clone: Path, home: Path) -> str | None:
    """Runs ``command`` in a pseudo terminal; None when the demo came up and left, else what went wrong."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(clone)
        environment = {**os.environ, "HOME": str(home), "TUNER_HOME": str(home / "tuner"), "TERM": "xterm-256color"}
        os.execvpe("bash", ["bash", "-euo", "pipefail", "-c", command], environment)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    deadline = time.monotonic() + LIMIT_S
    shown = False
    try:
        while time.monotonic() < deadline:
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    data = os.read(terminal, 65536)
                except OSError:
                    break
                if not data:
                    break
                stream.feed(data)
            if all(word in "\n".join(screen.display) for word in WANTED):
                shown = True
                break
    finally:
        picture = "\n".join(line.rstrip() for line in screen.display).strip()
        tuner = str(clone / ".venv" / "bin" / "tuner")
        subprocess.run([tuner, "stop"], env={**os.environ, "TUNER_HOME": str(home / "tuner")}, check=False)
        os.kill(pid, signal.SIGHUP)
        time.sleep(1)
    print(picture)  # noqa: T201
    return None if shown else "the demo did not come up; the screen above is the last one"


if __name__ == "__main__":
    main()
