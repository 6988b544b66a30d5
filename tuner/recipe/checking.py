"""Values checked before a recipe holds them. Every error is one :class:`RecipeError` sentence for the operator."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection
from typing import Any

import msgspec

from tuner.flags import FlagInfo, FlagValueError, catalogue, check_value, suggest
from tuner.flags.values import BIGGEST, has_null, is_json, shown_value
from tuner.recipe import references
from tuner.recipe.keys import API_SECTION, TUNER_SECTION
from tuner.recipe.model import Recipe, RecipeError
from tuner.recipe.slots import slots_of
from tuner.redact import redact
from tuner.text import clip, plain

#: The version whose lists of choices the catalogue has.
CATALOGUE_VERSION = "0.5.17"

#: Settings that are numbers, and those that are whole ones with the least that they may be.
NUMBERS = frozenset({"headroom_gib", "timeout_seconds", "slo_ttft_s", "slo_itl_ms"})
LEAST = {"need_input_tokens": 1, "need_output_tokens": 1, "need_agents": 1, "need_warm_prefixes": 0}
#: Checks that ``tuner.checks`` may name: the quick set of ``tuner.checks.quick``, which is above this layer.
CHECKS = ("thinking", "non-thinking", "tool call", "prefix reuse")
#: Of a name that is none, as much as a sentence has room for.
_SHOWN_CELLS = 60
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def checked(recipe: Recipe) -> Recipe:
    """The recipe with every value as it would be read from a file; :class:`RecipeError` for what no file may hold."""
    infos = catalogue()
    flags: dict[str, Any] = {}
    for name, value in recipe.flags.items():
        if name not in infos:
            near = suggest(name)
            raise RecipeError(f"{name} is not a flag of SGLang" + (f"; perhaps {near} was meant." if near else "."))
        flags[name] = checked_flag(infos[name], value, name, any_choice=other_version(recipe))
    environment = {k: checked_variable(k, v, f"environment.{k}") for k, v in recipe.environment.items()}
    for (section, key), value in slots_of(recipe).items():
        if section in (API_SECTION, TUNER_SECTION, "server"):
            checked_setting(section, key, value)
    return msgspec.structs.replace(recipe, flags=flags, environment=environment)


def other_version(recipe: Recipe) -> bool:
    """Whether a recipe is for a version whose choices the catalogue may not have."""
    return recipe.tuner.sglang_version not in (None, CATALOGUE_VERSION)


def checked_flag(info: FlagInfo, value: Any, place: str, *, any_choice: bool = False) -> Any:
    """A flag's value as it is kept; :class:`RecipeError` names where it stands and what the flag takes."""
    try:
        checked = check_value(info, value, any_choice=any_choice)
    except FlagValueError as error:
        raise RecipeError(_at(place, info.name, str(error))) from None
    references.check(checked, place)
    if info.secret and isinstance(checked, str) and not references.is_whole(checked):
        raise literal_secret(place, info.name.upper())
    if info.kind == "json" and redact(checked) != checked:
        raise literal_secret(place, "NAME")
    return checked


def checked_variable(name: str, value: Any, place: str) -> str:
    """The value of an environment variable; whole and broken numbers may be written without quotes."""
    if not _VARIABLE.fullmatch(name):
        shown = clip(" ".join(plain(place).split()), _SHOWN_CELLS)
        raise RecipeError(f"{shown} is no name of an environment variable: use letters, digits and _.")
    if isinstance(value, int | float) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str) or not is_json(value) or "\0" in value:
        raise RecipeError(f"{place} is {shown_value(value)}; an environment variable takes a text in quotes.")
    references.check(value, place)
    if redact({name: value}) != {name: value}:
        raise literal_secret(place, name)
    return value


def checked_setting(section: str, name: str, value: Any) -> Any:
    """A value of [tuner] or [api], or of [server] python."""
    place = f"{section}.{name}"
    if name in LEAST:
        if not isinstance(value, int) or isinstance(value, bool) or not LEAST[name] <= value <= BIGGEST:
            raise RecipeError(f"{place} is {shown_value(value)}; it takes a whole number of at least {LEAST[name]}.")
        return value
    if name in NUMBERS:
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= BIGGEST:
            raise RecipeError(f"{place} is {shown_value(value)}; it takes a number of at least 0.")
        return float(value)
    if name == "simulator":
        if not isinstance(value, dict) or not is_json(value) or has_null(value):
            raise RecipeError(f"{place} is {shown_value(value)}; it takes a table of switches.")
        return value
    if not isinstance(value, str) or not value.strip() or not is_json(value) or "\0" in value:
        raise RecipeError(f"{place} is {shown_value(value)}; it takes a text.")
    if name == "sglang_version" and not re.fullmatch(r"\d+\.\d+[\w.+-]*", value, re.ASCII):
        raise RecipeError(f'{place} is {shown_value(value)}; it takes a version such as "{CATALOGUE_VERSION}".')
    references.check(value, place)
    if name == "python" and references.names(value):
        raise RecipeError(f"{place} is {shown_value(value)}; it takes the path of an interpreter, without variables.")
    if name == "launcher":
        _check_command(place, value)
    if name == "checks" and (not (named := named_checks(value)) or not {*named} <= {*CHECKS}):
        raise RecipeError(f"{place} is {shown_value(value)}; it takes some of: {', '.join(CHECKS)}.")
    if redact(value) != value:
        raise literal_secret(place, "NAME")
    return value


def named_checks(value: str) -> tuple[str, ...]:
    """The names in ``tuner.checks``, in the order of the quick set."""
    named = {" ".join(word.split()) for word in value.split(",")} - {""}
    return (*(name for name in CHECKS if name in named), *sorted(named - {*CHECKS}))


def left_out(recipe: Recipe, done: Collection[str] = ()) -> tuple[str, ...]:
    """The checks of the quick set that ``tuner.checks`` leaves out and that were not ``done`` all the same."""
    named = named_checks(recipe.tuner.checks or "") or CHECKS
    return tuple(name for name in CHECKS if name not in named and name not in done)


def _check_command(place: str, value: str) -> None:
    if references.names(value):
        raise RecipeError(f"{place} is {shown_value(value)}; it takes a command, without variables.")
    try:
        words = shlex.split(value)
    except ValueError:
        words = []
    if not words:
        raise RecipeError(f"{place} is {shown_value(value)}; it takes a command, with every quote closed.")


def _at(place: str, name: str, sentence: str) -> str:
    return sentence if place in ("", name) else f"{place}: {sentence}"


def literal_secret(place: str, variable: str) -> RecipeError:
    """What is said to a secret in clear; the secret itself is not."""
    return RecipeError(
        f'{place} holds a secret in clear: put it into an environment variable and write "${{{variable}}}" instead.'
    )
