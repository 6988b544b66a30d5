"""What to look for in the history: from words to a condition of SQL. Values never become SQL text."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from typing import Any

import msgspec

from tuner.flags import FlagValueError, lookup, parse_value, suggest
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import RoundState

#: Where words are looked for.
#: Columns of JSON; those of a damaged round count as empty, since SQLite otherwise refuses the whole search.
WHOLE_TAGS = "CASE WHEN json_valid(rounds.tags) THEN rounds.tags ELSE '[]' END"
_WHOLE_FLAGS = "CASE WHEN json_valid(flags) THEN flags ELSE '{}' END"
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
    simulated: bool | None = None
    #: Only rounds that no other one beats in everything.
    front: bool = False


ANY = Search()

_STATES = frozenset(str(state) for state in RoundState)
_KINDS = {"sim": True, "simulated": True, "real": False}
_MARKS = {"keep": "keep", "kept": "keep", "reject": "reject", "rejected": "reject"}


def read_words(words: Sequence[str]) -> Search:
    """What an operator types to find rounds, one word after the other; all must hold.

    A state ("failed", several: any of them), "kept" or "rejected", "simulated" or "real", "front", "#tag",
    "flag=value" ("flag=" for rounds that did not ask for it); anything else is a part of a text. Raises HistoryError.
    """
    states: list[RoundState] = []
    texts: list[str] = []
    search = ANY
    for word in words:
        low = word.strip().lower()
        name, equals, value = word.partition("=")
        if low in _STATES:
            states.append(RoundState(low))
        elif low in _KINDS:
            search = msgspec.structs.replace(search, simulated=_KINDS[low])
        elif low in _MARKS:
            search = msgspec.structs.replace(search, verdict=_MARKS[low])
        elif low == "front":
            search = msgspec.structs.replace(search, front=True)
        elif len(low) > 1 and low.startswith("#"):
            search = msgspec.structs.replace(search, tags=(*search.tags, normal_tag(word)))
        elif equals and lookup(name) is not None:
            search = with_flag(search, name, value)
        else:
            texts.append(word)
    return msgspec.structs.replace(search, states=tuple(states), words=tuple(texts))


def read_line(line: str) -> Search:
    """As ``read_words``, from one line; quotes keep words together."""
    try:
        words = shlex.split(line)
    except ValueError:
        # A quote that is still open: the operator is typing.
        words = line.replace("'", " ").replace('"', " ").split()
    return read_words(words)


def with_flag(search: Search, name: str, value: str | None) -> Search:
    """Also wants a flag: with any value (None), with this one, or not at all (empty). Raises HistoryError."""
    info = lookup(name)
    if info is None:
        near = suggest(name)
        raise HistoryError(f"{name} is not a flag of SGLang" + (f"; perhaps {near} was meant." if near else "."))
    if value is None:
        return msgspec.structs.replace(search, with_flags=(*search.with_flags, info.name))
    try:
        wanted = parse_value(info, value) if value else None
    except FlagValueError as error:
        raise HistoryError(str(error)) from error
    return msgspec.structs.replace(search, flags=(*search.flags, (info.name, wanted)))


def normal_tag(tag: str) -> str:
    """A tag as it is kept; raises HistoryError for what is no tag."""
    tag = tag.strip().removeprefix("#")
    if not _TAG.fullmatch(tag):
        raise HistoryError("A tag is one word of up to 40 letters, without spaces and commas.")
    return tag


def condition(
    search: Search, simulated: bool | None = None, numbers: Sequence[int] | None = None
) -> tuple[str, tuple[Any, ...]]:
    """(" WHERE ..." or an empty text, the values of its question marks); ``numbers``: only these rounds."""
    parts: list[str] = []
    values: list[Any] = []
    for kind in (simulated, search.simulated):
        if kind is not None:
            parts.append("simulated = ?")
            values.append(int(kind))
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
        parts.append(f"EXISTS (SELECT 1 FROM json_each({WHOLE_TAGS}) WHERE value = ?)")
        values.append(normal_tag(tag))
    if numbers is not None:
        parts.append("number IN (SELECT value FROM json_each(?))")
        values.append(msgspec.json.encode(numbers).decode())
    for flag in search.with_flags:
        parts.append(f"json_extract({_WHOLE_FLAGS}, ?) IS NOT NULL")
        values.append(_path(flag))
    for flag, value in search.flags:
        if value is None:
            parts.append(f"json_extract({_WHOLE_FLAGS}, ?) IS NULL")
            values.append(_path(flag))
        else:
            parts.append(f"json_extract({_WHOLE_FLAGS}, ?) = json_extract(?, '$')")
            values += [_path(flag), msgspec.json.encode(value).decode()]
    return (" WHERE " + " AND ".join(parts) if parts else ""), tuple(values)


def _path(flag: str) -> str:
    if not _FLAG.fullmatch(flag):
        raise HistoryError(f'"{flag}" is no name of a flag: use letters, digits and _.')
    return f'$."{flag}"'


def _literal(word: str) -> str:
    word = word.encode("utf-8", "replace").decode()
    return re.sub(r"([\\%_])", r"\\\1", word)
