"""A server that is not ours, looked at through its address alone: nothing of it is ever changed."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import SplitResult, urlsplit

import httpx
import msgspec
import psutil

from tuner.checks.model import CheckResult
from tuner.findings import Finding
from tuner.metrics.model import GpuReading, Reach, Readings
from tuner.modelcard import ModelError
from tuner.paths import Home
from tuner.place import there
from tuner.planner.model import CannotPlan, PlanInputs
from tuner.probes.http import ServerClient
from tuner.recipe.model import Recipe, RecipeError
from tuner.recipe.server_answer import from_server_info
from tuner.rounds.model import Round
from tuner.server.holders import holders
from tuner.server.model import ServerHandle, StartRefused, StopOutcome
from tuner.session.events import Publish
from tuner.session.planning import Given
from tuner.session.polling import TIMEOUT_S, Clock, Poller
from tuner.session.session import Session
from tuner.session.watching import Look, Running, server_changes
from tuner.text import clip

#: Where the key is looked for when no variable is named.
KEY_VARIABLE = "SGLANG_API_KEY"
#: Of an address that is none, terminal cells.
_SHOWN_CELLS = 200
_PORTS = {"http": 80, "https": 443}


class AddressError(Exception):
    """An address that names no server, or a server that cannot be asked; the message is one sentence."""


class ReadOnly(StartRefused):
    """What was asked would change a server that is only looked at."""

    def __init__(self, url: str) -> None:
        super().__init__(())
        self.args = (read_only_words(url),)


def read_only_words(url: str) -> str:
    """Why nothing can be started, checked or stopped here."""
    return f"Attached to {url}, read-only: start, check and stop it where it runs."


class _Told(msgspec.Struct, frozen=True):
    """What the server said of itself."""

    info: dict[str, Any]
    recipe: Recipe
    changed: tuple[Finding, ...] = ()
    simulated: bool = False


class Attached:
    """The connection to one server by its address."""

    def __init__(
        self, url: str, environ: Mapping[str, str], key_variable: str | None = None, *, clock: Clock = time.monotonic
    ) -> None:
        """Raises AddressError. ``key_variable`` names the environment variable with the API key."""
        parts = _parts(url)
        if key_variable is not None and not environ.get(key_variable):
            raise AddressError(f"The variable {key_variable} is not set: export it with the server's API key.")
        self.url = _whole(url, parts)
        self.host = parts.hostname or ""
        self.port = parts.port or _PORTS[parts.scheme]
        variable = key_variable or KEY_VARIABLE
        key = environ.get(variable)
        if key is not None and not key.isprintable():
            raise AddressError(f"The variable {variable} holds a character that no API key has, such as a line break.")
        self._client = ServerClient(self.url, api_key=key, timeout=TIMEOUT_S)
        self._poller = Poller(self._client, variable, clock=clock)
        self._lock = threading.Lock()
        self._told = _Told({}, Recipe())
        self._since = time.time()
        #: Whether the server runs on this machine, so that its cards are ours to read.
        self.here = self.host.lower() in {"localhost", socket.gethostname().lower(), *_own_addresses()}

    def look(self) -> tuple[Running, Readings, tuple[Finding, ...]]:
        """One look: the server as far as it is known, its readings, and what it changed on its own."""
        with self._lock:
            readings = self._poller.read()
            told = self._known()
            handle = ServerHandle(
                pid=0,
                create_time=0.0,
                host=self.host,
                port=self.port,
                log_path="",
                started_at=self._since,
                simulated=told.simulated,
                recipe=told.recipe,
                round_name=None,
            )
            return Running(handle, None), readings, told.changed

    def recipe(self) -> Recipe:
        """What the server runs with, as far as it tells. Raises AddressError when it answers nothing of use."""
        with self._lock:
            readings = self._poller.read()
            if Reach.OK not in (readings.metrics, readings.loads):
                raise AddressError(_why_silent(self.url, readings, self._client.problem))
            return self._known().recipe

    def _known(self) -> _Told:
        info = self._poller.info
        if info is not None and self._told.info is not info:
            self._told = _told_by(info)
        return self._told

    def close(self) -> None:
        """Lets go of the server."""
        self._poller.close()


def _told_by(info: dict[str, Any]) -> _Told:
    # The stand-in server says of itself what it is.
    simulated = info.get("simulated") is True
    try:
        recipe = from_server_info(info).recipe
    except RecipeError:
        return _Told(info, Recipe(), simulated=simulated)
    return _Told(info, recipe, server_changes(recipe, info, None), simulated)


class AttachedSession(Session):
    """The session of the app on a server that is only looked at; the history is this machine's own."""

    def __init__(
        self, home: Home, attached: Attached, environ: Mapping[str, str] | None = None, *, model: str | None = None
    ) -> None:
        """``model``: a model folder, its config.json or a packaged shape to plan with, for want of the server's own."""
        super().__init__(home, environ)
        self._model = model
        self._server = attached
        self.attached = attached.url

    def close(self) -> None:
        """Lets go of the server, too."""
        self._server.close()
        super().close()

    def told_recipe(self) -> Recipe:
        """See ``Attached.recipe``."""
        return self._server.recipe()

    def running(self, port: int | None = None) -> Running | None:
        """The server looked at."""
        running, _, _ = self._server.look()
        return running if port in (None, running.handle.port) else None

    def look(self, *, keep: bool = False) -> Look:
        """One poll; nothing is kept of a server that has no round here, and only cards of this machine are read."""
        del keep
        running, readings, changed = self._server.look()
        probe = self._probe_by(False, 0) if self._server.here else None
        gpus = tuple(probe.read()) if probe is not None else ()
        alive = readings.metrics is not Reach.UNREACHABLE or readings.loads is not Reach.UNREACHABLE
        return Look(
            time.time(),
            running,
            readings,
            gpus,
            alive,
            changed,
            self.attached,
            probe.reason if probe and not gpus else "",
        )

    def planning_inputs(self, recipe: Recipe, given: Given | None = None) -> PlanInputs:
        """As of a server on this machine; of another machine's card nothing is known here."""
        if not self._server.here:
            raise CannotPlan("The server is on another machine, and a plan needs its card: run tuner plan there.")
        if given is None and self._model is None and not there(recipe.model_path):
            raise ModelError(
                f"The model folder {recipe.model_path or 'of the server'} is not here, and a plan needs its config: "
                "attach with --model DIR, a config.json or a packaged shape."
            )
        try:
            return super().planning_inputs(recipe, given or Given(model=self._model))
        except CannotPlan as error:
            if given is not None or self._probe(recipe).read():
                raise
            raise CannotPlan(
                "No GPU can be read here, and a plan needs to know how much of it is free: "
                "tuner plan takes that from --free-before and --free-after, or from the server's log by --boot-log."
            ) from error

    def _held_gib(self, recipe: Recipe, gpu: GpuReading) -> float:
        """What the server's processes hold of a card, where the driver and the process table tell."""
        del recipe
        running, _, _ = self._server.look()
        told = holders(gpu.processes, running.handle)
        return sum(process.memory_mib or 0 for process in gpu.processes if told[process.pid].ours) / 1024

    def run_round(self, recipe: Recipe, **_: Any) -> Round:
        """Never: raises ReadOnly."""
        raise ReadOnly(self.attached)

    def fall_back(self, failed: Round, **_: Any) -> Round | None:
        """Never: raises ReadOnly."""
        raise ReadOnly(self.attached)

    def verify(self, *, publish: Publish, cancel: threading.Event) -> list[CheckResult] | None:
        """Never: raises ReadOnly."""
        raise ReadOnly(self.attached)

    def stop(
        self, *, publish: Publish, port: int | None = None, drain: bool = True, force: bool = False
    ) -> StopOutcome | None:
        """Never: raises ReadOnly."""
        raise ReadOnly(self.attached)


