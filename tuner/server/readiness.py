"""Waits for a start, and is not fooled: the process of *this* start lives, holds the port, and answers."""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

import msgspec
import psutil

from tuner.probes.http import ServerClient
from tuner.redact import redact_text
from tuner.server import children, ports
from tuner.server.family import family, main_process
from tuner.server.logfile import LogTail
from tuner.server.model import PhaseChanged, ReadyOutcome, ReadyState, ServerHandle
from tuner.serverlog.model import BootFacts, Phase
from tuner.serverlog.reader import BootReader
from tuner.text import clip, plain

_KEPT_LINES = 200
_KEPT_CHARS = 4000
_SHOWN_CELLS = 400
#: More than this at once is a flood, not a boot; it is then read for facts, without a look after every line.
_LINEWISE = 64 << 10
_QUIET_LEVELS = frozenset({"warning", "error", "critical"})
_TELLING = re.compile(r"error|exception|fail|abort|killed|out of memory|cannot|not enough|refused", re.IGNORECASE)
#: What SGLang prints on its way down, whatever the cause.
_LAST_WORDS = re.compile(r"kill_process_tree called|Received sigquit|leaked semaphore|resource_tracker", re.IGNORECASE)


class ReadyTimes(msgspec.Struct, frozen=True, kw_only=True):
    """How often and how long, seconds."""

    poll_s: float = 0.05
    #: Between news to the watcher when nothing but the time changed.
    tell_s: float = 0.5
    #: From a fatal line to the end that SGLang makes of itself, before the tuner ends it.
    fatal_grace_s: float = 3.0
    #: One call of /health: the server itself gives up after 20 s (compilation) and says 503.
    health_s: float = 30.0
    #: Between two calls of /health that did not say 200.
    health_gap_s: float = 0.5
    #: Between two looks at who holds the port.
    port_gap_s: float = 0.25
    #: At most this long at a stretch for reading the log, so that a flood does not hide a death or a wish to abort.
    read_s: float = 0.3
    #: At most this long for the rest of the log after the end.
    last_read_s: float = 10.0


class _HealthCall:
    """One call of /health in a thread: it may take half a minute, in which an abort must still be heard."""

    def __init__(self, url: str, timeout_s: float) -> None:
        self.status: int | None = None
        self.done = threading.Event()
        self.ended_at = 0.0
        self._url = url
        self._timeout_s = timeout_s
        threading.Thread(target=self._run, name="health", daemon=True).start()

    def _run(self) -> None:
        client = ServerClient(self._url, timeout=self._timeout_s)
        try:
            self.status = client.health()
        finally:
            client.close()
            self.ended_at = time.monotonic()
            self.done.set()


