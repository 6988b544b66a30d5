"""``settings.json``: run-time settings beside a ``config.toml``, as ``runtime``, ``mamba``, ``logging`` and ``api``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from tuner.flags import catalogue
from tuner.recipe.checking import checked
from tuner.recipe.keys import API_SECTION, KNOWN_SECTIONS
from tuner.recipe.layout import ordered
from tuner.recipe.model import Recipe, RecipeError
from tuner.recipe.reader import key_path, read_document, recipe_from
from tuner.recipe.slots import Slot, slots_of
from tuner.recipe.toml_file import LONGEST
from tuner.redact import redact_text
from tuner.text import plain

#: Key for what JSON has no comments for: which round it was and what came of it.
HEAD_KEY = "_round"
_SECTIONS = ("runtime", "mamba", "logging", API_SECTION)
#: Keys of the file for flags that have another name there.
_KEYS = {"mamba_ssm_dtype": ("mamba", "state_dtype"), "log_level": ("logging", "level")}
_BYTE = re.compile(r"\(byte (\d+)\)")


def loads_settings(text: str, base: Recipe | None) -> Recipe:
    """``base`` (the ``config.toml`` beside it) with the settings put over it; :class:`RecipeError` in one sentence.

    Nulls mean "not set". Without a base the recipe names no model.
    """
    base = base or Recipe()
    document = _parsed(text)
    document.pop(HEAD_KEY, None)
    recipe = recipe_from(read_document(document), base)
    return msgspec.structs.replace(recipe, source_layout="settings")


def settings_head(text: str) -> tuple[str, ...]:
    """What the tuner noted in a ``settings.json``: the round it came from."""
    head = _parsed(text).get(HEAD_KEY)
    return tuple(plain(line) for line in head if isinstance(line, str)) if isinstance(head, list) else ()


def dumps_settings(recipe: Recipe, comments: Sequence[str] = ()) -> str:
    """What of the recipe belongs into a ``settings.json``; the rest, the model first, stays in the ``config.toml``.

    ``comments`` stand under ``_round``, which nothing reads.
    """
    recipe = checked(recipe)
    document: dict[str, dict[str, Any]] = {section: {} for section in _SECTIONS}
    for slot, value in ordered(slots_of(recipe)):
        home = _home(slot)
        if home is not None:
            document[home[0]][home[1]] = value
    for kept in recipe.kept:
        path = key_path(kept)
        if len(path) == 2 and path[0] in document:
            document[path[0]][path[1]] = kept.value
    noted = [plain(redact_text(comment)) for comment in comments]
    filled: dict[str, Any] = {HEAD_KEY: noted} if noted else {}
    filled |= {section: values for section, values in document.items() if values}
    return msgspec.json.format(msgspec.json.encode(filled), indent=2).decode() + "\n"


def _home(slot: Slot) -> tuple[str, str] | None:
    owner, name = slot
    if owner == API_SECTION:
        return owner, name
    if owner != "flags":
        return None
    if name in _KEYS:
        return _KEYS[name]
    if name.startswith("log_"):
        return "logging", name
    return ("runtime", name) if name == "disable_radix_cache" or catalogue()[name].section == "scheduling" else None


def _parsed(text: str) -> dict[str, Any]:
    if len(text) > LONGEST:
        raise RecipeError(f"settings.json is too long: {len(text):,} characters.")
    try:
        document = msgspec.json.decode(text.removeprefix("\ufeff").encode("utf-8"))
    except UnicodeEncodeError:
        raise RecipeError("settings.json is not UTF-8 text.") from None
    except msgspec.DecodeError as error:
        raise RecipeError(f"settings.json is not valid JSON{_at(text, str(error))}.") from None
    except RecursionError:
        raise RecipeError("settings.json is nested too deeply.") from None
    if not isinstance(document, dict):
        raise RecipeError(f"settings.json must hold an object with {', '.join(_SECTIONS)}.")
    if not any(section in KNOWN_SECTIONS or section == HEAD_KEY for section in document) and document:
        raise RecipeError(f"settings.json has none of the sections {', '.join(_SECTIONS)}.")
    return document


def _at(text: str, message: str) -> str:
    found = _BYTE.search(message)
    if found is None:
        return ""
    before = text.encode("utf-8")[: int(found[1])].decode("utf-8", "replace")
    return f" at line {before.count(chr(10)) + 1}, column {len(before) - before.rfind(chr(10))}"
