"""``--set key=value``: changes to a recipe from a command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tuner.flags import FlagValueError, parse_value
from tuner.recipe.checking import LEAST, NUMBERS, checked_flag, checked_setting, checked_variable, other_version
from tuner.recipe.keys import API_SECTION, ENVIRONMENT_SECTIONS, FLAG_SECTIONS, TUNER_SECTION, NotAFlag, meaning
from tuner.recipe.model import ApiSettings, Recipe, RecipeError, TunerSettings
from tuner.recipe.reader import Placement, Reading, recipe_from
from tuner.recipe.slots import PYTHON, Slot, without


def merge_set(recipe: Recipe, assignments: Sequence[str]) -> Recipe:
    """The recipe with each ``key=value`` applied in order; :class:`RecipeError` names the assignment that cannot be.

    A key is a flag, also by an old name or with its section ("speculative.num_steps"), or ``python``,
    ``environment.NAME``, ``tuner.FIELD``, ``api.FIELD``. A switch may stand without ``=``. An empty value takes the
    flag out of the recipe, so that SGLang's default holds.
    """
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        key = key.strip().removeprefix("--")
        if not key:
            raise RecipeError(f'"{assignment}" says nothing: write key=value, such as mem_fraction_static=0.9.')
        recipe = _with(recipe, key, text.strip() if equals else None)
    return recipe


def _with(recipe: Recipe, key: str, text: str | None) -> Recipe:
    section, dot, name = key.partition(".")
    if not dot or section not in (*FLAG_SECTIONS, API_SECTION, TUNER_SECTION, *ENVIRONMENT_SECTIONS):
        section, name = "", key
    if (section, name) in (PYTHON, ("", "python")):
        return _placed(recipe, PYTHON, text and checked_setting(*PYTHON, text), key)
    if section in ENVIRONMENT_SECTIONS:
        return _placed(recipe, ("environment", name), text and checked_variable(name, text, key), key)
    if section in (TUNER_SECTION, API_SECTION):
        return _placed(recipe, (section, name), text and _setting(section, name, text), key)
    means = meaning(section, name)
    if isinstance(means, NotAFlag) and text is None:
        raise RecipeError(f"--set {key} has no = and no value: write key=value, such as mem_fraction_static=0.9.")
    if isinstance(means, NotAFlag):
        raise RecipeError(f"{key} is not a flag that can be set: {means.why}")
    slot: Slot = ("flags", means.info.name)
    if text == "":
        return without(recipe, slot)
    if text is None and means.info.kind != "bool":
        raise RecipeError(f"{key} needs a value: write {key}=value.")
    try:
        value = parse_value(means.info, text or "true")
    except FlagValueError as error:
        raise RecipeError(str(error)) from None
    if means.opposite:
        return without(recipe, slot) if value else _placed(recipe, slot, True, key)
    value = checked_flag(means.info, value, "", any_choice=other_version(recipe))
    return _placed(recipe, slot, value, key)


def _setting(section: str, name: str, text: str) -> Any:
    fields = TunerSettings.__struct_fields__ if section == TUNER_SECTION else ApiSettings.__struct_fields__
    if name not in fields:
        raise RecipeError(f"[{section}] has no key {name}; it has {', '.join(fields)}.")
    value: Any = parse_value(None, text) if name in NUMBERS or name in LEAST else text
    if name == "simulator":
        try:
            value = msgspec.json.decode(text.encode("utf-8", "replace"))
        except (msgspec.DecodeError, RecursionError):
            raise RecipeError('tuner.simulator takes JSON, such as {"speed": 50}.') from None
    return checked_setting(section, name, value)


def _placed(recipe: Recipe, slot: Slot, value: Any, key: str) -> Recipe:
    if value is None:
        raise RecipeError(f"{key} needs a value: write {key}=value.")
    if value == "" and slot[0] != "flags":
        return without(recipe, slot)
    return recipe_from(Reading((Placement((key,), slot, value),), (), ""), recipe)
