"""Looks at a living server, and keeps a look with its round now and then."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from typing import Any

import filelock
import msgspec

from tuner.metrics import MetricsError, ReadingsWindow, parse_metrics
from tuner.metrics.model import GpuReading, Reach, Readings
from tuner.paths import Home
from tuner.probes.http import ServerClient
from tuner.recipe.model import Recipe
from tuner.rounds.history import History
from tuner.rounds.model import Round
from tuner.server.model import ServerHandle

#: A day at this pace is some 9,000 readings: a chart needs no more, and the file stays small.
_KEEP_EVERY_S = 10.0
_TIMEOUT_S = 2.0


class Running(msgspec.Struct, frozen=True):
    """A living server of ours and the round it belongs to."""

    handle: ServerHandle
    round: Round | None


class Look(msgspec.Struct, frozen=True):
    """One look at everything live: ``gpus`` are those of the server, or all of them while none runs."""

    at: float
    running: Running | None
    readings: Readings | None
    gpus: tuple[GpuReading, ...]
    alive: bool


class Watch:
    """Follows whichever server runs. Several threads may call it."""

    def __init__(self, home: Home, history: History, environ: Mapping[str, str]) -> None:
        self._home = home
        self._history = history
        self._environ = environ
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def read(self, running: Running | None, *, keep: bool) -> Readings | None:
        """Readings of the server now; with ``keep`` they go into its round now and then, from one watcher only."""
        with self._lock:
            if self._server is not None and not self._server.is_of(running):
                self._server.close()
                self._server = None
            if running is None:
                return None
            if self._server is None:
                self._server = _Server(self._home, running, api_key(running.handle.recipe, self._environ))
            readings = self._server.read()
            # While it still loads there is nothing worth charting.
            if keep and running.round is not None and running.round.ready_seconds is not None and self._server.keeps():
                self._history.add_samples(running.round.number, [readings])
            return readings

    def close(self) -> None:
        """Lets go of the server."""
        with self._lock:
            if self._server is not None:
                self._server.close()
                self._server = None


class _Server:
    """The connection to one server, the window of its readings, and who keeps them."""

    def __init__(self, home: Home, running: Running, key: str | None) -> None:
        handle = running.handle
        self._identity = (handle.pid, handle.create_time)
        self._client = ServerClient(handle.url, api_key=key, timeout=_TIMEOUT_S)
        self._window = ReadingsWindow(key_variable=api_key_variable(handle.recipe))
        # The first of several apps keeps the readings; the lock goes with its process.
        self._keeper = filelock.FileLock(home.servers / f"{handle.port}.watch", timeout=0, mode=0o600)
        self._kept_at = 0.0
        info = self._client.server_info()
        self._info = info if isinstance(info, dict) else None

    def is_of(self, running: Running | None) -> bool:
        return running is not None and self._identity == (running.handle.pid, running.handle.create_time)

    def read(self) -> Readings:
        return poll(self._client, self._window, self._info)

    def keeps(self) -> bool:
        """Whether it is time to keep a look, and ours to do it."""
        now = time.monotonic()
        if now - self._kept_at < _KEEP_EVERY_S:
            return False
        self._kept_at = now
        try:
            self._keeper.acquire()
        except filelock.Timeout:
            return False
        return True

    def close(self) -> None:
        self._keeper.release(force=True)
        self._client.close()


def poll(client: ServerClient, window: ReadingsWindow, info: dict[str, Any] | None = None) -> Readings:
    """One look at the server, taken into ``window``; ``info`` is its ``/server_info``, for what metrics lack.

    Rates are taken over a steady clock; ``Readings.at`` is the time of day.
    """
    page, loads = client.metrics(), client.loads()
    try:
        metrics = page if isinstance(page, Reach) else parse_metrics(page)
    except MetricsError:
        metrics = Reach.NONSENSE
    readings = window.add(time.monotonic(), metrics, loads, info)
    return msgspec.structs.replace(readings, at=time.time())


def api_key_variable(recipe: Recipe) -> str | None:
    """Name of the environment variable that holds the server's key, where the recipe names one."""
    asked = recipe.flags.get("api_key")
    return asked[2:-1] if isinstance(asked, str) and asked.startswith("${") and asked.endswith("}") else None


def api_key(recipe: Recipe, environ: Mapping[str, str]) -> str | None:
    """The server's key, read from the environment variable that the recipe names; never kept."""
    variable = api_key_variable(recipe)
    return environ.get(variable) if variable else None
