"""A real terminal for a real process: a pseudo terminal whose screen can be read, typed at and clicked."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence

import pyte


class Terminal:
    """Runs ``argv`` in a terminal of ``columns`` by ``rows``."""

    def __init__(
        self, argv: Sequence[str], environment: Mapping[str, str], cwd: str, columns: int = 120, rows: int = 40
    ) -> None:
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.execvpe(argv[0], list(argv), {**environment, "TERM": "xterm-256color", "COLORTERM": "truecolor"})
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.exit_status: int | None = None

    @property
    def lines(self) -> list[str]:
        """The screen, line by line."""
        return [line.rstrip() for line in self.screen.display]

    @property
    def text(self) -> str:
        """The screen as one text."""
        return "\n".join(self.lines)

    def pump(self, seconds: float = 0.05) -> None:
        """Takes in what the process wrote until ``seconds`` of silence; an app that never falls silent is left too."""
        end = time.monotonic() + max(1.0, seconds)
        while time.monotonic() < end and select.select([self._fd], [], [], seconds)[0]:
            try:
                data = os.read(self._fd, 65536)
            except OSError:
                return
            if not data:
                return
            self._stream.feed(data)

    def wait_for(self, what: str | Callable[[str], bool], seconds: float = 60.0) -> str:
        """Waits until ``what`` is on the screen; fails with the screen when it does not come."""
        seen = what if callable(what) else lambda text: what in text
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.pump()
            if seen(self.text):
                return self.text
        raise AssertionError(f"{what!r} did not come within {seconds} s; the screen:\n{self.text}")

    def type(self, keys: str) -> None:
        """Sends keys as a terminal does ("\\x12" is ctrl+r)."""
        os.write(self._fd, keys.encode())

    def find(self, word: str) -> tuple[int, int]:
        """Column and row (from 1) of the first ``word`` on the screen."""
        for row, line in enumerate(self.lines, start=1):
            if word in line:
                return line.index(word) + 1, row
        raise AssertionError(f"{word!r} is not on the screen:\n{self.text}")

    def drag(self, start: tuple[int, int], end: tuple[int, int]) -> None:
        """Presses the left button at ``start``, moves to ``end``, lets go: SGR mouse sequences."""
        (x0, y0), (x1, y1) = start, end
        self.type(f"\x1b[<0;{x0};{y0}M")
        step = 1 if x1 >= x0 else -1
        for x in range(x0 + step, x1 + step, step):
            self.type(f"\x1b[<32;{x};{y1}M")
            self.pump(0.01)
        self.type(f"\x1b[<0;{x1};{y1}m")

    def click(self, at: tuple[int, int]) -> None:
        """A click of the left button."""
        self.type(f"\x1b[<0;{at[0]};{at[1]}M\x1b[<0;{at[0]};{at[1]}m")

    def kill(self, sign: int = signal.SIGKILL) -> None:
        """Sends a signal to the process."""
        os.kill(self.pid, sign)

    def wait(self, seconds: float = 20.0) -> int | None:
        """Waits for the process to end; its exit status (negative: signal), None when it lives on."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.pump(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.exit_status = os.waitstatus_to_exitcode(status)
                return self.exit_status
        return None

    def close(self) -> None:
        """Ends the process if it still lives."""
        if self.exit_status is None:
            self.kill()
            self.wait(5)
        os.close(self._fd)
