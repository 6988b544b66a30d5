"""The terminal the app is drawn on, and what happens when it goes away.

Textual writes from a thread that dies at the first failed write; the app then waits for ever for room in that
thread's queue and hears no signal. Of its input it takes an end for silence, and asks again at once.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from textual.app import App

#: Seconds between two looks whether the terminal is still there.
_LOOK_S = 0.5
#: Seconds that a terminal which takes nothing is waited for once the app is to end.
PATIENCE_S = 1.0
_TURN_S = 0.1


class Output:
    """What Textual's writer needs of a file; after the first failed write it takes everything and writes nothing.

    A terminal that stops reading without hanging up (a stopped ``tmux``, a line that is frozen) would hold the writer
    for ever, and with it whoever waits for room in its queue. So the terminal is opened once more, for writes that do
    not block: the flag belongs to the opening, and a shell on the same terminal must not get it. Once ``leave`` was
    called, a terminal that takes nothing for ``PATIENCE_S`` counts as gone.
    """

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.gone = False
        self._leaving = threading.Event()
        self._own = _opened_again(file)
        self._encoding = str(getattr(file, "encoding", None) or "utf-8")

    def leave(self) -> None:
        """The app is to end: from now on no write waits for long. Safe in a signal handler."""
        self._leaving.set()

    def write(self, text: str) -> None:
        """Writes, while there is somewhere to write to."""
        if self._own is None:
            self._tried(lambda: self._file.write(text))
        else:
            self._tried(partial(self._written, self._own, text.encode(self._encoding, "replace")))

    def flush(self) -> None:
        """Sends on what was written."""
        self._tried(self._file.flush)

    def fileno(self) -> int:
        """The number of the file."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._file.isatty()

    def close(self) -> None:
        """Lets go of the second opening."""
        if self._own is not None:
            os.close(self._own)
            self._own = None

    def _tried(self, act: Callable[[], object]) -> None:
        if self.gone:
            return
        try:
            act()
        except (OSError, ValueError):  # ValueError: the file was closed
            self.gone = True

    def _written(self, own: int, data: bytes) -> None:
        """Writes all of it, waiting for the terminal. Raises TimeoutError, an OSError, when that makes no sense."""
        waited = 0.0
        while data and not self.gone:
            if select.select([], [own], [], _TURN_S)[1]:
                try:
                    data = data[os.write(own, data) :]
                    waited = 0.0
                    continue
                except BlockingIOError:
                    pass
            waited += _TURN_S
            if self._leaving.is_set() and waited >= PATIENCE_S:
                raise TimeoutError("the terminal takes nothing")


def _opened_again(file: IO[str]) -> int | None:
    """The terminal of ``file``, opened for writes that do not block; None where it is none, or has no name here."""
    try:
        return os.open(os.ttyname(file.fileno()), os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except (OSError, ValueError):
        return None


class TerminalDriver(LinuxDriver):
    """Textual's driver for a terminal; it leaves the app when the terminal is gone, with exit status 1."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._closed = threading.Event()
        self._output = Output(cast("IO[str]", self._file))
        self._file = cast("Any", self._output)

    @property
    def gone(self) -> bool:
        """Whether nothing reaches the terminal any more."""
        return self._output.gone

    def leave(self) -> None:
        """The app is to end; a terminal that takes nothing must not hold it up. Safe in a signal handler."""
        self._output.leave()

    def start_application_mode(self) -> None:
        """Watches the terminal, too."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._closed = threading.Event()
        threading.Thread(target=self._watch, args=(self._closed,), name="tuner-terminal", daemon=True).start()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        super().close()
        self._output.close()

    def run_input_thread(self) -> None:
        """Reads keys; where nothing can be read any more the app has nobody to serve."""
        try:
            super().run_input_thread()
        except OSError:
            self._output.gone = True

    def _watch(self, closed: threading.Event) -> None:
        while not closed.wait(_LOOK_S):
            # A terminal that was hung up is none any more.
            if self._output.gone or not os.isatty(self.fileno):
                self._output.gone = True
                self._app.call_later(self._app.exit, return_code=1)
