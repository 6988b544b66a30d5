"""Cutting a server's output into records, however it arrives.

SGLang's progress bars end in carriage returns, and a bar without an end of line can have the next record glued to
it (0.5.17, recordings), so a record also starts at a time stamp in the middle of a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tuner.redact import redact_text
from tuner.serverlog.model import Record
from tuner.text import plain

#: Characters of one line that are kept; the rest of a longer one is dropped. The longest real one has 13,000.
MAX_LINE = 256 * 1024

_STAMP = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
_GLUED = re.compile(rf"(?={_STAMP})")
_END_OF_LINE = re.compile(r"[\r\n]+")
_RANKS = r"(?:DP|PP|ATTN_CP|MOE_DP|TP|EP)\d+"
_PREFIX = re.compile(
    rf"\[(?:(?P<at>\d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d)(?:\.\d+)?)?(?P<ranks>(?:(?:(?<=\[)| ){_RANKS})*)\] ?"
)
#: Nearly all lines of a serving server, and full of "token": they are not searched for secrets.
_NUMBERS_ONLY = re.compile(r"(?:Prefill|Decode) batch[^='\"]*$")
_CONTAINER = re.compile(r"^[\w.-]+\s+\| ?")


class LineCutter:
    """Puts lines together from pieces cut anywhere; holds at most ``MAX_LINE`` characters of an unfinished line."""

    def __init__(self) -> None:
        self._pieces: list[str] = []
        self._length = 0

    def feed(self, text: str) -> Iterator[str]:
        """The lines that ``text`` completes, without their ends; empty ones are left out."""
        start = 0
        for end in _END_OF_LINE.finditer(text):
            self._keep(text[start : end.start()])
            start = end.end()
            if line := self._take():
                yield line
        self._keep(text[start:])

    @property
    def within_line(self) -> bool:
        """Whether the next piece goes on with a line that has begun."""
        return bool(self._pieces)

    def close(self) -> str:
        """The line that has no end yet, or an empty string."""
        return self._take()

    def _keep(self, piece: str) -> None:
        piece = piece[: MAX_LINE - self._length]
        if piece:
            self._pieces.append(piece)
            self._length += len(piece)

    def _take(self) -> str:
        line = "".join(self._pieces)
        self._pieces.clear()
        self._length = 0
        return line


def records(text: str) -> Iterator[Record]:
    """All records of ``text``, without escape sequences and secrets; empty ones are left out."""
    cutter = LineCutter()
    for line in cutter.feed(text):
        yield from line_records(line)
    yield from line_records(cutter.close())


def line_records(line: str) -> Iterator[Record]:
    """The records of one line: more than one when a record is glued to a progress bar."""
    for piece in _GLUED.split(plain(line)):
        if record := _record(piece):
            yield record


def _record(piece: str) -> Record | None:
    piece = _CONTAINER.sub("", piece, count=1)
    prefix = _PREFIX.match(piece)
    if prefix and (prefix["at"] or prefix["ranks"]):
        at, ranks, text = prefix["at"], prefix["ranks"].strip(), piece[prefix.end() :]
    else:
        at, ranks, text = None, "", piece
    text = text.rstrip()
    if not _NUMBERS_ONLY.match(text):
        text = redact_text(text)
    return Record(at=at, ranks=ranks, text=text) if text.strip() else None
