"""Watches how high VRAM climbs while a server starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

_EVERY_S = 0.25


class VramWatch:
    """Samples ``read`` (MiB in use) in a thread of its own; ``peak_mib`` is the highest seen, None if none was."""

    def __init__(self, read: Callable[[], int | None]) -> None:
        self._read = read
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vram-watch", daemon=True)
        self.peak_mib: int | None = None

    def used_mib(self) -> int | None:
        """VRAM in use now."""
        used = self._read()
        if used is not None:
            self.peak_mib = max(used, self.peak_mib or 0)
        return used

    def _run(self) -> None:
        while not self._stop.wait(_EVERY_S):
            self.used_mib()

    def __enter__(self) -> VramWatch:
        self.used_mib()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        self._thread.join()
