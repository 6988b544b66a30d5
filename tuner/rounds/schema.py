"""Tables of the history, and how an older history becomes one of today.

``PRAGMA application_id`` marks a file as ours, ``PRAGMA user_version`` counts the migrations it has had.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from pathlib import Path

from filelock import FileLock

from tuner.rounds.errors import HistoryError, file_error, history_error

#: "TUNE"; at byte 68 of every SQLite file.
APPLICATION_ID = 0x54554E45
_MAGIC = b"SQLite format 3\x00"

#: Statements that lead from version i to i + 1. A migration that was released is never changed.
MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        # AUTOINCREMENT: a number is never given twice.
        """CREATE TABLE rounds (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            started_at REAL NOT NULL,
            state TEXT NOT NULL,
            simulated INTEGER NOT NULL,
            verdict TEXT NOT NULL,
            note TEXT NOT NULL,
            phase TEXT NOT NULL,
            reason TEXT NOT NULL,
            model TEXT NOT NULL,
            flags TEXT NOT NULL,
            kv_tokens INTEGER,
            mamba_slots INTEGER,
            max_running_requests INTEGER,
            ready_seconds REAL,
            checks_passed INTEGER NOT NULL,
            checks_total INTEGER NOT NULL,
            ttft_p50_s REAL,
            itl_p50_s REAL,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX rounds_by_kind ON rounds (simulated, number)",
        "CREATE INDEX rounds_by_state ON rounds (state, number)",
        """CREATE TABLE samples (
            id INTEGER PRIMARY KEY,
            round INTEGER NOT NULL REFERENCES rounds (number),
            at REAL NOT NULL,
            body TEXT NOT NULL
        )""",
        "CREATE INDEX samples_by_round ON samples (round, at)",
    ),
    # A list of texts as JSON.
    ("ALTER TABLE rounds ADD COLUMN tags TEXT NOT NULL DEFAULT '[]'",),
)


def prepare(path: Path) -> None:
    """Makes sure that ``path`` is a history of today: creates it, or migrates it after a backup.

    A file that is no history of ours, or one of a newer tuner, is left untouched. Raises HistoryError.
    """
    try:
        if _is_ours(path) and _version_of(path) == len(MIGRATIONS):
            return
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with FileLock(path.with_name(path.name + ".lock")):
            # Looked at again: another tuner may have been faster.
            if not _is_ours(path):
                _create(path)
            elif (version := _version_of(path)) < len(MIGRATIONS):
                _migrate(path, version)
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise history_error(error, path) from error
    except OSError as error:
        raise file_error(error, path) from error


def connect(path: Path) -> sqlite3.Connection:
    """A connection in autocommit mode: transactions are begun and ended by hand."""
    return sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)


def only_readable(path: Path) -> bool:
    """Whether a history is there that may be read, but neither written nor have anything beside it."""
    return path.is_file() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))


def connect_to_read(path: Path) -> sqlite3.Connection:
    """A connection to a history that may only be read: it is made for today's tuner already. Raises HistoryError."""
    try:
        ours = _is_ours(path)
        connection = _reader(path)
        version = int(connection.execute("PRAGMA user_version").fetchone()[0]) if ours else 0
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise history_error(error, path) from error
    except OSError as error:
        raise file_error(error, path) from error
    if version == len(MIGRATIONS):
        return connection
    connection.close()
    raise HistoryError(
        f"The history was written by another version of the tuner and may not be changed here: copy it to a folder "
        f"you can write, and set TUNER_HOME to that ({path})."
    )


def _reader(path: Path) -> sqlite3.Connection:
    log = path.with_name(f"{path.name}-wal")
    # A log that is still to be played in needs the file beside it; without one the file is all there is.
    fixed = "" if log.exists() and log.stat().st_size else "&immutable=1"
    where = f"{path.absolute().as_uri()}?mode=ro{fixed}"
    return sqlite3.connect(where, uri=True, timeout=10.0, isolation_level=None, check_same_thread=False)


def _is_ours(path: Path) -> bool:
    """Whether a history of ours is there. False: nothing is. Reads the header only, so that nothing is touched."""
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        return False
    if not head:
        return False
    if not head.startswith(_MAGIC):
        raise HistoryError(f"This file is no history: move it away, and a new one is made ({path}).")
    if int.from_bytes(head[68:72], "big") != APPLICATION_ID:
        raise HistoryError(f"This database belongs to another program: choose another place for the history ({path}).")
    return True


def _version_of(path: Path) -> int:
    connection = connect(path)
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    finally:
        connection.close()
    if version > len(MIGRATIONS):
        raise HistoryError(
            f"The history was written by a newer tuner (its version {version}, this one knows {len(MIGRATIONS)}): "
            f"update the tuner, or set TUNER_HOME to another folder ({path})."
        )
    return version


def _create(path: Path) -> None:
    """Builds the history beside ``path`` and moves it there, so that a half-made one never stands in its place."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    os.close(os.open(new, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    connection = connect(new)
    try:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        _apply(connection, 0)
        # Last, so that all of the above is in the file itself and not in a log beside it.
        connection.execute("PRAGMA journal_mode = WAL")
    finally:
        connection.close()
    for left in ("-wal", "-shm"):
        # A log left behind by a history that was moved away would be played into the new one.
        path.with_name(path.name + left).unlink(missing_ok=True)
    new.replace(path)
    _sync_folder(path.parent)


def _migrate(path: Path, version: int) -> None:
    backup = path.with_name(f"{path.name}.version-{version}")
    connection = connect(path)
    try:
        _back_up(connection, backup)
        _apply(connection, version)
    except sqlite3.Error as error:
        raise HistoryError(
            f"The history could not be brought to version {len(MIGRATIONS)} and stays as it was: {error} "
            f"({path}; a backup is {backup.name})."
        ) from error
    finally:
        connection.close()


def _back_up(connection: sqlite3.Connection, backup: Path) -> None:
    part = backup.with_name(f"{backup.name}.part")
    part.unlink(missing_ok=True)
    os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    copy = connect(part)
    try:
        connection.backup(copy)
    finally:
        copy.close()
    part.replace(backup)
    _sync_folder(backup.parent)


def _apply(connection: sqlite3.Connection, version: int) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _statements(MIGRATIONS[version:]):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def _statements(migrations: Sequence[Sequence[str]]) -> list[str]:
    return [statement for migration in migrations for statement in migration]


def _sync_folder(folder: Path) -> None:
    """Makes a rename last through a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
