"""The catalogue of flags, read once from its two data files.

``known.json`` has every flag of SGLang 0.5.17 (and those of 0.5.5 to 0.5.23 that tuning meets) with the kind,
choices, default and spellings of its own argument parser. ``flags.toml`` adds what an operator wants to know.
"""

from __future__ import annotations

import functools
import pkgutil
import tomllib
from typing import Any

import msgspec

from tuner.flags.model import FlagInfo

#: How far a misspelt name may be from a real one to be suggested (difflib ratio).
CLOSE = 0.6
_SHORTEST_BEGINNING = 5


def _data(name: str) -> bytes:
    data = pkgutil.get_data(__name__, name)
    if data is None:
        raise RuntimeError(f"The package tuner.flags has lost its file {name}; install the tuner again.")
    return data


@functools.cache
def catalogue() -> dict[str, FlagInfo]:
    """Every known flag by its name with underscores, those of ``flags.toml`` first and in its order."""
    known: dict[str, dict[str, Any]] = {entry["name"]: entry for entry in msgspec.json.decode(_data("known.json"))}
    described: dict[str, dict[str, Any]] = tomllib.loads(_data("flags.toml").decode())
    merged = [known[name] | notes for name, notes in described.items()]
    merged += [entry for name, entry in known.items() if name not in described]
    for entry in merged:
        if entry["kind"] == "bool" and "negation" not in entry:
            entry.setdefault("default", False)
    return {info.name: info for info in msgspec.convert(merged, list[FlagInfo])}


@functools.cache
def _spellings() -> dict[str, FlagInfo]:
    spellings = {alias: info for info in catalogue().values() for alias in info.aliases}
    return spellings | catalogue()


def underscored(name: str) -> str:
    """``--mem-fraction-static`` and ``mem-fraction-static`` as ``mem_fraction_static``."""
    return name.strip().removeprefix("--").replace("-", "_")


def lookup(name: str) -> FlagInfo | None:
    """The flag of that name: with dashes or underscores, with or without ``--``, also by an old name."""
    return _spellings().get(underscored(name))


def is_in(info: FlagInfo, version: str) -> bool:
    """Whether a version of SGLang ("0.5.17") has the flag, as far as that is known."""
    number = _number(version)
    return not (
        (info.since is not None and number < _number(info.since))
        or (info.until is not None and number > _number(info.until))
    )


def _number(version: str) -> tuple[int, ...]:
    digits = ("".join(c for c in part if c.isdigit()) for part in version.split(".")[:3])
    return tuple(int(part or 0) for part in digits)


def suggest(name: str) -> str | None:
    """The flag most likely meant by a name that is none, or None when nothing is near."""
    import difflib

    wanted = underscored(name).lower()
    if not wanted:
        return None
    spellings = _spellings()
    if wanted in spellings:
        return spellings[wanted].name
    words = set(wanted.split("_"))
    begun = [n for n in catalogue() if n.startswith(wanted + "_")] or (
        [n for n in catalogue() if n.startswith(wanted)] if len(wanted) >= _SHORTEST_BEGINNING else []
    )
    within = [n for n, info in catalogue().items() if info.tuning and words <= set(n.split("_"))]
    if begun:
        return min(begun, key=len)
    if within:
        return within[0]
    close = difflib.get_close_matches(wanted, spellings, n=1, cutoff=CLOSE)
    return spellings[close[0]].name if close else None
