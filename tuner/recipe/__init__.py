"""Recipes and the files they come from and go to. Names are loaded when first used: each form of file has its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.deferred import names_in

if TYPE_CHECKING:
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

__getattr__ = names_in(
    __name__,
    argv="resolve_argv simulator_argv to_argv",
    assignments="merge_set",
    docker_file="to_docker",
    environment="resolve_environment",
    files="load load_file read_text",
    imported="Imported",
    model="SIMULATOR ApiSettings KeptKey Recipe RecipeError TunerSettings",
    settings_file="dumps_settings loads_settings",
    shell="to_shell",
    toml_file="dumps_toml loads_toml",
    unit_file="to_unit",
    yaml_file="to_yaml",
)
