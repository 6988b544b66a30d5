"""Which processes belong to a server the tuner started: its main process and everything that came from it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator

import psutil

from tuner.server.model import ServerHandle

#: Set in the environment of a start; a helper that leaves the session still carries it.
START_ID_VARIABLE = "TUNER_START_ID"
#: The kernel counts creation times in hundredths of a second.
_TICK_S = 0.05
#: Without a creation time since boot, what the wall clock may be off by.
_CLOCK_S = 1.0


def alive(process: psutil.Process) -> bool:
    """Whether the process runs. A zombie does not: containers whose process 1 does not reap keep them for ever."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def since_boot_s(process: psutil.Process) -> float:
    """Creation time counted from the boot, seconds. Raises ``psutil.Error``."""
    return process.create_time() - psutil.boot_time()


def main_process(handle: ServerHandle) -> psutil.Process | None:
    """The server's main process while it lives; None when it is gone or another process has its number."""
    try:
        process = psutil.Process(handle.pid)
        if handle.since_boot_s is not None:
            same = abs(since_boot_s(process) - handle.since_boot_s) < _TICK_S
        else:
            same = abs(process.create_time() - handle.create_time) < _CLOCK_S
    except psutil.Error:
        return None
    return process if same and alive(process) else None


def family(handle: ServerHandle) -> list[psutil.Process]:
    """All living processes of this start, the main one first.

    Three ways to belong: the session that the start opened (its number is not given out again while a member lives),
    descent from the main process, and the start's mark in the environment, which survives a change of session.
    """
    main = main_process(handle)
    found: dict[int, psutil.Process] = {}
    if main is not None:
        found[main.pid] = main
        try:
            found.update((child.pid, child) for child in main.children(recursive=True))
        except psutil.Error:
            main = None
    for process in (*_session_members(handle), *_marked(handle)):
        found.setdefault(process.pid, process)
    found.pop(os.getpid(), None)
    return [process for process in found.values() if alive(process)]


def _session_members(handle: ServerHandle) -> Iterator[psutil.Process]:
    if _session_is_of_another(handle):
        return
    for pid in psutil.pids():
        try:
            if os.getsid(pid) == handle.pid:
                yield psutil.Process(pid)
        except (OSError, psutil.Error):
            continue


def _session_is_of_another(handle: ServerHandle) -> bool:
    """Whether the number of our session was given to a new leader after all of ours were gone."""
    if main_process(handle) is not None:
        return False
    try:
        leader = psutil.Process(handle.pid)
        if handle.since_boot_s is not None:
            return abs(since_boot_s(leader) - handle.since_boot_s) >= _TICK_S
        return abs(leader.create_time() - handle.create_time) >= _CLOCK_S
    except psutil.Error:
        return False


def _marked(handle: ServerHandle) -> Iterator[psutil.Process]:
    if not handle.start_id:
        return
    for process in psutil.process_iter():
        try:
            if process.environ().get(START_ID_VARIABLE) == handle.start_id:
                yield process
        except (psutil.Error, OSError):
            continue


def living(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that still run."""
    return [process for process in processes if alive(process)]
