"""A file or command read as a recipe, with what is worth saying about the reading."""

from __future__ import annotations

import msgspec

from tuner.recipe.model import Recipe


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """``head`` are the lines that the tuner wrote at the head of the file; ``remarks`` are sentences for the operator.

    A remark says what was read differently from how it stands: an old name, a secret in clear, a path in a container.
    """

    recipe: Recipe
    head: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
