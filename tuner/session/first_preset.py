"""The presets of a first run: the one that is written, and the demo."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tuner.paths import Home, find_preset, list_presets
from tuner.recipe import dumps_toml, load
from tuner.recipe.model import Recipe
from tuner.session.first_recipe import preset_name

_HEAD = (
    "Written on the first run, from what this machine has. Everything that is not set here is SGLang's own choice.",
)


def keep_preset(home: Home, recipe: Recipe) -> Path:
    """Writes ``recipe`` into the operator's presets, under a name that is free, and returns the file.

    Raises HomeError, RecipeError or OSError.
    """
    path = (
        home.presets / f"{preset_name(recipe.name or recipe.served_name.rsplit('/', 1)[-1], list_presets(home))}.toml"
    )
    text = dumps_toml(msgspec.structs.replace(recipe, name=path.stem), _HEAD)
    # "x": of two that write at once the later one must not take the earlier one's file.
    with path.open("x", encoding="utf-8") as file:
        file.write(text)
    return path


def packaged_demo(home: Home) -> Recipe:
    """The recipe of the demo. Raises RecipeError."""
    return load(find_preset("demo", home))
