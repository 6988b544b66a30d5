"""The lock that a server's main process holds for its whole life.

Whoever starts a server (a tuner, an exported start script) takes ``flock`` on ``servers/PORT.live`` and hands the
open file down. The kernel lets go of it when the process ends, however it ends, so a server that still loads is known
before it has a port, and without any file that could be stale.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psutil

from tuner.paths import Home
from tuner.server.handles import PortLocked

#: Somebody who only looks holds the lock for an instant.
_LOOKED_AT_S = 1.0
_POLL_S = 0.02
_CONTENDED = frozenset({errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK})


@contextmanager
def taken(home: Home, port: int) -> Iterator[int]:
    """Takes the lock and yields its descriptor: a child that inherits it holds the lock on after the block.

    Raises ``PortLocked`` while a server lives on the port.
    """
    # A library's lock would close its descriptor; this one has to outlive its taker in another process.
    descriptor = os.open(home.servers / _name(port), os.O_RDWR | os.O_CREAT, 0o600)
    try:
        deadline = time.monotonic() + _LOOKED_AT_S
        while not _locks(descriptor, fcntl.LOCK_EX):
            if time.monotonic() > deadline:
                raise PortLocked(_name(port))
            time.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def held(home: Home, port: int) -> bool:
    """Whether a server on the port lives, serving or still loading, whoever started it."""
    try:
        descriptor = os.open(home.servers / _name(port), os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _locks(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def holders(home: Home, port: int) -> list[psutil.Process]:
    """Processes of this user that have the lock's file open: the server, and children that inherited it."""
    path = str(home.servers / _name(port))
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and any(file.path == path for file in process.open_files()):
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def _name(port: int) -> str:
    return f"{port}.live"


def _locks(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _CONTENDED:
            return False
        raise
    return True