class ReadyWait:
    """Follows one start to its end. ``run`` stops nothing itself: the supervisor cleans up after a bad end."""

    def __init__(
        self,
        handle: ServerHandle,
        on_phase: Callable[[PhaseChanged], None],
        cancel: threading.Event,
        estimates: Mapping[str, float],
        timeout_s: float,
        stall_s: float,
        times: ReadyTimes,
    ) -> None:
        self._handle = handle
        self._on_phase = on_phase
        self._cancel = cancel
        self._estimates = estimates
        self._timeout_s = timeout_s
        self._stall_s = stall_s
        self._times = times
        self._log = LogTail(handle.log_path)
        self._reader = BootReader()
        self._lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self._rest = ""
        now = time.monotonic()
        self._waiting_since = now
        # A start that an earlier run of the tuner began is timed from its own beginning.
        self._began = now - max(0.0, time.time() - handle.started_at)
        self._grew_at = now
        self._phase = Phase.LAUNCHING
        self._phase_since = self._began
        self._phase_seconds: dict[str, float] = {}
        self._told: tuple[str, str, bool] | None = None
        self._told_at = 0.0
        self._fatal_at: float | None = None
        self._health: _HealthCall | None = None
        flags = handle.recipe.flags
        #: Whether the lines that tell of readiness are not printed at the log level asked for.
        self._quiet = any(str(flags.get(name)).lower() in _QUIET_LEVELS for name in ("log_level", "log_level_http"))
        self._port_look_at = 0.0
        self._port_ours: bool | None = False
        self._listener: psutil.Process | None = None

    def run(self) -> ReadyOutcome:
        """Blocks until the server is ready or will not be."""
        while True:
            lives = main_process(self._handle) is not None
            self._read()
            if not lives:
                self._read_to_end()
                return self._ended(ReadyState.DIED, self._death())
            if self._cancel.is_set():
                return self._ended(ReadyState.ABORTED, "The start was aborted.")
            now = time.monotonic()
            facts = self._reader.facts
            if facts.phase is Phase.DEAD:
                self._fatal_at = self._fatal_at or now
                if now - self._fatal_at > self._times.fatal_grace_s:
                    return self._ended(ReadyState.DIED, self._death())
            elif self._is_ready(facts, now):
                self._move_to(Phase.READY)
                self._tell(force=True)
                return self._ended(ReadyState.READY, "")
            if now - self._waiting_since > self._timeout_s:
                return self._ended(
                    ReadyState.TIMED_OUT, f"Not ready after {self._timeout_s:.0f} s; the last phase was: {self._phase}."
                )
            self._tell()
            self._pause()
            children.reap(self._handle.pid)

    def _pause(self) -> None:
        """Until the next look; an answer of the server ends it, a wish to abort is heard a moment later."""
        asked = self._health is not None and not self._health.done.is_set()
        (self._health.done if self._health is not None and asked else self._cancel).wait(self._times.poll_s)

    def _read(self) -> bool:
        """Takes in new output; False when there was more than fits into the time."""
        deadline = time.monotonic() + self._times.read_s
        while text := self._log.read():
            self._grew_at = time.monotonic()
            self._keep_lines(text)
            for piece in text.splitlines(keepends=True) if len(text) < _LINEWISE else (text,):
                self._reader.feed(piece)
                self._follow(self._reader.facts.phase)
            if time.monotonic() > deadline:
                return False
        return True

    def _read_to_end(self) -> None:
        # An orphan may go on writing for ever.
        deadline = time.monotonic() + self._times.last_read_s
        while not self._read() and time.monotonic() < deadline:
            self._tell()
        self._reader.close()

    def _keep_lines(self, text: str) -> None:
        *whole, self._rest = re.split(r"[\r\n]+", self._rest + text)
        self._rest = self._rest[-_KEPT_CHARS:]
        self._lines.extend(redact_text(plain(line[:_KEPT_CHARS])) for line in whole[-_KEPT_LINES:] if line.strip())

    def _follow(self, phase: Phase) -> None:
        if phase is Phase.READY:
            # Its own word for it is not enough: the line comes before the port without warm-up.
            phase = Phase.WARMING if self._port_ours else Phase.BINDING
        if phase not in (Phase.DEAD, Phase.STOPPING, Phase.STOPPED):
            self._move_to(phase)

    def _move_to(self, phase: Phase) -> None:
        if phase is self._phase:
            return
        now = time.monotonic()
        self._phase_seconds[self._phase] = self._phase_seconds.get(self._phase, 0.0) + now - self._phase_since
        self._phase, self._phase_since = phase, now

    def _is_ready(self, facts: BootFacts, now: float) -> bool:
        if not (facts.ready or facts.http_url or self._quiet):
            return False
        if self._port_ours is not True:
            if now < self._port_look_at:
                return False
            self._port_ours = self._holds_port()
            self._port_look_at = now + self._times.port_gap_s
        if not (facts.ready or self._quiet):
            # It warms up, and until it says that it is ready there is no use in asking.
            return False
        if facts.ready or self._port_ours:
            self._follow(Phase.READY)
        if self._port_ours is not True and not self._port_seems_ours(facts):
            return False
        if self._health is None:
            self._health = _HealthCall(self._handle.url, self._times.health_s)
            return False
        if not self._health.done.is_set():
            return False
        if self._health.status == 200:
            # Held before the answer and still held after it, so the answer was its own.
            self._port_ours = self._holds_port()
            return main_process(self._handle) is not None and (self._port_ours is True or self._port_seems_ours(facts))
        if now - self._health.ended_at > self._times.health_gap_s:
            self._health = None
        return False

    def _holds_port(self) -> bool | None:
        if self._listener is not None and ports.any_listens([self._listener], self._handle.port):
            return True
        members = family(self._handle)
        self._listener = next((m for m in members if ports.any_listens([m], self._handle.port)), None)
        return True if self._listener is not None else ports.any_listens(members, self._handle.port)

    def _port_seems_ours(self, facts: BootFacts) -> bool:
        """For systems that do not show who listens, and for a command in front whose processes are not ours.

        uvicorn's line in this log comes only once it has the port. Without that line, at a quiet log level, a port
        that is taken by now must do, but only where nobody can be seen on it.
        """
        if facts.http_url is not None:
            return True
        return self._port_ours is None and self._quiet and not ports.port_free(self._handle.host, self._handle.port)

    def _unverified(self) -> str:
        if self._port_ours is not False:
            return ""
        return (
            f"Port {self._handle.port} is held by a process that is not a child of the one started (a container, a "
            "scheduler or a wrapper in front): whether all of it ends at a stop cannot be verified."
        )

    def _death(self) -> str:
        told = [line for line in self._lines if not _LAST_WORDS.search(line)]
        telling = next((line for line in reversed(told) if _TELLING.search(line)), None)
        last = telling or (told[-1] if told else "")
        where = f"The server ended while {self._phase}"
        return f"{where}: {clip(last.strip(), _SHOWN_CELLS)}" if last else f"{where}, without a word in its log."

    def _tell(self, force: bool = False) -> None:
        now = time.monotonic()
        last_line = clip(redact_text(plain(self._reader.last_line or "")).strip(), _SHOWN_CELLS)
        stalled = now - self._grew_at > self._stall_s
        news = (str(self._phase), last_line, stalled)
        if not force and news == self._told and now - self._told_at < self._times.tell_s:
            return
        self._told, self._told_at = news, now
        total = sum(self._estimates.values())
        self._on_phase(
            PhaseChanged(
                phase=self._phase,
                elapsed_s=now - self._phase_since,
                total_s=now - self._began,
                estimate_s=self._estimates.get(self._phase),
                total_estimate_s=total or None,
                last_line=last_line,
                stalled=stalled,
            )
        )

    def _ended(self, state: ReadyState, reason: str) -> ReadyOutcome:
        now = time.monotonic()
        seconds = dict(self._phase_seconds)
        if self._phase is not Phase.READY:
            seconds[self._phase] = seconds.get(self._phase, 0.0) + now - self._phase_since
        lines = [*self._lines]
        if self._rest.strip():
            lines.append(redact_text(plain(self._rest)))
        return ReadyOutcome(
            state=state,
            seconds=now - self._began,
            facts=self._reader.facts,
            reason=reason,
            exit_status=children.reap(self._handle.pid),
            phase_seconds={str(phase): s for phase, s in seconds.items()},
            last_lines=tuple(lines[-_KEPT_LINES:]),
            quiet_s=now - self._grew_at,
            unverified=self._unverified() if state is ReadyState.READY else "",
        )
