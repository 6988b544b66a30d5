"""The end of a growing log file, read a piece at a time. The only file reading of the app."""

from __future__ import annotations

from pathlib import Path

from tuner.redact import redact_text
from tuner.text import plain

#: What is read when a log is opened: its end. Larger files keep their head on disk.
WINDOW = 512 * 1024
#: What one read takes at most, so that a fast log cannot hold up the screen.
PIECE = 256 * 1024


class LogTail:
    """Follows one file. Call ``read`` from a thread; it never waits for more."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._position: int | None = None
        self._inode = 0
        self._rest = b""
        #: Bytes before the first line read: what the screen cannot show.
        self.skipped = 0

    def read(self) -> list[str]:
        """New whole lines since the last call, cleaned; of a progress bar only the last frame.

        A file that was cut or replaced is read from its start again. Raises OSError when it cannot be read.
        """
        with self.path.open("rb") as file:
            status = self.path.stat()
            if self._position is None or status.st_ino != self._inode or status.st_size < self._position:
                first = self._position is None
                self._position = max(0, status.st_size - WINDOW) if first else 0
                self.skipped = self._position
                self._inode = status.st_ino
                self._rest = b""
            file.seek(self._position)
            data = file.read(PIECE)
            cut = self._position > 0 and self._position == self.skipped
            self._position += len(data)
        if cut:
            data = data[data.find(b"\n") + 1 :]
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > PIECE:
            lines.append(self._rest)
            self._rest = b""
        return [clean_line(line) for line in lines]

    @property
    def pending(self) -> str:
        """The line not ended yet: a progress bar under way."""
        return clean_line(self._rest)


def clean_line(line: bytes) -> str:
    """A line as shown: after its last carriage return that has text behind it, without escape sequences or secrets."""
    frames = [frame for frame in line.split(b"\r") if frame.strip()]
    # Cleaned first: an escape sequence inside a key would hide it from the redaction.
    return redact_text(plain(frames[-1].decode("utf-8", "replace"))).replace("\t", "    ") if frames else ""
