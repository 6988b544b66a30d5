"""The environment of a start as it is kept with a round."""

from __future__ import annotations

from collections.abc import Mapping

from tuner.recipe.environment import LOOKED_AT
from tuner.recipe.model import Recipe
from tuner.redact import redact


def kept_environment(recipe: Recipe, environ: Mapping[str, str]) -> dict[str, str]:
    """The recipe's variables as asked (``${NAME}`` unresolved) and the inherited ones that matter, secrets hidden."""
    inherited = {name: value for name, value in sorted(environ.items()) if name.startswith(LOOKED_AT)}
    hidden: dict[str, str] = redact({**inherited, **recipe.environment})
    return hidden
