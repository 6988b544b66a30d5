"""Stops a server the tuner started, and makes sure that nothing of it is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

import msgspec
import psutil

from tuner.probes.gpu import GpuProbe
from tuner.server import children, ports
from tuner.server.family import alive, family, living, main_process
from tuner.server.logfile import note_stop
from tuner.server.model import PhaseChanged, ServerHandle, StopOutcome
from tuner.serverlog.model import Phase

_POLL_S = 0.05
_TELL_S = 0.5
#: After ``kill_s``: for the one that came up while the others fell.
_LAST_KILL_S = 1.2
_KILL_AGAIN_S = 0.2
#: Used memory moves by this much with nothing running.
_VRAM_TOLERANCE_MIB = 64


class StopTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a stop, seconds; all of them together bound the whole.

    0.5.17 drains without a bound of its own, looks every 5 s whether it is done, and gives its schedulers 15 s.
    """

    #: From SIGTERM to the end of the main process, when running requests may finish.
    drain_s: float = 60.0
    #: The same when they may not.
    force_s: float = 12.0
    #: From the end of the main process to that of its children, which the kernel tells (PDEATHSIG).
    children_s: float = 3.0
    #: From SIGKILL to the end of everything.
    kill_s: float = 5.0
    #: Until the port is back, and then until the memory is.
    settle_s: float = 5.0

    def bound_s(self, *, drain: bool) -> float:
        """The longest a stop can take, seconds: SIGTERM unheard, children that stay, port and memory that do too.

        Looking at the processes comes on top: milliseconds, and more on a machine with thousands of them.
        """
        asked = self.drain_s if drain else self.force_s
        return asked + self.children_s + self.kill_s + _LAST_KILL_S + 2 * self.settle_s


class Stop:
    """One stop of one server.

    SIGTERM goes to the main process only: schedulers have no handler, and in 0.5.9 the main process would then wait
    for them for ever. SIGQUIT is left out: since 0.5.13 the main process sleeps in it for up to 65 s. No process is
    signalled that is not of this start; the number alone is never enough.
    """

    def __init__(
        self, handle: ServerHandle, gpu: GpuProbe, on_phase: Callable[[PhaseChanged], None], times: StopTimes
    ) -> None:
        self._handle = handle
        self._gpu = gpu
        self._on_phase = on_phase
        self._times = times
        self._began = time.monotonic()
        self._told = 0.0
        self._members: dict[int, psutil.Process] = {}

    def run(self, *, drain: bool) -> StopOutcome:
        """Stops the server and verifies it. Blocks up to the sum of the times."""
        how = "was not running"
        if self._look():
            how = self._terminate(drain)
            if self._wait(self._times.children_s, lambda: not self._left()):
                how = how or "SIGTERM"
            else:
                self._kill()
                how = f"{how}, then SIGKILL" if how else "SIGKILL"
        status = children.reap(self._handle.pid)
        left = self._left()
        free = self._wait(self._times.settle_s if not left else 0.0, self._port_free)
        missing = self._missing_vram(0.0 if left else self._times.settle_s)
        return StopOutcome(
            stopped=not left,
            seconds=time.monotonic() - self._began,
            how=how,
            exit_status=status,
            left_processes=tuple(sorted(process.pid for process in left)),
            port_free=free,
            vram_missing_mib=missing,
            reason=self._reason(left, free, missing),
        )

    def _look(self) -> list[psutil.Process]:
        """Takes in processes that came since the last look: they may outlive what ties them to the server."""
        for process in family(self._handle):
            self._members.setdefault(process.pid, process)
        return self._left()

    def _left(self) -> list[psutil.Process]:
        children.reap(self._handle.pid)
        return living(self._members.values())

    def _terminate(self, drain: bool) -> str:
        main = main_process(self._handle)
        if main is None:
            return ""
        with suppress(OSError):
            # Of a full disk or a log that is gone a stop must not fail.
            note_stop(self._handle.log_path, time.time())
        with suppress(psutil.NoSuchProcess):
            main.terminate()
        ended = self._wait(
            self._times.drain_s if drain else self._times.force_s, lambda: not self._alive_main(main), look=True
        )
        return "SIGTERM" if ended else f"SIGTERM without effect for {time.monotonic() - self._began:.0f} s"

    def _alive_main(self, main: psutil.Process) -> bool:
        children.reap(main.pid)
        return alive(main)

    def _kill(self) -> None:
        deadline = time.monotonic() + self._times.kill_s
        while self._look():
            self._kill_group()
            for process in self._left():
                with suppress(psutil.Error):
                    process.kill()
            if self._wait(_KILL_AGAIN_S, lambda: not self._left()) or time.monotonic() > deadline:
                break
        # One that was just being made when its parent died is in no earlier look.
        for process in self._look():
            with suppress(psutil.Error):
                process.kill()
        self._wait(_LAST_KILL_S - _KILL_AGAIN_S, lambda: not self._left())

    def _kill_group(self) -> None:
        """Kills the group at once, so that none can fork away; only while a process of ours proves it is our group."""
        for process in self._left():
            with suppress(OSError):
                if os.getpgid(process.pid) == self._handle.pid and alive(process):
                    os.killpg(self._handle.pid, signal.SIGKILL)
                    return

    def _port_free(self) -> bool:
        return ports.port_free(self._handle.host, self._handle.port)

    def _missing_vram(self, within_s: float) -> dict[str, int] | None:
        before = self._handle.vram_before_mib
        missing: dict[str, int] | None = None

        def back() -> bool:
            nonlocal missing
            used = {str(gpu.index): gpu.used_mib for gpu in self._gpu.read()}
            known = {index: now - before[index] for index in before if (now := used.get(index)) is not None}
            missing = {index: more for index, more in known.items() if more > _VRAM_TOLERANCE_MIB} if known else None
            return not missing

        self._wait(within_s, back)
        return missing

    def _wait(self, seconds: float, done: Callable[[], bool], look: bool = False) -> bool:
        deadline = time.monotonic() + seconds
        next_look = time.monotonic() + _TELL_S
        while not done():
            now = time.monotonic()
            if now >= deadline:
                return False
            if look and now >= next_look:
                self._look()
                next_look = now + _TELL_S
            self._tell(now)
            time.sleep(_POLL_S)
        return True

    def _tell(self, now: float) -> None:
        if now - self._told >= _TELL_S:
            self._told = now
            passed = now - self._began
            self._on_phase(PhaseChanged(phase=Phase.STOPPING, elapsed_s=passed, total_s=passed))

    def _reason(self, left: list[psutil.Process], free: bool, missing: dict[str, int] | None) -> str:
        parts = []
        if left:
            shown = ", ".join(f"{process.pid} (state {_state(process)})" for process in left)
            parts.append(f"Still there after SIGKILL: process {shown}.")
        if not free:
            named = ", ".join(f"process {h.pid}" for h in ports.holders(self._handle.port) if h.pid is not None)
            parts.append(f"Port {self._handle.port} is taken by {named or 'a process that cannot be seen'}.")
        if missing:
            shown = ", ".join(f"{mib} MiB on GPU {index}" for index, mib in missing.items())
            parts.append(f"More memory is in use than before the start: {shown}.")
        return " ".join(parts)


def _state(process: psutil.Process) -> str:
    try:
        return str(process.status())
    except psutil.Error:
        return "unknown"
