"""Which processes belong to a server the tuner started: its main process and everything that came from it."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil

from tuner.server.model import ServerHandle

#: Set in the environment of a start; a helper that leaves the session still carries it.
START_ID_VARIABLE = "TUNER_START_ID"
#: The kernel counts creation times in hundredths of a second.
_TICK_S = 0.05
#: Without a creation time since boot, what the wall clock may be off by.
_CLOCK_S = 1.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def alive(process: psutil.Process) -> bool:
    """Whether the process runs. A zombie does not: containers whose process 1 does not reap keep them for ever."""
    try:
        return process.is_running() and process.status() not in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD)
    except psutil.Error:
        return False


def since_boot_s(process: psutil.Process) -> float:
    """Creation time counted from the boot, seconds. Raises ``psutil.Error``."""
    return process.create_time() - psutil.boot_time()


def boot_id() -> str:
    """The kernel's name of this boot; empty where it does not tell."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def main_process(handle: ServerHandle) -> psutil.Process | None:
    """The server's main process while it lives; None when it is gone or another process has its number."""
    if _of_another_boot(handle):
        return None
    try:
        process = psutil.Process(handle.pid)
        same = abs(_age_difference(process, handle)) < _slack_s(handle)
    except psutil.Error:
        return None
    return process if same and alive(process) and not _is_foreign(process, handle) else None


def _of_another_boot(handle: ServerHandle) -> bool:
    now = boot_id()
    return bool(handle.boot_id and now and handle.boot_id != now)


def _age_difference(process: psutil.Process, handle: ServerHandle) -> float:
    """How much later than the start the process was made, seconds. Raises ``psutil.Error``."""
    if handle.since_boot_s is not None:
        return since_boot_s(process) - handle.since_boot_s
    return process.create_time() - handle.create_time


def _slack_s(handle: ServerHandle) -> float:
    return _TICK_S if handle.since_boot_s is not None else _CLOCK_S


def _is_foreign(process: psutil.Process, handle: ServerHandle) -> bool:
    """Whether the process's environment says that it is not of this start.

    An environment that is empty or may not be read says nothing: SGLang's children overwrite theirs with a title.
    """
    try:
        environment = process.environ()
    except (psutil.Error, OSError):
        return False
    return bool(environment) and bool(handle.start_id) and environment.get(START_ID_VARIABLE) != handle.start_id


def family(handle: ServerHandle) -> list[psutil.Process]:
    """All living processes of this start, the main one first.

    Three ways to belong: the session that the start opened (its number is not given out again while a member lives),
    descent from the main process, and the start's mark in the environment, which survives a change of session. A
    process that is older than the start, or whose environment lacks the mark, is never taken by its session alone.
    """
    if _of_another_boot(handle):
        return []
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
            if os.getsid(pid) != handle.pid:
                continue
            process = psutil.Process(pid)
            older = _age_difference(process, handle) < -_slack_s(handle)
        except (OSError, psutil.Error):
            continue
        if not older and not _is_foreign(process, handle):
            yield process


def _session_is_of_another(handle: ServerHandle) -> bool:
    """Whether the number of our session was given to a new leader after all of ours were gone."""
    if main_process(handle) is not None:
        return False
    try:
        return abs(_age_difference(psutil.Process(handle.pid), handle)) >= _slack_s(handle)
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
