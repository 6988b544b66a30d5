"""The recipe that a command works on."""

from __future__ import annotations

from tuner.paths import Home, find_preset
from tuner.recipe.model import Recipe


def recipe_for(preset: str | None, assignments: tuple[str, ...]) -> Recipe:
    """A preset or file with ``--set`` changes; without a preset an empty recipe with them. Raises RecipeError."""
    from tuner.recipe import load, merge_set  # who opens the app on the running server reads no file

    recipe = load(find_preset(preset, Home.find())) if preset else Recipe()
    return merge_set(recipe, assignments)
