"""Reads a server log file in bounded memory and time."""

from __future__ import annotations

import codecs
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from tuner.serverlog.model import BootFacts
from tuner.serverlog.reader import BootReader

_MIB = 1 << 20
#: A start prints below 100 kB, and a server that is flooded with warnings some MB.
_HEAD = 16 * _MIB
#: Where an end is told of.
_TAIL = 8 * _MIB
#: No line of SGLang is longer; where a piece is cut out, the rest of its line goes too.
_LONGEST_LINE = _MIB


def read_log(path: Path) -> tuple[BootFacts | None, tuple[str, ...]]:
    """Boot facts and last lines of a log file; (None, ()) when it is gone, or no file (a pipe, a device).

    Of a log of more than 24 MiB the middle, which is serving, is left out.
    """
    reader = BootReader()
    try:
        # A named pipe into which nobody writes is opened at once, instead of waited for.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None, ()
            _feed(reader, file)
    except (OSError, ValueError):
        # ValueError: a name that no file can have.
        return None, ()
    reader.close()
    return reader.facts, tuple(reader.tail)


def _feed(reader: BootReader, file: BinaryIO) -> None:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    for text in _texts(file, _HEAD):
        reader.feed(text)
    if size > _HEAD + _TAIL:
        file.seek(size - _TAIL)
        file.readline(_LONGEST_LINE)
        reader.feed("\n")
    for text in _texts(file, _TAIL):
        reader.feed(text)


def _texts(file: BinaryIO, most: int) -> Iterator[str]:
    """Up to ``most`` bytes as text, in pieces; what is no UTF-8 becomes U+FFFD."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    left = most
    while left > 0 and (raw := file.read(min(_MIB, left))):
        left -= len(raw)
        yield decoder.decode(raw)
    yield decoder.decode(b"", final=True)
