"""Where and how the slots of a recipe are written in a ``config.toml``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tuner.flags import catalogue
from tuner.flags.values import has_null
from tuner.recipe.keys import short_key
from tuner.recipe.slots import PYTHON, Slot

if TYPE_CHECKING:
    from tomlkit.items import Item, Table


def ordered(slots: dict[Slot, Any]) -> list[tuple[Slot, Any]]:
    """Slots as they are written: the interpreter first, flags in the catalogue's order, the rest by name as given."""
    rank = {name: index for index, name in enumerate(catalogue())}

    def key(entry: tuple[Slot, Any]) -> tuple[int, int]:
        (owner, name), _ = entry
        return (0, 0) if (owner, name) == PYTHON else (1, rank[name]) if owner == "flags" else (2, 0)

    return sorted(slots.items(), key=key)


def toml_value(slot: Slot, value: Any) -> Any:
    """JSON with nulls is written as the text that it is on the command line: TOML has no null."""
    if slot[0] == "flags" and isinstance(value, dict | list) and has_null(value):
        return msgspec.json.encode(value).decode()
    return value


def item(value: Any) -> Item:
    """A value as TOML; tables stay on one line."""
    import tomlkit

    if isinstance(value, dict):
        inline = tomlkit.inline_table()
        for key, entry in value.items():
            inline.append(key, item(entry))
        return inline
    if isinstance(value, list | tuple):
        entries = tomlkit.array()
        for entry in value:
            entries.append(item(entry))
        return entries
    made: Item = tomlkit.item(value)
    return made


def section_table(values: dict[str, Any]) -> Table:
    """A section with its keys, one a line."""
    from tomlkit import table

    body = table()
    for key, value in values.items():
        body.add(key, item(value))
    return body


def home(slot: Slot) -> tuple[str, str]:
    """Section and key of a slot in a file that the tuner lays out."""
    owner, name = slot
    if owner != "flags":
        return owner, name
    info = catalogue()[name]
    return info.section, short_key(info, info.section)
