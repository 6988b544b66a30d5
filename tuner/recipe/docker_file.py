"""A ``docker run`` command for a recipe, as a script to paste or keep."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.recipe import references
from tuner.recipe.carried import carried_lines, head_lines, words_say
from tuner.recipe.model import Recipe
from tuner.recipe.script_file import MODULE, SIMULATOR_MODULE
from tuner.recipe.shell import STAND_IN_NOTE, by_option, quoted, server_words
from tuner.recipe.slots import PYTHON

#: SGLang's own images; every release has a tag with its number.
_IMAGE = "lmsysorg/sglang"
_FOLDERS = ("model_path", "tokenizer_path", "speculative_draft_model_path")


def to_docker(recipe: Recipe, comments: Sequence[str] = ()) -> str:
    """A command that runs the recipe's server in SGLang's image of its version, or the newest.

    The container's name holds the port: docker refuses a second one of that name. Model folders are mounted at the
    paths they have outside, read-only. A secret reaches the container by its name, not on the command line.
    """
    note = []
    if recipe.simulated and STAND_IN_NOTE not in comments:
        note = [STAND_IN_NOTE, "The image must hold the tuner."]
    said = words_say(recipe) | {("environment", name) for name in recipe.environment}
    said -= set() if recipe.simulated else {PYTHON}
    words = server_words(recipe)
    needed = sorted({name for text in (*words, *recipe.environment.values()) for name in references.names(text)})
    lines = ["#!/usr/bin/env bash", *head_lines([*comments, *note]), *carried_lines(recipe, said), "set -eu"]
    lines += [f': "${{{name}:?must be set in the environment}}"' for name in needed]
    version = recipe.tuner.sglang_version
    image = f"{_IMAGE}:v{version}" if version else f"{_IMAGE}:latest"
    options = [
        "exec docker run --rm --gpus all --ipc host --network host",
        f"--name sglang-{recipe.port}",
        *(f"-e {_variable(name, value)}" for name, value in sorted(recipe.environment.items())),
        *(f"-v {quoted(f'{folder}:{folder}:ro')}" for folder in _folders(recipe)),
        quoted(image),
        f"python3 -m {SIMULATOR_MODULE if recipe.simulated else MODULE}",
        *by_option(words, quoted),
    ]
    return "\n".join(lines) + "\n" + " \\\n  ".join(options) + "\n"


def _variable(name: str, value: str) -> str:
    return name if value == f"${{{name}}}" else quoted(f"{name}={value}")


def _folders(recipe: Recipe) -> list[str]:
    """Absolute paths of the recipe that the container must see."""
    paths = [value for name in _FOLDERS if isinstance(value := recipe.flags.get(name), str) and value.startswith("/")]
    return list(dict.fromkeys(path for path in paths if ":" not in path))
