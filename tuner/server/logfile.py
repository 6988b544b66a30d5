"""Log files of servers: a new one per start, old ones cleared, and reading one while it grows."""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Collection
from datetime import UTC, datetime
from pathlib import Path

KEEP_DAYS = 14.0
KEEP_FILES = 50
_CHUNK = 256 << 10
#: The longest line SGLang prints, ``server_args=``, has 14.5 thousand characters.
_LONGEST_LINE = 128 << 10
_DAY_S = 86_400.0


def create_log(folder: Path, port: int, now: float) -> Path:
    """A new empty file ``PORT-TIMESTAMP.log``, readable by its owner only: SGLang prints API keys into its log."""
    stamp = datetime.fromtimestamp(now, UTC).strftime("%Y%m%dT%H%M%SZ")
    attempt = 1
    while True:
        path = folder / (f"{port}-{stamp}.log" if attempt == 1 else f"{port}-{stamp}-{attempt}.log")
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        except FileExistsError:
            attempt += 1
        else:
            return path


def note_stop(log_path: str | Path, now: float) -> None:
    """Writes into a server's log that the tuner stops it: what comes after is no crash, silence included.

    SGLang says so itself, but not while it loads, hangs, or logs errors only. Raises OSError.
    """
    stamp = datetime.fromtimestamp(now).strftime("%Y-%m-%d %H:%M:%S")
    log = os.open(log_path, os.O_RDWR | os.O_APPEND | os.O_NONBLOCK)
    try:
        end = os.lseek(log, 0, os.SEEK_END)
        # A progress bar ends without an end of line.
        line_end = "\n" if end > 0 and os.pread(log, 1, end - 1) not in (b"\n", b"\r") else ""
        os.write(log, f"{line_end}[{stamp}] SIGTERM sent by tuner: a stop was asked for.\n".encode())
    finally:
        os.close(log)


def clear_old_logs(
    folder: Path,
    in_use: Collection[str],
    keep_days: float = KEEP_DAYS,
    keep_files: int = KEEP_FILES,
    now: float | None = None,
) -> list[Path]:
    """Removes logs older than ``keep_days`` and all but the newest ``keep_files``; returns what it removed.

    Logs of living servers (``in_use``, paths) stay whatever their age, and so does any file of another name.
    """
    now = time.time() if now is None else now
    aged = []
    for path in folder.glob("*-*.log"):
        if path.name.split("-", 1)[0].isdigit() and str(path) not in in_use:
            try:
                aged.append((path.stat().st_mtime, path))
            except FileNotFoundError:
                continue
    removed = []
    for position, (changed, path) in enumerate(sorted(aged, reverse=True)):
        if position >= keep_files or now - changed > keep_days * _DAY_S:
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


class LogTail:
    """Reads a log as it grows, in pieces of bounded size; lines longer than SGLang's longest are cut.

    Bytes that are no UTF-8 become U+FFFD. A file that was truncated is read from its start again.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._offset = 0
        self._decoder = _new_decoder()
        self._line = 0

    def read(self) -> str:
        """The next piece; empty when there is nothing new, or no file."""
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self._offset:
                    self._offset = 0
                    self._decoder = _new_decoder()
                    self._line = 0
                file.seek(self._offset)
                while raw := file.read(_CHUNK):
                    self._offset += len(raw)
                    if text := self._cut(self._decoder.decode(raw)):
                        return text
        except OSError:
            return ""
        return ""

    def _cut(self, text: str) -> str:
        if self._line + len(text) <= _LONGEST_LINE:
            last = max(text.rfind("\n"), text.rfind("\r"))
            self._line = self._line + len(text) if last < 0 else len(text) - last - 1
            return text
        kept = []
        for line in text.splitlines(keepends=True):
            ends = line[-1] in "\r\n"
            room = max(0, _LONGEST_LINE - self._line)
            kept.append(line if len(line) <= room else line[:room] + (line[-1] if ends else ""))
            self._line = 0 if ends else self._line + len(line)
        return "".join(kept)


def _new_decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")
