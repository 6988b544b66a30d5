"""``config.toml``: read with the standard library, written with tomlkit so that comments and unknown keys stay.

A recipe that came from a file is written by changing that file's text where the recipe says something else; any other
recipe is written in the sections of the second layout (see :mod:`tuner.recipe.keys`).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from typing import Any

import msgspec

from tuner.recipe.checking import checked
from tuner.recipe.edit import edited
from tuner.recipe.keys import API_SECTION, FLAG_SECTIONS, TUNER_SECTION
from tuner.recipe.layout import home, item, ordered, section_table, toml_value
from tuner.recipe.model import Recipe, RecipeError
from tuner.recipe.reader import key_path, read_document, recipe_from
from tuner.recipe.slots import slots_of
from tuner.redact import redact_text
from tuner.text import plain

#: Lines that the tuner wrote at the head of a file, and replaces the next time.
HEAD_MARK = "#:"
#: Longest file that is read as a recipe, in characters.
LONGEST = 1_000_000

_HEAD = re.compile(r"\A(?:#:[^\n]*\n)+(?:[ \t]*\r?\n)?")
_SECTION_ORDER = (*FLAG_SECTIONS, API_SECTION, "environment", TUNER_SECTION)
_PLACE = re.compile(r"\(at (line \d+, column \d+|end of document)\)")


def loads_toml(text: str, name: str = "") -> Recipe:
    """The recipe that a ``config.toml`` describes, in either layout; :class:`RecipeError` in one sentence."""
    text = text.removeprefix("\ufeff")
    reading = read_document(parsed(text, name))
    recipe = recipe_from(reading, Recipe(name=name))
    return msgspec.structs.replace(recipe, source_text=text, source_layout=reading.layout)


def toml_head(text: str) -> tuple[str, ...]:
    """The lines that the tuner wrote at the head of a file, without their marks."""
    found = _HEAD.match(text.removeprefix("\ufeff"))
    lines = found[0].splitlines() if found else []
    return tuple(line.removeprefix(HEAD_MARK).strip() for line in lines if line.strip())


def dumps_toml(recipe: Recipe, comments: Sequence[str] = ()) -> str:
    """The recipe as a ``config.toml``.

    ``comments`` stand at the head and replace those of an earlier write. Without any, an earlier head stays as long
    as nothing else of the file changes: it would speak of other flags otherwise.
    """
    recipe = checked(recipe)
    if recipe.source_text is None:
        return _head(comments) + _fresh(recipe)
    reading = read_document(parsed(recipe.source_text, recipe.name))
    text = edited(recipe.source_text, reading, recipe)
    if text is None:
        comments = [
            *comments,
            "Written anew: the file it came from could not be changed in place, so its comments are gone.",
        ]
        return _head(comments) + _fresh(recipe)
    if not comments and text == recipe.source_text:
        return text
    return _head(comments) + _HEAD.sub("", text, count=1)


def parsed(text: str, name: str) -> dict[str, Any]:
    """A TOML text as a document; :class:`RecipeError` in one sentence. ``name`` is what the text is called."""
    called = name or "The file"
    if len(text) > LONGEST:
        raise RecipeError(f"{called} is too long for a recipe: {len(text):,} characters.")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RecipeError(f"{called} is not UTF-8 text.")
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = _PLACE.search(str(error))
        what = plain(_PLACE.sub("", str(error))).strip()
        at = f" at {found[1]}" if found else ""
        raise RecipeError(f"{called} is not valid TOML{at}: {what[:1].lower() + what[1:]}.") from None
    except RecursionError:
        raise RecipeError(f"{called} is nested too deeply for a recipe.") from None
    except ValueError:
        raise RecipeError(f"{called} holds a number or date that cannot be.") from None


def _head(comments: Sequence[str]) -> str:
    lines = [line.rstrip() for comment in comments for line in plain(redact_text(comment)).splitlines()]
    return "".join(f"{HEAD_MARK} {line}".rstrip() + "\n" for line in lines) + "\n" if lines else ""


def _fresh(recipe: Recipe) -> str:
    from tomlkit import document

    doc = document()
    sections: dict[str, dict[str, Any]] = {name: {} for name in _SECTION_ORDER}
    for slot, value in ordered(slots_of(recipe)):
        section, key = home(slot)
        sections[section][key] = toml_value(slot, value)
    for kept in recipe.kept:
        path = key_path(kept)
        if len(path) == 2 and path[0] in sections:
            sections[path[0]][path[1]] = kept.value
        elif not isinstance(kept.value, dict):
            doc.add(path[0], item(kept.value))
        else:
            sections[path[0]] = kept.value
    for section, values in sections.items():
        if not values and section in _SECTION_ORDER:
            continue
        doc.add(section, section_table(values))
    return doc.as_string()
