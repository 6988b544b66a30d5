"""Who the processes on a card are: what they run, and whether they belong to the server looked at."""

from __future__ import annotations

from collections.abc import Iterable, Set
from pathlib import Path

import msgspec
import psutil

from tuner.metrics.model import GpuProcess
from tuner.redact import redact, redact_text
from tuner.server import ports
from tuner.server.cards import lineage
from tuner.server.model import ServerHandle
from tuner.text import clip, plain

_SHOWN_CELLS = 160


class Holder(msgspec.Struct, frozen=True):
    """``command`` is without secrets and safe to show, empty where nothing is known of it.

    ``ours``: whether it is of the server asked about; None where that cannot be told.
    """

    command: str
    ours: bool | None


def holders(processes: Iterable[GpuProcess], server: ServerHandle | None) -> dict[int, Holder]:
    """What there is to know of each, by process id. Reads the process table: some milliseconds."""
    main = _main_processes(server) if server is not None else set()
    return {process.pid: _holder(process, main) for process in processes}


def _main_processes(server: ServerHandle) -> set[int]:
    """The server's own process; of one known by its address alone those that listen there. Empty: not known."""
    if server.pid:
        return {server.pid}
    return {found.pid for found in ports.holders(server.port) if found.pid is not None}


def _holder(process: GpuProcess, main: Set[int]) -> Holder:
    told, command = process.name or "", _command(process.pid)
    # In a container the driver's number may be that of another process here, or of none.
    if not command or Path(told.split(" ", 1)[0]).name not in " ".join(command):
        return Holder(_line(redact_text(plain(told))), None)
    program = Path(command[0]).name if command[0].startswith("/") else command[0]
    # Cleaned first: an escape sequence inside a key would hide it from the redaction.
    words = " ".join(redact([plain(word) for word in (program, *command[1:])]))
    return Holder(_line(words), bool(main & lineage(process.pid)) if main else None)


def _line(text: str) -> str:
    """One line: programs are given whole scripts as words."""
    return clip(" ".join(text.split()), _SHOWN_CELLS)


def _command(pid: int) -> list[str]:
    try:
        return psutil.Process(pid).cmdline()
    except (psutil.Error, OSError, ValueError, OverflowError):
        # A driver's number may be none that a process can have.
        return []
