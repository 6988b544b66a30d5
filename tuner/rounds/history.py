"""The history of rounds: an SQLite file that survives the end of the tuner at any moment.

Every call is one transaction in write-ahead mode with ``synchronous = FULL``: when it returns, it is on the disk.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from tuner.metrics.model import Readings
from tuner.redact import redact
from tuner.rounds import schema
from tuner.rounds.errors import DamagedRound, HistoryError, UnknownRound, history_error
from tuner.rounds.model import Round, RoundState
from tuner.rounds.pareto import Point, best
from tuner.rounds.samples import Moment, Moments, moment, packed, thinned
from tuner.rounds.search import ANY, WHOLE_TAGS, Search, condition, normal_tag
from tuner.rounds.summary import RoundSummary, changed_values, summarise
from tuner.text import replaced

__all__ = ["DamagedRound", "History", "HistoryError", "UnknownRound"]

Rounds: TypeAlias = list[Round]
Summaries: TypeAlias = list[RoundSummary]
Samples: TypeAlias = list[Readings]
Points: TypeAlias = list[Point]

_Sample = TypeVar("_Sample", Readings, Moment)
_READINGS = msgspec.json.Decoder(Readings)

#: The operator's own words on a round, and what they may be.
VERDICTS = ("keep", "reject", "")

#: Points of the widest chart there is: two a cell of a screen of 300.
_COLUMNS_OF_A_CHART = 600
#: End of the year 9999, Unix time: what no calendar has a date for.
_LAST_TIME = 253_402_300_799

_SUMMARY = (
    "started_at",
    "state",
    "simulated",
    "phase",
    "reason",
    "model",
    "kv_tokens",
    "mamba_slots",
    "max_running_requests",
    "ready_seconds",
    "checks_passed",
    "checks_total",
    "ttft_p50_s",
    "itl_p50_s",
)
_COLUMNS = (*_SUMMARY, "flags", "body")
_OPENED = (*_COLUMNS, "note", "verdict", "tags")
_OPEN = f"INSERT INTO rounds ({', '.join(_OPENED)}) VALUES ({', '.join('?' * len(_OPENED))})"
_SAVE = f"UPDATE rounds SET {', '.join(f'{c} = ?' for c in _COLUMNS)} WHERE number = ?"
_ROUND = "SELECT number, note, verdict, tags, body FROM rounds"
_LINES = f"""SELECT number, note, verdict, tags, flags, {", ".join(_SUMMARY)},
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
_Kept: TypeAlias = tuple[int | None, float | None]
_Told: TypeAlias = tuple[str | None, str | None, str | None, str | None, int | None, int | None]


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
            self._connection.text_factory = _as_text
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
        tags = json.dumps(sorted({_text(normal_tag(tag)) for tag in draft.tags}))
        with self._writing() as connection:
            # The number is part of the body, so the row comes first and its body in the same transaction.
            values = _values(draft)
            cursor = connection.execute(_OPEN, (*values, _text(draft.note), draft.verdict, tags))
            number = cursor.lastrowid
            assert number is not None
            opened = msgspec.structs.replace(draft, number=number)
            connection.execute(_SAVE, (*_values(opened), number))
        return opened

    def save(self, round_: Round) -> Round:
        """Keeps the new state of a round and returns it as kept.

        Note, verdict and tags stay as ``set_note`` and its like left them: the operator may have written them
        while the round was running.
        """
        with self._writing() as connection:
            cursor = connection.execute(_SAVE, (*_values(round_), round_.number))
            self._must_exist(cursor, round_.number)
            return _round(self._row(round_.number))

    def get(self, number: int) -> Round:
        """The round with this number. Raises UnknownRound (also a KeyError) when there is none."""
        with self._told():
            return _round(self._row(number))

    def find(self, number: int) -> Round | None:
        """The round with this number, or None."""
        with self._told():
            row = self._connection.execute(f"{_ROUND} WHERE number = ?", (number,)).fetchone()
            return _round(row) if row else None

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
            return [round_ for row in page if (round_ := _readable(row)) is not None]

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
            return [_line(row) for row in self._page(_LINES, limit, offset, newest_first, simulated, search)]

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
            kept = _round(self._row(number)).tags
            tags = sorted({_text(tag) for tag in (*kept, *plus)} - minus)
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
            found += [point for row in page if (point := _point(row)) is not None]
            last = page[-1]["number"]

    def front(self) -> frozenset[int]:
        """Numbers of the rounds that no other one beats in everything (see ``pareto``)."""
        return best(self.points())

    def add_samples(self, number: int, readings: Iterable[Readings]) -> None:
        """Keeps readings taken during a round, all of them or none."""
        rows = [(number, sample.at, _json(packed(sample))) for sample in readings]
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
            return list(_whole(rows, _READINGS.decode, number))

    def moments(self, number: int, every_s: float | None = None, since: float = 0.0) -> Moments:
        """What charts show of a round's readings from ``since`` (Unix time) on, one for each ``every_s`` seconds.

        Without ``every_s`` as many as a wide chart has columns. Reads a day of readings at one a second in a few
        tenths of a second, and holds none of them. Damaged ones are left out, as of ``samples``.
        """
        with self._told():
            if every_s is None:
                # A time that was overwritten by a text or by bytes comes after all numbers.
                ends = "SELECT min(at), max(at) FROM samples WHERE round = ? AND at BETWEEN ? AND ?"
                first, last = self._connection.execute(ends, (number, since, _LAST_TIME)).fetchone()
                every_s = max(1.0, (last - first) / _COLUMNS_OF_A_CHART) if first is not None else 1.0
            # As bytes: to make a text of each would take as long as all the rest.
            rows = self._connection.cursor()
            rows.row_factory = None
            rows.execute(
                "SELECT CAST(body AS BLOB) FROM samples WHERE round = ? AND at >= ? ORDER BY at, id", (number, since)
            )
            return thinned(_whole(rows, moment, number), every_s)

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
            cursor = connection.execute(f"UPDATE rounds SET {column} = ? WHERE number = ?", (_text(text), number))
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
            return next((round_ for row in rows if (round_ := _readable(row)) is not None), None)

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


