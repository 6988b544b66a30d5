"""What a round is as a row of the history's tables, and what a row of them is as a round, a line or a point.

Rows that cannot be read are told apart from the rest: a damaged one never hides the others.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias, TypeVar

import msgspec

from tuner.metrics.model import Readings
from tuner.redact import redact
from tuner.rounds.errors import DamagedRound
from tuner.rounds.model import Round, RoundState
from tuner.rounds.older import as_kept_today
from tuner.rounds.pareto import Point
from tuner.rounds.samples import Moment
from tuner.rounds.summary import RoundSummary, changed_values, summarise
from tuner.text import replaced

_Sample = TypeVar("_Sample", Readings, Moment)

#: End of the year 9999, Unix time: what no calendar has a date for.
LAST_TIME = 253_402_300_799

#: Columns that make a round's line.
SUMMARY = (
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
#: Columns of a round as the tuner keeps it.
COLUMNS = (*SUMMARY, "flags", "body")
_Kept: TypeAlias = tuple[int | None, float | None]
_Told: TypeAlias = tuple[str | None, str | None, str | None, str | None, int | None, int | None]


def values_of(round_: Round) -> tuple[Any, ...]:
    """A round as the values of ``COLUMNS``. Raises DamagedRound for what could not be read again."""
    line = summarise(round_)
    body = as_json(round_)
    # What cannot be read again must not be kept (a number that JSON does not know, a value hidden as a secret).
    _decoded(body, Round, "This round")
    columns = (getattr(line, name) for name in SUMMARY)
    flags = as_json(round_.recipe.flags)
    return (*(kept_text(value) if isinstance(value, str) else value for value in columns), flags, body)


def as_json(value: Round | Readings | dict[str, Any]) -> str:
    """A value as it is kept: secrets out."""
    clean = redact(msgspec.to_builtins(value))
    try:
        return msgspec.json.encode(clean).decode()
    except UnicodeEncodeError:
        # Half a surrogate pair (a file name that is no UTF-8): kept with a replacement character.
        return json.dumps(clean, ensure_ascii=False).encode("utf-8", "replace").decode()


def kept_text(text: str) -> str:
    """SQLite takes UTF-8 only: half a surrogate pair becomes a replacement character."""
    return str(redact(text)).encode("utf-8", "replace").decode()


def read_text(raw: bytes) -> str:
    """Text of the file, its damage kept so that it can be told."""
    return raw.decode("utf-8", "surrogateescape")


def round_of(row: sqlite3.Row) -> Round:
    """The round of a row. Raises DamagedRound."""
    name = f"r{row['number']}"
    round_: Round = _decoded(row["body"], Round, name)
    tags = _decoded(row["tags"], tuple[str, ...], name)
    _check_time(round_.started_at, name)
    note, verdict = row["note"], row["verdict"]
    if not (isinstance(note, str) and isinstance(verdict, str)):
        raise DamagedRound(f"{name} cannot be read from the history: it holds bytes that are no text.")
    note, verdict = replaced(note), replaced(verdict)
    whole = msgspec.structs.replace(round_, number=row["number"], note=note, verdict=verdict, tags=tags)
    return as_kept_today(whole)


def readable(row: sqlite3.Row) -> Round | None:
    """The round of a row; None when it is damaged."""
    try:
        return round_of(row)
    except DamagedRound:
        return None


def line_of(row: sqlite3.Row) -> RoundSummary:
    """The line of a row, also of a damaged one."""
    try:
        return _whole_line(row)
    except DamagedRound as error:
        return _known_line(row, str(error))


def _whole_line(row: sqlite3.Row) -> RoundSummary:
    name = f"r{row['number']}"
    if not row["whole"]:
        raise DamagedRound(f"{name} cannot be read from the history: its record is cut short or overwritten.")
    flags = _decoded(row["flags"], dict[str, Any], name)
    fields = {column: row[column] for column in ("number", "note", "verdict", *SUMMARY)}
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
        if field.name in ("number", "note", "verdict", *SUMMARY) and field.name != "simulated":
            value = row[field.name]
            try:
                known[field.name] = msgspec.convert(replaced(value) if isinstance(value, str) else value, field.type)
            except msgspec.ValidationError:
                continue
    if not 0 <= known["started_at"] <= LAST_TIME:
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


def point_of(row: sqlite3.Row) -> Point | None:
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


def whole_samples(rows: Iterable[Any], read: Callable[[bytes], _Sample], number: int) -> Iterator[_Sample]:
    """The samples that can be read and have a time. Raises DamagedRound after the last when there was none of many."""
    whole = False
    error: Exception | None = None
    for (body,) in rows:
        try:
            sample = read(body)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as damage:
            error = damage
            continue
        if 0 <= sample.at <= LAST_TIME:
            whole = True
            yield sample
    if error is not None and not whole:
        raise DamagedRound(f"No sample of r{number} can be read from the history: {error}.") from error


def _check_time(started_at: float, what: str) -> None:
    if not 0 <= started_at <= LAST_TIME:
        raise DamagedRound(f"{what} cannot be read from the history: it started at no time that there is.")


def _decoded(body: str, kind: Any, what: str) -> Any:
    try:
        return msgspec.json.decode(body, type=kind)
    except RecursionError:
        raise DamagedRound(f"{what} cannot be read from the history: it is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeError, TypeError) as error:
        raise DamagedRound(f"{what} cannot be read from the history: {error}.") from error
