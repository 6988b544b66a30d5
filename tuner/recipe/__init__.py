"""Recipes and the files they come from and go to."""

from tuner.recipe.argv import resolve_argv, simulator_argv, to_argv
from tuner.recipe.assignments import merge_set
from tuner.recipe.environment import resolve_environment
from tuner.recipe.files import load
from tuner.recipe.model import SIMULATOR, ApiSettings, KeptKey, Recipe, RecipeError, TunerSettings
from tuner.recipe.settings_file import dumps_settings, loads_settings
from tuner.recipe.shell import to_shell
from tuner.recipe.toml_file import dumps_toml, loads_toml


def kept_report(recipe: Recipe) -> tuple[KeptKey, ...]:
    """The keys of the recipe's files that have no effect, each with what it would be in SGLang."""
    return recipe.kept


__all__ = [
    "SIMULATOR",
    "ApiSettings",
    "KeptKey",
    "Recipe",
    "RecipeError",
    "TunerSettings",
    "dumps_settings",
    "dumps_toml",
    "kept_report",
    "load",
    "loads_settings",
    "loads_toml",
    "merge_set",
    "resolve_argv",
    "resolve_environment",
    "simulator_argv",
    "to_argv",
    "to_shell",
]
