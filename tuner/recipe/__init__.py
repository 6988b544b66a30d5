"""Recipes and the files they come from and go to."""

from tuner.recipe.argv import resolve_argv, simulator_argv, to_argv
from tuner.recipe.assignments import merge_set
from tuner.recipe.docker_file import to_docker
from tuner.recipe.environment import resolve_environment
from tuner.recipe.files import load, load_file, read_text
from tuner.recipe.imported import Imported
from tuner.recipe.model import SIMULATOR, ApiSettings, KeptKey, Recipe, RecipeError, TunerSettings
from tuner.recipe.settings_file import dumps_settings, loads_settings
from tuner.recipe.shell import to_shell
from tuner.recipe.toml_file import dumps_toml, loads_toml
from tuner.recipe.unit_file import to_unit
from tuner.recipe.yaml_file import to_yaml


def kept_report(recipe: Recipe) -> tuple[KeptKey, ...]:
    """The keys of the recipe's files that have no effect, each with what it would be in SGLang."""
    return recipe.kept


__all__ = [
    "SIMULATOR",
    "ApiSettings",
    "Imported",
    "KeptKey",
    "Recipe",
    "RecipeError",
    "TunerSettings",
    "dumps_settings",
    "dumps_toml",
    "kept_report",
    "load",
    "load_file",
    "loads_settings",
    "loads_toml",
    "merge_set",
    "read_text",
    "resolve_argv",
    "resolve_environment",
    "simulator_argv",
    "to_argv",
    "to_docker",
    "to_shell",
    "to_unit",
    "to_yaml",
]
