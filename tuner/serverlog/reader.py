"""A server's output, read as it comes, into the facts of its start."""

from __future__ import annotations

import re
from collections import deque

from tuner.serverlog.arguments import is_echo, read_arguments
from tuner.serverlog.batch import batch_line, read_batch
from tuner.serverlog.boot import Boot, is_time
from tuner.serverlog.model import BatchLine, BootFacts, Record
from tuner.serverlog.patterns import LOGGED_REQUEST, PROGRESS
from tuner.serverlog.quiet import BATCH_MARK, FIRST_OF, FIRST_STAMP, RUN
from tuner.serverlog.records import LineCutter, line_records

_MAX_BATCH_LINES = 10_000
_MAX_TAIL = 200
_TAIL_WIDTH = 4_000
#: Of a record, the characters that events are looked for in: the longest real one has 450 (recordings of 0.5.17).
_EVENT_WIDTH = 4_000
#: The same of the ``server_args=`` line, which has 14,500.
_ECHO_WIDTH = 32_000


class _Unread(str):
    """A line as it stands in the log, in which there is one record."""

    __slots__ = ()


class BootReader:
    """Reads a server's output in pieces cut anywhere; memory is bounded.

    When a log holds several starts, the facts are those of the last. ``close`` takes the last line into account when
    nothing more will come; until then a line without an end is not read, for it may be cut inside a number.
    """

    def __init__(self) -> None:
        self._cutter = LineCutter()
        self._boot = Boot()
        #: Records, and lines of runs as they stand in the log: few of them are ever asked for.
        self._tail: deque[str | _Unread] = deque(maxlen=_MAX_TAIL)
        self._batch_lines: deque[BatchLine | _Unread] = deque(maxlen=_MAX_BATCH_LINES)

    def feed(self, text: str) -> None:
        """Read more of the output."""
        at = text.find("\n") + 1 if self._cutter.within_line else 0
        self._feed_lines(text[:at])
        if self._cutter.within_line:
            self._feed_lines(text[at:])
            return
        for run in RUN.finditer(text, at):
            self._feed_lines(text[at : run.start()])
            self._feed_run(run[0])
            at = run.end()
        self._feed_lines(text[at:])

    def _feed_lines(self, text: str) -> None:
        for line in self._cutter.feed(text):
            self._read(line)

    def _feed_run(self, run: str) -> None:
        """What reading the lines one by one would change, and nothing for each of them."""
        boot = self._boot
        stamp = FIRST_STAMP.search(run)
        if stamp is not None and is_time(stamp["at"]):
            boot.see_time(stamp["at"])
        for kind, pattern in FIRST_OF.items():
            if kind not in boot.batches_seen and (first := pattern.search(run)):
                boot.see_batch(kind, first[0].rstrip())
        lines = run.splitlines()
        self._batch_lines.extend(_Unread(line) for line in lines[-_MAX_BATCH_LINES:] if BATCH_MARK in line)
        self._tail.extend(_Unread(line) for line in lines[-_MAX_TAIL:])

    def close(self) -> None:
        """Read the last line too, though it has no end."""
        if line := self._cutter.close():
            self._read(line)

    @property
    def facts(self) -> BootFacts:
        """What is known so far."""
        return self._boot.facts

    @property
    def last_line(self) -> str:
        """The last record, without time stamp, escape sequences and secrets."""
        return _record_text(self._tail[-1]) if self._tail else ""

    @property
    def tail(self) -> list[str]:
        """The last 200 records, as ``last_line``, oldest first."""
        return [_record_text(line) for line in self._tail]

    @property
    def batch_lines(self) -> list[BatchLine]:
        """Batch lines not yet drained, oldest first; at most the last 10,000."""
        read = (batch_line(line) if isinstance(line, _Unread) else line for line in self._batch_lines)
        return [line for line in read if line is not None]

    def drain(self) -> list[BatchLine]:
        """``batch_lines``, which are then forgotten."""
        lines = self.batch_lines
        self._batch_lines.clear()
        return lines

    def _read(self, line: str) -> None:
        for record in line_records(line):
            self._tail.append(record.text[:_TAIL_WIDTH])
            self._read_record(record)
            if LOGGED_REQUEST.match(record.text):
                # A time stamp in what was asked or answered begins no record.
                return

    def _read_record(self, record: Record) -> None:
        boot, text = self._boot, record.text
        if is_time(record.at):
            boot.see_time(record.at)
        if batch := read_batch(text, record.at):
            self._batch_lines.append(batch)
            boot.see_batch(batch.kind, text)
            return
        if echo := is_echo(text):
            self._server_args(echo, record)
            return
        text = text[:_EVENT_WIDTH]
        if not PROGRESS.match(text):
            boot.see(text, record.at, record.ranks)

    def _server_args(self, echo: re.Match[str], record: Record) -> None:
        if self._boot.begun:
            self._boot = Boot()
            if is_time(record.at):
                self._boot.see_time(record.at)
        self._boot.see_arguments(read_arguments(echo["fields"]), record.text[:_ECHO_WIDTH])


def _record_text(line: str | _Unread) -> str:
    if not isinstance(line, _Unread):
        return line
    return next(record.text for record in line_records(line))[:_TAIL_WIDTH]


def read_boot(text: str) -> BootFacts:
    """The facts of a whole log (of its last start)."""
    reader = BootReader()
    reader.feed(text)
    reader.close()
    return reader.facts
