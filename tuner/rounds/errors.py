"""What goes wrong with a history, as sentences for the operator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line names HistoryError without loading a database
    import sqlite3
    from pathlib import Path


class HistoryError(Exception):
    """The history cannot be read or written; the message is one sentence that says what to do."""


class UnknownRound(HistoryError, KeyError):
    """No round has this number."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would print its message with quotes


class DamagedRound(HistoryError):
    """One round cannot be read; the others can."""


#: By the start of SQLite's error name (``sqlite_errorname``), first match wins.
_SENTENCES = (
    ("SQLITE_FULL", "The disk that holds the history is full: free some space, then do that again"),
    ("SQLITE_READONLY", "The history may not be written: make the file and its folder writable"),
    ("SQLITE_PERM", "The history may not be opened: check who owns the file"),
    ("SQLITE_CANTOPEN", "The history cannot be opened: check that its folder exists and may be written"),
    ("SQLITE_BUSY", "Another tuner has been writing to the history for too long: end it, then do that again"),
    ("SQLITE_LOCKED", "Another tuner has been writing to the history for too long: end it, then do that again"),
    ("SQLITE_NOTADB", "This file is no history: move it away, and a new one is made"),
    ("SQLITE_CORRUPT", "The history is damaged: move the file away to start a new one, or put a backup in its place"),
    ("SQLITE_IOERR", "The disk that holds the history failed to read or write: check the disk and its free space"),
)


def history_error(error: sqlite3.Error | UnicodeDecodeError, path: Path) -> HistoryError:
    """The sentence for what SQLite ran into at ``path``; text that is no UTF-8 means a damaged file."""
    name = "SQLITE_CORRUPT" if isinstance(error, UnicodeDecodeError) else getattr(error, "sqlite_errorname", "")
    for start, sentence in _SENTENCES:
        if name.startswith(start):
            return HistoryError(f"{sentence} ({path}).")
    return HistoryError(f"The history cannot be used as it is ({path}): {error}.")


def file_error(error: OSError, path: Path) -> HistoryError:
    """The sentence for a file or folder that cannot be made, read or replaced."""
    return HistoryError(f"The history cannot be used at {path}: {error.strerror or error}; check the folder.")