def _parts(url: str) -> SplitResult:
    # Before anything else, so that no sentence repeats it.
    if "@" in url:
        raise AddressError("An address must not hold a password: name the variable with the key by --key-env.")
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port_is_one = parts.port is None or parts.port > 0
    except ValueError:
        parts, port_is_one = SplitResult("", "", "", "", ""), False
    if parts.scheme not in _PORTS or not parts.hostname or not port_is_one or " " in parts.netloc:
        raise _no_address(url)
    return parts


def _whole(url: str, parts: SplitResult) -> str:
    """The address without what follows its path. Raises AddressError where it is none that can be asked."""
    whole = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
    try:
        named = bool(httpx.URL(whole).host)
    except (httpx.InvalidURL, UnicodeError):
        named = False
    if not named:
        raise _no_address(url)
    return whole


def _no_address(url: str) -> AddressError:
    return AddressError(f"{clip(url, _SHOWN_CELLS)} is no address of a server: write it as http://HOST:PORT.")


def _own_addresses() -> set[str]:
    return {address.address for card in psutil.net_if_addrs().values() for address in card}


def _why_silent(url: str, readings: Readings, problem: str) -> str:
    if Reach.LOCKED in (readings.metrics, readings.loads):
        return f"The server {url} wants its API key: name the variable that holds it by --key-env."
    if all(reach is Reach.UNREACHABLE for reach in (readings.metrics, readings.loads)):
        return problem or f"Nothing answers at {url}: check the address, and that the server is up."
    return f"What answers at {url} is no SGLang server, or one before 0.5.9 without metrics: check host and port."
