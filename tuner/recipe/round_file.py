"""The recipe inside a round that was exported as JSON."""

from __future__ import annotations

import re

import msgspec

from tuner.recipe.checking import checked
from tuner.recipe.imported import Imported
from tuner.recipe.model import Recipe, RecipeError

_START = re.compile(r'\s*\{\s*"(?:number|name)"\s*:')


class _Round(msgspec.Struct):
    recipe: Recipe


def is_round(text: str) -> bool:
    """Whether a text is an exported round."""
    return _START.match(text) is not None


def loads_round(text: str, name: str = "") -> Imported:
    """The recipe that a round ran; :class:`RecipeError` in one sentence. Secrets are ``***``, as in the history."""
    try:
        recipe = msgspec.json.decode(text.encode("utf-8"), type=_Round).recipe
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise RecipeError(f"{name or 'The file'} is no round that tuner export wrote.") from None
    return Imported(recipe=msgspec.structs.replace(checked(recipe), name=name))
