"""The terminal the app is drawn on, and what happens when it goes away.

Textual writes from a thread that dies at the first failed write; the app then waits for ever for room in that
thread's queue and hears no signal. Of its input it takes an end for silence, and asks again at once.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, Any, cast

from textual.drivers.linux_driver import LinuxDriver

if TYPE_CHECKING:
    from textual.app import App

#: Seconds between two looks whether the terminal is still there.
_LOOK_S = 0.5


class Output:
    """What Textual's writer needs of a file; after the first failed write it takes everything and writes nothing."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self.gone = False

    def write(self, text: str) -> None:
        """Writes, while there is somewhere to write to."""
        self._tried(lambda: self._file.write(text))

    def flush(self) -> None:
        """Sends on what was written."""
        self._tried(self._file.flush)

    def fileno(self) -> int:
        """The number of the file."""
        return self._file.fileno()

    def isatty(self) -> bool:
        """Whether it is a terminal."""
        return self._file.isatty()

    def _tried(self, act: Callable[[], object]) -> None:
        if self.gone:
            return
        try:
            act()
        except (OSError, ValueError):  # ValueError: the file was closed
            self.gone = True


class TerminalDriver(LinuxDriver):
    """Textual's driver for a terminal; it leaves the app when the terminal is gone, with exit status 1."""

    def __init__(
        self, app: App[Any], *, debug: bool = False, mouse: bool = True, size: tuple[int, int] | None = None
    ) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._closed = threading.Event()
        self._output = Output(cast("IO[str]", self._file))
        self._file = cast("Any", self._output)

    def start_application_mode(self) -> None:
        """Watches the terminal, too."""
        super().start_application_mode()  # type: ignore[no-untyped-call]
        self._closed = threading.Event()
        threading.Thread(target=self._watch, args=(self._closed,), name="tuner-terminal", daemon=True).start()

    def close(self) -> None:
        """Ends the watch."""
        self._closed.set()
        super().close()

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
                self._app.call_later(self._app.exit, return_code=1)
