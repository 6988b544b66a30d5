"""What to look for in the history, as a condition of SQL. Values never become SQL text."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tuner.rounds.errors import HistoryError
from tuner.rounds.model import RoundState

#: Where words are looked for.
_TEXTS = ("note", "reason", "phase", "model", "flags", "tags", "verdict", "state")
_TAG = re.compile(r"[^\s,\x00-\x1f\x7f]{1,40}")
_FLAG = re.compile(r"[a-z0-9_]+")


class Search(msgspec.Struct, frozen=True, kw_only=True):
    """All of it must hold. ``words`` are parts of texts, in any case; an empty search finds every round."""

    words: tuple[str, ...] = ()
    states: tuple[RoundState, ...] = ()
    verdict: str | None = None
    tags: tuple[str, ...] = ()
    #: (flag, value as asked; None: the flag was not asked for).
    flags: tuple[tuple[str, Any], ...] = ()
    #: Flags that were asked for, whatever their value.
    with_flags: tuple[str, ...] = ()


ANY = Search()


def normal_tag(tag: str) -> str:
    """A tag as it is kept; raises HistoryError for what is no tag."""
    tag = tag.strip().removeprefix("#")
    if not _TAG.fullmatch(tag):
        raise HistoryError("A tag is one word of up to 40 letters, without spaces and commas.")
    return tag


def condition(search: Search, simulated: bool | None = None) -> tuple[str, tuple[Any, ...]]:
    """(" WHERE ..." or an empty text, the values of its question marks)."""
    parts: list[str] = []
    values: list[Any] = []
    if simulated is not None:
        parts.append("simulated = ?")
        values.append(int(simulated))
    if search.states:
        parts.append(f"state IN ({', '.join('?' * len(search.states))})")
        values += [str(state) for state in search.states]
    if search.verdict is not None:
        parts.append("verdict = ?")
        values.append(search.verdict)
    for word in search.words:
        name = re.fullmatch(r"r(\d{1,18})", word)
        texts = " OR ".join(f"{column} LIKE ? ESCAPE '\\'" for column in _TEXTS)
        parts.append(f"({texts} OR number = ?)")
        values += [f"%{_literal(word)}%"] * len(_TEXTS) + [int(name[1]) if name else 0]
    for tag in search.tags:
        parts.append("EXISTS (SELECT 1 FROM json_each(rounds.tags) WHERE value = ?)")
        values.append(normal_tag(tag))
    for flag in search.with_flags:
        parts.append("json_extract(flags, ?) IS NOT NULL")
        values.append(_path(flag))
    for flag, value in search.flags:
        if value is None:
            parts.append("json_extract(flags, ?) IS NULL")
            values.append(_path(flag))
        else:
            parts.append("json_extract(flags, ?) = json_extract(?, '$')")
            values += [_path(flag), msgspec.json.encode(value).decode()]
    return (" WHERE " + " AND ".join(parts) if parts else ""), tuple(values)


def _path(flag: str) -> str:
    if not _FLAG.fullmatch(flag):
        raise HistoryError(f'"{flag}" is no name of a flag: use letters, digits and _.')
    return f'$."{flag}"'


def _literal(word: str) -> str:
    word = word.encode("utf-8", "replace").decode()
    return re.sub(r"([\\%_])", r"\\\1", word)
