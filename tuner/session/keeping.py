"""Keeps the readings of a round: one a second, a few at a time, by one of the apps that watch."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import filelock
import msgspec

from tuner.metrics.model import Readings
from tuner.rounds.history import History

#: Seconds between two readings that are kept, between two writes, and between two of a server that does not change.
_EVERY_S = 0.9
_WRITE_EVERY_S = 10.0
_UNCHANGED_EVERY_S = 10.0
#: Readings older than a day are thinned to one in so many seconds: a day takes some 70 MB, later 7.
_DAY_S = 86_400.0
_THINNED_S = 10.0
_THIN_EVERY_S = 3600.0


class Keeper:
    """Takes the readings of one round. The first of several apps keeps them; its lock goes with its process.

    What is not written yet when the tuner is killed is lost: the last 10 s at most.
    """

    def __init__(self, history: History, number: int, lock: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._history = history
        self._number = number
        self._lock = filelock.FileLock(lock, timeout=0, mode=0o600)
        self._clock = clock
        self._taken_at: float | None = None
        self._written_at: float | None = None
        self._thinned_at: float | None = None
        self._last: Readings | None = None
        self._last_kept_at = 0.0
        self._held: list[Readings] = []

    def take(self, readings: Readings) -> None:
        """Keeps the readings if it is time. Raises HistoryError when they cannot be written."""
        now = self._clock()
        if self._taken_at is not None and now - self._taken_at < _EVERY_S:
            return
        self._taken_at = now
        if self._is_news(readings, now):
            self._last, self._last_kept_at = readings, now
            self._held.append(readings)
        if self._written_at is None or now - self._written_at >= _WRITE_EVERY_S:
            self._written_at = now
            self._write()
            self._thin(readings.at, now)

    def _is_news(self, readings: Readings, now: float) -> bool:
        if self._last is None or now - self._last_kept_at >= _UNCHANGED_EVERY_S:
            return True
        # Every look has another time, and takes another time.
        same = msgspec.structs.replace(readings, at=self._last.at, answered_s=self._last.answered_s)
        return same != self._last

    def _write(self) -> None:
        held, self._held = self._held, []
        if not held:
            return
        try:
            self._lock.acquire()
        except filelock.Timeout:
            return
        self._history.add_samples(self._number, held)

    def _thin(self, at: float, now: float) -> None:
        lately = self._thinned_at is not None and now - self._thinned_at < _THIN_EVERY_S
        if lately or not self._lock.is_locked:
            return
        self._thinned_at = now
        self._history.thin_samples(self._number, at - _DAY_S, _THINNED_S)

    def close(self) -> None:
        """Writes what is held and lets another app keep the rest."""
        try:
            self._write()
        finally:
            self._lock.release(force=True)
