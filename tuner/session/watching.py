"""Looks at a living server, and keeps the looks with its round."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping

import msgspec

from tuner.doctor import diagnose_round
from tuner.findings import Finding
from tuner.metrics.model import GpuReading, Readings
from tuner.paths import Home
from tuner.probes.http import ServerClient
from tuner.recipe.model import Recipe
from tuner.rounds.history import History
from tuner.rounds.model import Round
from tuner.server.model import ServerHandle
from tuner.serverlog.model import BootFacts
from tuner.session.effective import effective_values
from tuner.session.keeping import Keeper
from tuner.session.polling import TIMEOUT_S, Clock, Poller, poll

__all__ = ["Look", "Running", "Watch", "api_key", "api_key_variable", "poll", "server_changes"]


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
    #: Values the server changed on its own, one finding each.
    changed: tuple[Finding, ...] = ()
    #: Address of a server that is only looked at; empty for one of ours.
    url: str = ""
    #: Why ``gpus`` is empty, one sentence; empty where it is not, or where cards are another machine's.
    no_gpus: str = ""


class Watch:
    """Follows whichever server runs. Several threads may call it."""

    def __init__(
        self, home: Home, history: History, environ: Mapping[str, str], *, clock: Clock = time.monotonic
    ) -> None:
        self._home = home
        self._history = history
        self._environ = environ
        self._clock = clock
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def read(self, running: Running | None, *, keep: bool) -> Readings | None:
        """Readings of the server now; with ``keep`` they go into its round, from one watcher only."""
        with self._lock:
            if self._server is not None and not self._server.is_of(running):
                self._let_go()
            if running is None:
                return None
            if self._server is None:
                key = api_key(running.handle.recipe, self._environ)
                self._server = _Server(self._home, self._history, running, key, self._clock)
            readings = self._server.poller.read()
            # While it still loads there is nothing worth charting.
            if keep and running.round is not None and running.round.ready_seconds is not None:
                self._server.keep(running.round.number, readings)
            return readings

    def changed(self, running: Running | None) -> tuple[Finding, ...]:
        """Values that the server of the last look changed on its own."""
        with self._lock:
            if running is None or self._server is None:
                return ()
            return self._server.changed(running)

    def close(self) -> None:
        """Lets go of the server."""
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()


class _Server:
    """One server that is watched, and the keeper of its readings."""

    def __init__(self, home: Home, history: History, running: Running, key: str | None, clock: Clock) -> None:
        handle = running.handle
        self._identity = (handle.pid, handle.create_time)
        self._history = history
        self._clock = clock
        self._lock_path = home.servers / f"{handle.port}.watch"
        self._keeper: Keeper | None = None
        self._changed: tuple[object, tuple[Finding, ...]] | None = None
        client = ServerClient(handle.url, api_key=key, timeout=TIMEOUT_S)
        self.poller = Poller(client, api_key_variable(handle.recipe), clock=clock)

    def is_of(self, running: Running | None) -> bool:
        return running is not None and self._identity == (running.handle.pid, running.handle.create_time)

    def keep(self, number: int, readings: Readings) -> None:
        if self._keeper is None:
            self._keeper = Keeper(self._history, number, self._lock_path, self._clock)
        self._keeper.take(readings)

    def changed(self, running: Running) -> tuple[Finding, ...]:
        info, boot = self.poller.info, running.round.boot if running.round else None
        if info is None:
            return ()
        # Worked out again only for another answer, or once the boot log is known.
        known = (id(info), boot is None)
        if self._changed is None or self._changed[0] != known:
            self._changed = (known, server_changes(running.handle.recipe, info, boot))
        return self._changed[1]

    def close(self) -> None:
        try:
            if self._keeper is not None:
                self._keeper.close()
        finally:
            self.poller.close()


def server_changes(asked: Recipe, info: Mapping[str, object], boot: BootFacts | None) -> tuple[Finding, ...]:
    """Flags of ``asked`` whose value in effect is another, by ``/server_info`` and, where known, the boot log."""
    effective = effective_values(asked.flags, info, boot)
    return diagnose_round(asked.flags, effective, boot if boot is not None else BootFacts())


def api_key_variable(recipe: Recipe) -> str | None:
    """Name of the environment variable that holds the server's key, where the recipe names one."""
    asked = recipe.flags.get("api_key")
    return asked[2:-1] if isinstance(asked, str) and asked.startswith("${") and asked.endswith("}") else None


def api_key(recipe: Recipe, environ: Mapping[str, str]) -> str | None:
    """The server's key, read from the environment variable that the recipe names; never kept."""
    variable = api_key_variable(recipe)
    return environ.get(variable) if variable else None