def _values(round_: Round) -> tuple[Any, ...]:
    line = summarise(round_)
    body = _json(round_)
    # What cannot be read again must not be kept (a number that JSON does not know, a value hidden as a secret).
    _decoded(body, Round, "This round")
    columns = (getattr(line, name) for name in _SUMMARY)
    flags = _json(round_.recipe.flags)
    return (*(_text(value) if isinstance(value, str) else value for value in columns), flags, body)


def _json(value: Round | Readings | dict[str, Any]) -> str:
    clean = redact(msgspec.to_builtins(value))
    try:
        return msgspec.json.encode(clean).decode()
    except UnicodeEncodeError:
        # Half a surrogate pair (a file name that is no UTF-8): kept with a replacement character.
        return json.dumps(clean, ensure_ascii=False).encode("utf-8", "replace").decode()


def _text(text: str) -> str:
    """SQLite takes UTF-8 only: half a surrogate pair becomes a replacement character."""
    return str(redact(text)).encode("utf-8", "replace").decode()


def _as_text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")


def _round(row: sqlite3.Row) -> Round:
    name = f"r{row['number']}"
    round_: Round = _decoded(row["body"], Round, name)
    tags = _decoded(row["tags"], tuple[str, ...], name)
    _check_time(round_.started_at, name)
    note, verdict = row["note"], row["verdict"]
    if not (isinstance(note, str) and isinstance(verdict, str)):
        raise DamagedRound(f"{name} cannot be read from the history: it holds bytes that are no text.")
    note, verdict = replaced(note), replaced(verdict)
    return msgspec.structs.replace(round_, number=row["number"], note=note, verdict=verdict, tags=tags)


