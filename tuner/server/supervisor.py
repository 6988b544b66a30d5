"""Starts, finds, follows and stops servers. Whatever happens, there is exactly one server in a known state, or none.

What only a start needs is imported by one: looking for servers is what an app does all day.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import msgspec

from tuner.findings import Finding, FindingId, Severity
from tuner.paths import Home, HomeError
from tuner.probes.gpu import GpuProbe
from tuner.server import children, presence
from tuner.server.cards import Foreign, running_sglang, used_gpus
from tuner.server.family import family, main_process
from tuner.server.handles import HandleStore, PortLocked
from tuner.server.logfile import clear_old_logs, create_log
from tuner.server.model import (
    LaunchSpec,
    PhaseChanged,
    ReadyOutcome,
    ReadyState,
    ServerHandle,
    StartRefused,
    StopOutcome,
)
from tuner.server.stopping import Stop, StopTimes

if TYPE_CHECKING:
    from tuner.server.readiness import ReadyTimes

#: A start holds its lock for a preflight and a spawn; asking a cold interpreter on a slow disk takes longest.
_LOCK_S = 60.0
_FORGET_S = 5.0
#: From the end of a tuner to that of a process at the gate, whose pipe closes then.
_GATE_S = 5.0


def _unheard(_: PhaseChanged) -> None:
    """For callers who do not watch."""


class Supervisor:
    """The servers that the tuner started under one home. Any instance, in any process, sees the same ones."""

    def __init__(
        self,
        home: Home,
        gpu: GpuProbe,
        stop_times: StopTimes | None = None,
        ready_times: ReadyTimes | None = None,
    ) -> None:
        self._home = home
        self._gpu = gpu
        self._store = HandleStore(home)
        self._stop_times = stop_times or StopTimes()
        self._ready_times = ready_times

    def start(
        self,
        spec: LaunchSpec,
        need_mib: int | None = None,
        on_finding: Callable[[Finding], None] | None = None,
        *,
        force: bool = False,
    ) -> ServerHandle:
        """Starts a server after a preflight. Raises ``StartRefused``; the server is then not there.

        ``need_mib``: the least free memory per GPU. ``on_finding`` hears what does not refuse the start. ``force``
        starts also what would surely die (see ``guard.forced``).
        """
        from tuner.server.guard import forced, preflight
        from tuner.server.launch import spawn

        try:
            with self._store.starting(spec.port, _LOCK_S):
                gpus = self._gpu.read()
                used = used_gpus(spec.recipe, spec.environment, gpus)
                apart = self._gpu.peers_apart([gpu.index for gpu in used])
                driver = self._gpu.driver_version()
                found = preflight(spec.recipe, spec, gpus, self._home, need_mib, driver, apart)
                found = forced(found) if force else found
                if any(finding.severity is Severity.FATAL for finding in found):
                    raise StartRefused(found)
                before = {str(gpu.index): gpu.used_mib for gpu in used if gpu.used_mib is not None}
                clear_old_logs(self._home.logs, {handle.log_path for handle in self.running()})
                log = create_log(self._home.logs, spec.port, time.time())
                with presence.taken(self._home, spec.port) as lock:
                    handle = spawn(spec, log, before, self._store.write, lock)
        except PortLocked as locked:
            raise StartRefused((_being_started(spec.port),)) from locked
        except HomeError as error:
            raise StartRefused((_cannot(str(error)),)) from error
        except (OSError, ValueError) as error:
            raise StartRefused((_cannot(f"The server could not be started: {_words(error)}."),)) from error
        for finding in found:
            if on_finding is not None:
                on_finding(finding)
        return handle

    def wait_ready(
        self,
        handle: ServerHandle,
        on_phase: Callable[[PhaseChanged], None] = _unheard,
        cancel: threading.Event | None = None,
        estimates: Mapping[str, float] = {},
        timeout_s: float = 1800.0,
        stall_s: float = 60.0,
    ) -> ReadyOutcome:
        """Follows the start until the server is ready; after any other end nothing of it is left running.

        ``estimates`` are seconds by phase from earlier starts. A phase without output for ``stall_s`` is said to be
        stalled, no more: compilation is silent for a minute and longer.
        """
        from tuner.server.readiness import ReadyTimes, ReadyWait

        times = self._ready_times or ReadyTimes()
        wait = ReadyWait(handle, on_phase, cancel or threading.Event(), estimates, timeout_s, stall_s, times)
        outcome = wait.run()
        if outcome.state is ReadyState.READY:
            return outcome
        stopped = self.stop(handle, on_phase, drain=False)
        reason = outcome.reason if stopped.stopped else f"{outcome.reason} {stopped.reason}"
        status = outcome.exit_status
        if status is None and outcome.state is ReadyState.DIED:
            status = stopped.exit_status
        return msgspec.structs.replace(outcome, reason=reason, exit_status=status)

    def stop(
        self, handle: ServerHandle, on_phase: Callable[[PhaseChanged], None] = _unheard, drain: bool = True
    ) -> StopOutcome:
        """Stops the server (``drain``: running requests may finish, within bounds) and verifies that all is gone.

        Takes ``stop_bound_s`` at the most.
        """
        outcome = Stop(handle, self._gpu, on_phase, self._stop_times).run(drain=drain)
        if outcome.stopped:
            self._store.forget(handle, _FORGET_S)
        return outcome

    def stop_bound_s(self, *, drain: bool) -> float:
        """The longest a stop can take, seconds, whatever the server does."""
        return self._stop_times.bound_s(drain=drain)

    def foreign(self) -> list[Foreign]:
        """SGLang servers of this machine that no tuner of this home started, also those that still load."""
        ours = {process.pid for handle in self._store.all() for process in family(handle)}
        return running_sglang(except_pids=ours)

    def running(self, port: int | None = None) -> list[ServerHandle]:
        """Servers of which something still lives, orphans included; handles of dead ones are removed."""
        found = []
        for handle in self._store.all():
            if port is not None and handle.port != port:
                continue
            children.reap(handle.pid)
            if main_process(handle) is not None or family(handle):
                found.append(handle)
            else:
                # A start that holds the lock right now replaces the handle itself.
                self._store.forget(handle, 0.0)
        return found

    def main_lives(self, handle: ServerHandle) -> bool:
        """Whether the main process lives; when not, what ``running`` shows are orphans, to be stopped."""
        return main_process(handle) is not None

    def came_to_run(self, handle: ServerHandle) -> bool:
        """Whether the server of a tuner that is gone lives: its process may be at the gate, and go either way now."""
        from tuner.server.launch import at_gate

        deadline = time.monotonic() + _GATE_S
        while (main := main_process(handle)) is not None and at_gate(main) and time.monotonic() < deadline:
            time.sleep(0.02)
        return main is not None


def _being_started(port: int) -> Finding:
    return Finding(
        id=FindingId.DOUBLE_START,
        severity=Severity.FATAL,
        title=f"Another tuner is starting a server right now (port {port}, or the same GPU).",
        remedy="Wait until it is up, then look with tuner status.",
    )


def _cannot(title: str) -> Finding:
    return Finding(
        id=FindingId.UNKNOWN,
        severity=Severity.FATAL,
        title=title,
        remedy="Put that right, then start again.",
    )


def _words(error: OSError | ValueError) -> str:
    return str(error.strerror or error) if isinstance(error, OSError) else str(error)
