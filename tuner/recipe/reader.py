"""A document of sections, from TOML or JSON, read as a recipe. Pure; errors are one sentence for the operator."""

from __future__ import annotations

import datetime
import math
import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tuner.flags.values import BIGGEST, shown_value
from tuner.recipe.checking import (
    CATALOGUE_VERSION,
    checked_flag,
    checked_setting,
    checked_variable,
    literal_secret,
)
from tuner.recipe.keys import (
    API_SECTION,
    ENVIRONMENT_SECTIONS,
    FLAG_SECTIONS,
    KNOWN_SECTIONS,
    TUNER_SECTION,
    NotAFlag,
    meaning,
)
from tuner.recipe.model import ApiSettings, KeptKey, Recipe, RecipeError, TunerSettings
from tuner.recipe.slots import PYTHON, Slot, from_slots, slots_of
from tuner.redact import redact

_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Placement(msgspec.Struct, frozen=True):
    """Where a document says something of a recipe. ``opposite``: the key is the negation of the switch."""

    path: tuple[str, ...]
    slot: Slot
    value: Any
    opposite: bool = False


class Reading(msgspec.Struct, frozen=True):
    """A document as read: what it says, and the keys that mean nothing."""

    placements: tuple[Placement, ...]
    kept: tuple[KeptKey, ...]
    #: "toml:flat" for the layout with [cache] and [pd], else "toml".
    layout: str


def read_document(document: Mapping[str, Any]) -> Reading:
    """Everything a document says, each value checked; :class:`RecipeError` at the first that cannot be."""
    version = _version(document)
    placements: list[Placement] = []
    kept: list[KeptKey] = []
    for path, value in _leaves(document):
        found = _place(path, value, any_choice=version not in (None, CATALOGUE_VERSION))
        if isinstance(found, Placement):
            placements.append(found)
        else:
            kept.append(_kept(path, value, found))
    _refuse_contradictions(placements)
    flat = any(section in document for section in ("cache", "pd"))
    kept.sort(key=lambda key: key.where)
    return Reading(tuple(placements), tuple(kept), "toml:flat" if flat else "toml")


def recipe_from(reading: Reading, base: Recipe) -> Recipe:
    """``base`` with all that a reading says put over it."""
    slots = slots_of(base)
    for placement in reading.placements:
        if placement.opposite:
            if placement.value:
                slots[placement.slot] = True
        else:
            slots[placement.slot] = placement.value
    kept = {key.where: key for key in (*base.kept, *reading.kept)}
    return from_slots(base, slots, tuple(kept[where] for where in sorted(kept)))


def where(path: tuple[str, ...]) -> str:
    """A path of keys as TOML writes it."""
    return ".".join(key if _BARE_KEY.fullmatch(key) else msgspec.json.encode(key).decode() for key in path)


def key_path(kept: KeptKey) -> tuple[str, ...]:
    """The keys of ``KeptKey.where``: (section, key), or one key above all sections."""
    try:
        node: Any = tomllib.loads(f"{kept.where} = 0")
    except tomllib.TOMLDecodeError:
        return (kept.where,)
    path: list[str] = []
    while isinstance(node, dict):
        key, node = next(iter(node.items()))
        path.append(key)
    return tuple(path) if len(path) <= 2 else (kept.where,)


def _version(document: Mapping[str, Any]) -> str | None:
    tuner = document.get(TUNER_SECTION)
    version = tuner.get("sglang_version") if isinstance(tuner, Mapping) else None
    return version if isinstance(version, str) else None


def _leaves(document: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every key with its value: of a known section one level down, else the whole thing. Nulls are left out."""
    for key, value in document.items():
        if value is None:
            continue
        if key not in KNOWN_SECTIONS:
            yield (key,), value
            continue
        if not isinstance(value, Mapping):
            raise RecipeError(f"{where((key,))} is {shown_value(value)}; it must be a table.")
        for name, item in value.items():
            if item is not None:
                yield (key, name), item


def _place(path: tuple[str, ...], value: Any, *, any_choice: bool) -> Placement | NotAFlag:
    section, key = (path[0], path[1]) if len(path) == 2 else ("", path[0])
    place = where(path)
    if section in ENVIRONMENT_SECTIONS:
        return Placement(path, ("environment", key), checked_variable(key, value, place))
    if section in (TUNER_SECTION, API_SECTION):
        fields = TunerSettings.__struct_fields__ if section == TUNER_SECTION else ApiSettings.__struct_fields__
        if key not in fields:
            return NotAFlag(f"[{section}] has no key of this name; it has {', '.join(fields)}.")
        return Placement(path, (section, key), checked_setting(section, key, value))
    if (section, key) == PYTHON:
        return Placement(path, PYTHON, checked_setting(section, key, value))
    if not section and isinstance(value, Mapping):
        return NotAFlag(f"Neither SGLang nor the tuner knows a section of this name; flags stand in {_sections()}.")
    means = meaning(section, key)
    if isinstance(means, NotAFlag):
        return means
    if means.opposite:
        if not isinstance(value, bool):
            raise RecipeError(f"{place} is {shown_value(value)}; it takes true or false.")
        return Placement(path, ("flags", means.info.name), not value, opposite=True)
    checked = checked_flag(means.info, value, place, any_choice=any_choice)
    return Placement(path, ("flags", means.info.name), checked)


def _sections() -> str:
    return ", ".join(f"[{section}]" for section in FLAG_SECTIONS if section not in ("runtime", "mamba", "logging"))


def _refuse_contradictions(placements: list[Placement]) -> None:
    said: dict[Slot, Placement] = {}
    for placement in placements:
        before = said.setdefault(placement.slot, placement)
        if before.value != placement.value:
            raise RecipeError(
                f"{where(before.path)} and {where(placement.path)} say different things of {placement.slot[1]}: "
                "keep one of them."
            )


def _kept(path: tuple[str, ...], value: Any, reason: NotAFlag) -> KeptKey:
    shown = plain_value(value)
    if redact({path[-1]: shown}) != {path[-1]: shown}:
        raise literal_secret(where(path), "NAME")
    return KeptKey(where=where(path), value=shown, why=reason.why, nearest=reason.nearest)


def plain_value(value: Any, depth: int = 30) -> Any:
    """A value of an unknown key as JSON can hold it; what JSON has no word for becomes text, nulls go."""
    if depth == 0:
        return "…"
    if isinstance(value, Mapping):
        return {str(k): plain_value(v, depth - 1) for k, v in value.items() if v is not None}
    if isinstance(value, list | tuple):
        return [plain_value(item, depth - 1) for item in value if item is not None]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if (isinstance(value, float) and not math.isfinite(value)) or (isinstance(value, int) and abs(value) > BIGGEST):
        return shown_value(value)
    return value
