"""Reads a server log file whole, in bounded memory."""

from __future__ import annotations

from pathlib import Path

from tuner.serverlog import BootReader
from tuner.serverlog.model import BootFacts

_CHUNK = 1 << 20


def read_log(path: Path) -> tuple[BootFacts | None, tuple[str, ...]]:
    """Boot facts and last lines of a log file of any size, in bounded memory; (None, ()) when it is gone."""
    reader = BootReader()
    try:
        with path.open(encoding="utf-8", errors="replace", newline="") as file:
            while chunk := file.read(_CHUNK):
                reader.feed(chunk)
        reader.close()
    except OSError:
        return None, ()
    return reader.facts, tuple(reader.tail)
