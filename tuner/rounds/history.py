"""The history of rounds: an SQLite file that survives the end of the tuner at any moment.

Every call is one transaction in write-ahead mode with ``synchronous = FULL``: when it returns, it is on the disk.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from tuner.metrics.model import Readings
from tuner.redact import redact
from tuner.rounds import schema
from tuner.rounds.errors import DamagedRound, HistoryError, UnknownRound, history_error
from tuner.rounds.model import Round, RoundState
from tuner.rounds.pareto import Point, best
from tuner.rounds.rows import (
    COLUMNS,
    LAST_TIME,
    SUMMARY,
    as_json,
    kept_text,
    line_of,
    point_of,
    read_text,
    readable,
    round_of,
    values_of,
    whole_samples,
)
from tuner.rounds.samples import Moments, moment, packed, thinned
from tuner.rounds.search import ANY, WHOLE_TAGS, Search, condition, normal_tag
from tuner.rounds.summary import RoundSummary

__all__ = ["DamagedRound", "History", "HistoryError", "UnknownRound"]

Rounds: TypeAlias = list[Round]
Summaries: TypeAlias = list[RoundSummary]
Samples: TypeAlias = list[Readings]
Points: TypeAlias = list[Point]

_READINGS = msgspec.json.Decoder(Readings)

#: The operator's own words on a round, and what they may be.
VERDICTS = ("keep", "reject", "")

#: Points of the widest chart there is: two a cell of a screen of 300.
_COLUMNS_OF_A_CHART = 600
_OPENED = (*COLUMNS, "note", "verdict", "tags")
_OPEN = f"INSERT INTO rounds ({', '.join(_OPENED)}) VALUES ({', '.join('?' * len(_OPENED))})"
_SAVE = f"UPDATE rounds SET {', '.join(f'{c} = ?' for c in COLUMNS)} WHERE number = ?"
_ROUND = "SELECT number, note, verdict, tags, body FROM rounds"
_LINES = f"""SELECT number, note, verdict, tags, flags, {", ".join(SUMMARY)},
    (SELECT before.flags FROM rounds AS before WHERE before.simulated = rounds.simulated
     AND before.number < rounds.number ORDER BY before.number DESC LIMIT 1) AS flags_before,
    json_valid(body) AS whole
    FROM rounds"""
#: What places a round among the best, without reading the rounds themselves. A page at a time: others wait meanwhile.
_POINTS = """SELECT number, simulated, kv_tokens, max_running_requests, ttft_p50_s,
    json_extract(body, '$.fingerprint.config', '$.recipe.flags.model_path', '$.recipe.tuner.model_shape', '$.gpu_name',
                 '$.effective.max_req_input_len', '$.plan.longest_input_tokens') AS told
    FROM rounds WHERE state = 'verified' AND verdict != 'reject' AND json_valid(body) AND number > ?
    ORDER BY number LIMIT 500"""


class History:
    """All rounds of one operator. Any thread may call any method; several tuners may share the file.

    Every method raises HistoryError when the file cannot be read or written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.RLock()
        #: Whether nothing can be kept: the file, its folder or their disk may only be read.
        self.only_readable = schema.only_readable(self.path)
        if not self.only_readable:
            schema.prepare(self.path)
        with self._told():
            self._connection = (schema.connect_to_read if self.only_readable else schema.connect)(self.path)
            self._connection.row_factory = sqlite3.Row
            # Bytes that are no text damage one round, not the reading of all others.
            self._connection.text_factory = read_text
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA foreign_keys = ON")

    def close(self) -> None:
        """Lets go of the file; a second call does nothing."""
        with self._told():
            self._connection.close()

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open_round(self, draft: Round) -> Round:
        """Keeps ``draft`` under a number of its own, given by the database, and returns it with that number.

        What is returned still holds the recipe as given, secrets and all: it is what the round is started from.
        """
        tags = json.dumps(sorted({kept_text(normal_tag(tag)) for tag in draft.tags}))
        with self._writing() as connection:
            # The number is part of the body, so the row comes first and its body in the same transaction.
            values = values_of(draft)
            cursor = connection.execute(_OPEN, (*values, kept_text(draft.note), draft.verdict, tags))
            number = cursor.lastrowid
            assert number is not None
            opened = msgspec.structs.replace(draft, number=number)
            connection.execute(_SAVE, (*values_of(opened), number))
        return opened

    def save(self, round_: Round) -> Round:
        """Keeps the new state of a round and returns it as kept.

        Note, verdict and tags stay as ``set_note`` and its like left them: the operator may have written them
        while the round was running.
        """
        with self._writing() as connection:
            cursor = connection.execute(_SAVE, (*values_of(round_), round_.number))
            self._must_exist(cursor, round_.number)
            return round_of(self._row(round_.number))

    def get(self, number: int) -> Round:
        """The round with this number. Raises UnknownRound (also a KeyError) when there is none."""
        with self._told():
            return round_of(self._row(number))

    def find(self, number: int) -> Round | None:
        """The round with this number, or None."""
        with self._told():
            row = self._connection.execute(f"{_ROUND} WHERE number = ?", (number,)).fetchone()
            return round_of(row) if row else None

    def list(
        self,
        limit: int = 50,
        offset: int = 0,
        newest_first: bool = True,
        simulated: bool | None = None,
        search: Search = ANY,
    ) -> Rounds:
        """Rounds by number that ``search`` finds, a page of at most ``limit`` from ``offset`` on.

        Damaged ones are left out; ``summaries`` names them.
        """
        with self._told():
            page = self._page(_ROUND, limit, offset, newest_first, simulated, search)
            return [round_ for row in page if (round_ := readable(row)) is not None]

    def summaries(
        self,
        limit: int = 50,
        offset: int = 0,
        newest_first: bool = True,
        simulated: bool | None = None,
        search: Search = ANY,
    ) -> Summaries:
        """One line per round, without reading the rounds themselves: fast at any length of the history.

        A damaged round has a line too: with what is known of it, and ``damaged`` says why.
        """
        with self._told():
            return [line_of(row) for row in self._page(_LINES, limit, offset, newest_first, simulated, search)]

    def count(self, simulated: bool | None = None, search: Search = ANY) -> int:
        """How many rounds there are, or how many ``search`` finds."""
        where, values = self._where(search, simulated)
        with self._told():
            return int(self._connection.execute(f"SELECT count(*) FROM rounds{where}", values).fetchone()[0])

    def set_note(self, number: int, note: str) -> None:
        """Writes the operator's note on a round."""
        self._set("note", number, str(redact(note)))

    def set_verdict(self, number: int, verdict: str) -> None:
        """Marks a round as one to "keep" or to "reject"; an empty text takes the mark away."""
        if verdict not in VERDICTS:
            raise HistoryError(f'A round is marked with "keep", "reject" or nothing, not with "{verdict}".')
        self._set("verdict", number, verdict)

    def set_tags(self, number: int, add: Iterable[str] = (), remove: Iterable[str] = ()) -> tuple[str, ...]:
        """Adds and takes away tags, and returns those the round has then, in order."""
        plus, minus = [normal_tag(tag) for tag in add], {normal_tag(tag) for tag in remove}
        with self._writing() as connection:
            kept = round_of(self._row(number)).tags
            tags = sorted({kept_text(tag) for tag in (*kept, *plus)} - minus)
            connection.execute("UPDATE rounds SET tags = ? WHERE number = ?", (json.dumps(tags), number))
        return tuple(tags)

    def tags(self) -> dict[str, int]:
        """Every tag in use with how many rounds have it."""
        with self._told():
            rows = self._connection.execute(
                f"SELECT value, count(*) FROM rounds, json_each({WHOLE_TAGS}) AS tag WHERE tag.type = 'text' "
                "GROUP BY value ORDER BY value"
            )
            return {row[0]: row[1] for row in rows}

    def last_good(self, simulated: bool | None = None) -> Round | None:
        """The newest round marked "keep"; without one, the newest verified round that is not rejected; or None."""
        kept = self._newest(*condition(Search(verdict="keep"), simulated))
        if kept is not None:
            return kept
        where, values = condition(Search(states=(RoundState.VERIFIED,)), simulated)
        return self._newest(f"{where} AND verdict != 'reject'", values)

    def last(self, states: Iterable[RoundState] = (), simulated: bool | None = None) -> Round | None:
        """The newest round in one of ``states`` (any, when none is named), or None."""
        return self._newest(*condition(Search(states=tuple(states)), simulated))

    def points(self) -> Points:
        """Where each verified round that is not rejected stands between input, agents and latency (see ``pareto``).

        Damaged ones stand nowhere.
        """
        found: list[Point] = []
        last = 0
        while True:
            with self._told():
                page = self._connection.execute(_POINTS, (last,)).fetchall()
            if not page:
                return found
            found += [point for row in page if (point := point_of(row)) is not None]
            last = page[-1]["number"]

    def front(self) -> frozenset[int]:
        """Numbers of the rounds that no other one beats in everything (see ``pareto``)."""
        return best(self.points())

    def add_samples(self, number: int, readings: Iterable[Readings]) -> None:
        """Keeps readings taken during a round, all of them or none."""
        rows = [(number, sample.at, as_json(packed(sample))) for sample in readings]
        with self._writing() as connection:
            self._row(number)
            connection.executemany("INSERT INTO samples (round, at, body) VALUES (?, ?, ?)", rows)

    def samples(self, number: int) -> Samples:
        """The readings taken during a round, in the order of time.

        Damaged ones are left out; where not one can be read, DamagedRound is raised.
        """
        with self._told():
            rows = self._connection.execute(
                "SELECT CAST(body AS BLOB) FROM samples WHERE round = ? ORDER BY at, id", (number,)
            )
            return list(whole_samples(rows, _READINGS.decode, number))

    def moments(self, number: int, every_s: float | None = None, since: float = 0.0) -> Moments:
        """What charts show of a round's readings from ``since`` (Unix time) on, one for each ``every_s`` seconds.

        Without ``every_s`` as many as a wide chart has columns. Reads a day of readings at one a second in a few
        tenths of a second, and holds none of them. Damaged ones are left out, as of ``samples``.
        """
        with self._told():
            if every_s is None:
                # A time that was overwritten by a text or by bytes comes after all numbers.
                ends = "SELECT min(at), max(at) FROM samples WHERE round = ? AND at BETWEEN ? AND ?"
                first, last = self._connection.execute(ends, (number, since, LAST_TIME)).fetchone()
                every_s = max(1.0, (last - first) / _COLUMNS_OF_A_CHART) if first is not None else 1.0
            # As bytes: to make a text of each would take as long as all the rest.
            rows = self._connection.cursor()
            rows.row_factory = None
            rows.execute(
                "SELECT CAST(body AS BLOB) FROM samples WHERE round = ? AND at >= ? ORDER BY at, id", (number, since)
            )
            return thinned(whole_samples(rows, moment, number), every_s)

    def sampled_since(self, since: float) -> tuple[int, ...]:
        """Numbers of the rounds, of the newest 500, with readings from ``since`` (Unix time) on, in order."""
        with self._told():
            rows = self._connection.execute(
                "SELECT number FROM (SELECT number FROM rounds ORDER BY number DESC LIMIT 500) AS newest WHERE EXISTS "
                "(SELECT 1 FROM samples WHERE round = number AND at >= ?) ORDER BY number",
                (since,),
            )
            return tuple(row["number"] for row in rows)

    def thin_samples(self, number: int, before: float, every_s: float) -> int:
        """Of a round's readings older than ``before`` (Unix time) keeps the first of each ``every_s`` seconds.

        Returns how many it threw away.
        """
        with self._writing() as connection:
            cursor = connection.execute(
                "DELETE FROM samples WHERE id IN (SELECT id FROM (SELECT id, CAST(at / ?1 AS INTEGER) AS stretch, "
                "lag(CAST(at / ?1 AS INTEGER)) OVER (ORDER BY at, id) AS earlier FROM samples "
                "WHERE round = ?2 AND at < ?3) WHERE stretch = earlier)",
                (every_s, number, before),
            )
            return cursor.rowcount

    def _set(self, column: str, number: int, text: str) -> None:
        with self._writing() as connection:
            cursor = connection.execute(f"UPDATE rounds SET {column} = ? WHERE number = ?", (kept_text(text), number))
            self._must_exist(cursor, number)

    def _where(self, search: Search, simulated: bool | None) -> tuple[str, tuple[Any, ...]]:
        return condition(search, simulated, sorted(self.front()) if search.front else None)

    def _page(
        self, select: str, limit: int, offset: int, newest_first: bool, simulated: bool | None, search: Search
    ) -> Sequence[sqlite3.Row]:
        where, values = self._where(search, simulated)
        order = "DESC" if newest_first else "ASC"
        return self._connection.execute(
            f"{select}{where} ORDER BY number {order} LIMIT ? OFFSET ?", (*values, limit, offset)
        ).fetchall()

    def _newest(self, where: str, values: tuple[Any, ...]) -> Round | None:
        """The newest round that can be read."""
        with self._told():
            rows = self._connection.execute(f"{_ROUND}{where} ORDER BY number DESC", values)
            return next((round_ for row in rows if (round_ := readable(row)) is not None), None)

    def _row(self, number: int) -> sqlite3.Row:
        row: sqlite3.Row | None = self._connection.execute(f"{_ROUND} WHERE number = ?", (number,)).fetchone()
        if row is None:
            raise self._unknown(number)
        return row

    def _must_exist(self, cursor: sqlite3.Cursor, number: int) -> None:
        if cursor.rowcount == 0:
            raise self._unknown(number)

    def _unknown(self, number: int) -> UnknownRound:
        newest = self._connection.execute("SELECT max(number) FROM rounds").fetchone()[0]
        there_is = f"the newest is r{newest}" if newest else "the history is still empty"
        return UnknownRound(f"There is no round r{number}: {there_is}.")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """One thread at a time, and SQLite's errors as sentences."""
        with self._lock:
            try:
                yield
            except (sqlite3.Error, UnicodeDecodeError) as error:
                raise history_error(error, self.path) from error
            except OverflowError as error:
                raise HistoryError("A number of this round is too large to be kept.") from error

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction: committed at the end, taken back when anything goes wrong in between."""
        with self._told():
            connection = self._connection
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            finally:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
