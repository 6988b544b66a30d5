"""A ``config.toml`` changed in place: what the recipe says otherwise is written where it stands, all else stays."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from tuner.flags import catalogue
from tuner.recipe.keys import ENVIRONMENT_SECTIONS, short_key
from tuner.recipe.layout import item, ordered, section_table, toml_value
from tuner.recipe.model import Recipe, RecipeError
from tuner.recipe.reader import Placement, Reading, key_path, read_document, recipe_from
from tuner.recipe.slots import Slot, slots_of

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

#: Where a flag goes in a file that has none of its own section but this one.
_STAND_IN = {"memory": "cache"}


def edited(source: str, reading: Reading, recipe: Recipe) -> str | None:
    """``source`` (read as ``reading``) with the recipe's changes, or None where tomlkit cannot do it faithfully."""
    from tomlkit import parse
    from tomlkit.exceptions import TOMLKitError

    wanted = slots_of(recipe)
    known = {kept.where for kept in reading.kept}
    missing = [kept for kept in recipe.kept if kept.where not in known]
    changed = [p for p in reading.placements if not _says(p, wanted)]
    placed = {p.slot for p in reading.placements if not p.opposite or wanted.get(p.slot) is True}
    added = [(slot, value) for slot, value in ordered(wanted) if slot not in placed]
    if not changed and not added and not missing:
        return source
    try:
        doc = parse(source)
        for placement in changed:
            _change(doc, placement, wanted)
        for slot, value in added:
            section, key = _home(slot, doc)
            _add(doc, section, key, toml_value(slot, value))
        for kept in missing:
            path = key_path(kept)
            _add(doc, path[0] if len(path) == 2 else "", path[-1], kept.value)
        text = doc.as_string()
        back = recipe_from(read_document(tomllib.loads(text)), Recipe())
    except (TOMLKitError, RecipeError, tomllib.TOMLDecodeError):
        return None
    same = slots_of(back) == wanted and {k.where for k in back.kept} >= {k.where for k in recipe.kept}
    return text if same else None


def _says(placement: Placement, wanted: dict[Slot, Any]) -> bool:
    if placement.opposite:
        return bool(placement.value) == bool(wanted.get(placement.slot, False))
    return placement.slot in wanted and bool(wanted[placement.slot] == placement.value)


def _change(doc: TOMLDocument, placement: Placement, wanted: dict[Slot, Any]) -> None:
    owner: Any = doc if len(placement.path) == 1 else doc[placement.path[0]]
    key = placement.path[-1]
    if placement.opposite:
        owner[key] = not wanted.get(placement.slot, False)
    elif placement.slot in wanted:
        owner[key] = item(toml_value(placement.slot, wanted[placement.slot]))
    else:
        del owner[key]


def _add(doc: TOMLDocument, section: str, key: str, value: Any) -> None:
    from tomlkit import nl, table

    if not section:
        doc.add(key, section_table(value) if isinstance(value, dict) else item(value))
        return
    if section not in doc:
        if doc.body and not doc.as_string().endswith("\n"):
            doc.add(nl())
        if doc.body and not doc.as_string().endswith("\n\n"):
            doc.add(nl())
        doc.add(section, table())
    _append(doc[section], key, item(value))


def _append(owner: Any, key: str, value: Any) -> None:
    """Adds a key after the last one of a section: before the blank line and comments that lead to the next section."""
    from tomlkit.items import Comment, Table, Whitespace

    if not isinstance(owner, Table):
        owner[key] = value
        return
    body = owner.value.body
    after = len(body)
    while after and isinstance(body[after - 1][1], Whitespace | Comment):
        after -= 1
    # Comments right below the last key are still about this section.
    while after < len(body) and isinstance(body[after][1], Comment):
        after += 1
    moved = [entry for _, entry in body[after:]]
    del body[after:]
    owner.append(key, value)
    for entry in moved:
        if isinstance(entry, Whitespace | Comment):
            owner.add(entry)


def _home(slot: Slot, doc: TOMLDocument) -> tuple[str, str]:
    """Section and key where a slot is added: the section the document has for it, in the document's own style."""
    owner, name = slot
    if owner == "environment":
        return next((section for section in ENVIRONMENT_SECTIONS if section in doc), owner), name
    if owner != "flags":
        return owner, name
    info = catalogue()[name]
    section = info.section
    stand_in = _STAND_IN.get(section)
    if section not in doc and stand_in is not None and stand_in in doc:
        section = stand_in
    present: Any = doc.get(section, ())
    full_names = any(str(key).startswith(f"{section}_") for key in present)
    return section, name if full_names else short_key(info, section)