def _readable(row: sqlite3.Row) -> Round | None:
    try:
        return _round(row)
    except DamagedRound:
        return None


def _line(row: sqlite3.Row) -> RoundSummary:
    try:
        return _whole_line(row)
    except DamagedRound as error:
        return _known_line(row, str(error))


def _whole_line(row: sqlite3.Row) -> RoundSummary:
    name = f"r{row['number']}"
    if not row["whole"]:
        raise DamagedRound(f"{name} cannot be read from the history: its record is cut short or overwritten.")
    flags = _decoded(row["flags"], dict[str, Any], name)
    fields = {column: row[column] for column in ("number", "note", "verdict", *_SUMMARY)}
    fields["simulated"] = bool(row["simulated"])
    fields["tags"] = _decoded(row["tags"], tuple[str, ...], name)
    if any(text != replaced(text) for text in fields.values() if isinstance(text, str)):
        raise DamagedRound(f"{name} cannot be read from the history: it holds bytes that are no text.")
    try:
        line = msgspec.convert({**fields, "changed": _changed(row["flags_before"], flags)}, RoundSummary)
    except msgspec.ValidationError as error:
        raise DamagedRound(f"{name} cannot be read from the history: {error}.") from error
    _check_time(line.started_at, name)
    return line


def _known_line(row: sqlite3.Row, why: str) -> RoundSummary:
    """The line of a damaged round: each column that can be read."""
    known: dict[str, Any] = {"started_at": 0.0, "state": RoundState.FAILED, "simulated": bool(row["simulated"])}
    for field in msgspec.structs.fields(RoundSummary):
        if field.name in ("number", "note", "verdict", *_SUMMARY) and field.name != "simulated":
            value = row[field.name]
            try:
                known[field.name] = msgspec.convert(replaced(value) if isinstance(value, str) else value, field.type)
            except msgspec.ValidationError:
                continue
    if not 0 <= known["started_at"] <= _LAST_TIME:
        known["started_at"] = 0.0
    return RoundSummary(**known, damaged=why)


def _changed(before: str | None, flags: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """What differs from the round before, as far as that one can be read."""
    if before is None:
        return {}
    try:
        return changed_values(_decoded(before, dict[str, Any], "The round before"), flags)
    except DamagedRound:
        return {}


def _point(row: sqlite3.Row) -> Point | None:
    """Where a round stands; None when that cannot be read."""
    try:
        config, path, shape, gpu, refused_input, planned_input = msgspec.json.decode(row["told"], type=_Told)
        agents, ttft_s = msgspec.convert((row["max_running_requests"], row["ttft_p50_s"]), _Kept)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    longest = refused_input - 1 if refused_input is not None else planned_input if row["kv_tokens"] else None
    return Point(
        number=row["number"],
        group=(bool(row["simulated"]), config or path or shape or "", gpu),
        longest=longest,
        agents=agents,
        ttft_s=ttft_s,
    )


def _whole(rows: Iterable[Any], read: Callable[[bytes], _Sample], number: int) -> Iterator[_Sample]:
    """The samples that can be read and have a time. Raises DamagedRound after the last when there was none of many."""
    whole = False
    error: Exception | None = None
    for (body,) in rows:
        try:
            sample = read(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as damage:
            error = damage
            continue
        if 0 <= sample.at <= _LAST_TIME:
            whole = True
            yield sample
    if error is not None and not whole:
        raise DamagedRound(f"No sample of r{number} can be read from the history: {error}.") from error


def _check_time(started_at: float, what: str) -> None:
    if not 0 <= started_at <= _LAST_TIME:
        raise DamagedRound(f"{what} cannot be read from the history: it started at no time that there is.")


def _decoded(body: str, kind: Any, what: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise DamagedRound(f"{what} cannot be read from the history: it is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeError, TypeError) as error:
        raise DamagedRound(f"{what} cannot be read from the history: {error}.") from error
