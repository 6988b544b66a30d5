"""Handles of started servers on disk, one file and one lock per port."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import filelock
import msgspec

from tuner.paths import Home
from tuner.redact import redact
from tuner.server.model import ServerHandle

_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


class PortLocked(Exception):
    """Another process is starting a server on this port right now."""


class HandleStore:
    """Reads and writes handles. A file is replaced whole, so a reader never sees half of one."""

    def __init__(self, home: Home) -> None:
        self._home = home

    @contextmanager
    def locked(self, port: int, timeout_s: float) -> Iterator[None]:
        """Holds the port's lock (``flock`` on ``PORT.lock``); raises ``PortLocked`` when it is not free in time."""
        with self._held(str(port), timeout_s):
            yield

    @contextmanager
    def starting(self, port: int, timeout_s: float) -> Iterator[None]:
        """Holds the lock of all starts and the port's: two starts on different ports may want the same GPU."""
        with self._held("start", timeout_s), self._held(str(port), timeout_s):
            yield

    @contextmanager
    def _held(self, name: str, timeout_s: float) -> Iterator[None]:
        lock = filelock.FileLock(self._home.servers / f"{name}.lock", timeout=timeout_s, mode=0o600)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise PortLocked(name) from error
        try:
            yield
        finally:
            lock.release()

    def write(self, handle: ServerHandle) -> None:
        """Keeps the handle, flushed to disk. Call it with the port's lock held."""
        path = self._path(handle.port)
        draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as file:
                # A recipe's text may hold a key in a comment: it has no business here.
                file.write(msgspec.json.encode(redact(msgspec.to_builtins(handle))))
                file.flush()
                os.fsync(file.fileno())
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise

    def read(self, port: int) -> ServerHandle | None:
        """The handle kept for this port; None when there is none or it is not readable as one."""
        return _decoded(self._path(port))

    def all(self) -> list[ServerHandle]:
        """All handles kept, by port."""
        paths = (path for path in self._home.servers.glob("*.json") if _PORT.fullmatch(path.stem))
        found = (_decoded(path) for path in sorted(paths, key=lambda path: int(path.stem)))
        return [handle for handle in found if handle is not None]

    def forget(self, handle: ServerHandle, timeout_s: float) -> bool:
        """Removes the handle unless a newer one took its place; False when a start holds the lock all the time."""
        try:
            with self.locked(handle.port, timeout_s):
                kept = self.read(handle.port)
                if kept is not None and is_same_start(kept, handle):
                    self._path(handle.port).unlink(missing_ok=True)
        except PortLocked:
            return False
        return True

    def _path(self, port: int) -> Path:
        return self._home.servers / f"{port}.json"


def is_same_start(one: ServerHandle, other: ServerHandle) -> bool:
    """Whether two handles are of one start."""
    return (one.pid, one.create_time, one.start_id) == (other.pid, other.create_time, other.start_id)


def _decoded(path: Path) -> ServerHandle | None:
    """The handle in the file; None where it is not readable as one, or names what can be no server of ours."""
    try:
        handle = msgspec.json.decode(path.read_bytes(), type=ServerHandle)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    impossible = handle.pid <= 1 or handle.pid in (os.getpid(), os.getppid())
    return None if impossible or str(handle.port) != path.stem else handle
