"""The command line of a recipe, as SGLang's own argument parser (argparse, 0.5.5 to 0.5.23) takes it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from tuner.flags import FlagInfo, catalogue, is_in
from tuner.recipe import references
from tuner.recipe.checking import checked
from tuner.recipe.model import Recipe, RecipeError

#: A word that argparse takes for a number although it begins with a dash.
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+")


def to_argv(recipe: Recipe) -> list[str]:
    """The flags as words, the model first, then in the catalogue's order; :class:`RecipeError` for what cannot be said.

    Names are full: an abbreviation may be ambiguous in the next version. A switch that is on is its bare flag, one
    that is off is left out unless it has a negation; a list is several words, a table one word of JSON.
    ``${NAME}`` stays as written.
    """
    recipe = checked(recipe)
    return _command(recipe.flags, recipe.tuner.sglang_version)


def resolve_argv(recipe: Recipe, environ: Mapping[str, str]) -> list[str]:
    """The same words with every ``${NAME}`` read from ``environ``. They may hold secrets: never keep or show them."""
    recipe = checked(recipe)
    flags = {name: references.resolve(value, environ, name) for name, value in recipe.flags.items()}
    return _command(flags, recipe.tuner.sglang_version)


def simulator_argv(recipe: Recipe) -> list[str]:
    """The stand-in's own switches, from ``[tuner] simulator``: ``{speed = 50}`` is ``--sim-speed 50``."""
    words: list[str] = []
    for name, value in recipe.tuner.simulator.items():
        flag = "--sim-" + name.replace("_", "-")
        if value is True:
            words.append(flag)
        elif value is not False:
            words += [flag, value if isinstance(value, str) else msgspec.json.encode(value).decode()]
    return words


def _command(flags: Mapping[str, Any], version: str | None) -> list[str]:
    words: list[str] = []
    infos = catalogue()
    rank = {name: index for index, name in enumerate(infos)}
    for name in sorted(flags, key=lambda name: -1 if name == "model_path" else rank[name]):
        words += _option(infos[name], flags[name], spelling(infos[name], version))
    return words


def spelling(info: FlagInfo, version: str | None) -> str:
    """The flag, by its old name for a version from before the new one."""
    if version is not None and info.aliases and not is_in(info, version):
        return "--" + info.aliases[0].replace("_", "-")
    return info.flag


def _option(info: FlagInfo, value: Any, flag: str) -> list[str]:
    if value is True:
        return [flag]
    if value is False:
        return [info.negation] if info.negation else []
    if info.kind == "list":
        words = [_word(item) for item in value]
        if any(looks_like_a_flag(word) for word in words):
            raise RecipeError(f"{info.name} holds a text that begins with a dash; on a command line that is a flag.")
        return [flag, *words]
    word = _word(value)
    return [f"{flag}={word}"] if looks_like_a_flag(word) else [flag, word]


def _word(value: Any) -> str:
    if isinstance(value, dict | list):
        return msgspec.json.encode(value).decode()
    return value if isinstance(value, str) else str(value)


def looks_like_a_flag(word: str) -> bool:
    """Whether argparse takes a word for a flag and not for a value: a dash in front, and no number."""
    return word.startswith("-") and not _NEGATIVE_NUMBER.fullmatch(word)
