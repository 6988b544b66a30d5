"""``${NAME}`` in texts: read from the environment at launch, never kept resolved."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tuner.recipe.model import RecipeError

_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_WHOLE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*\}")


def names(text: str) -> list[str]:
    """The variables a text refers to, in order."""
    return _REFERENCE.findall(text)


def is_whole(text: str) -> bool:
    """Whether a text is one reference and nothing else."""
    return _WHOLE.fullmatch(text) is not None


def pieces(text: str) -> list[tuple[bool, str]]:
    """A text cut into (is a reference, literal text or variable name)."""
    return [(index % 2 == 1, piece) for index, piece in enumerate(_REFERENCE.split(text)) if piece]


def check(value: Any, where: str) -> None:
    """Refuses ``${`` that begins no reference, in a text or anywhere inside arrays and tables."""
    if isinstance(value, str):
        if "${" in _REFERENCE.sub("", value):
            raise RecipeError(f"{where} holds ${{ without a variable name: write ${{NAME}} with letters, digits and _.")
    elif isinstance(value, Mapping):
        for item in value.values():
            check(item, where)
    elif isinstance(value, list | tuple):
        for item in value:
            check(item, where)


def resolve(value: Any, environ: Mapping[str, str], where: str) -> Any:
    """The value with every reference replaced; :class:`RecipeError` names a variable that is not set."""
    if isinstance(value, str):
        for name in names(value):
            if name not in environ:
                raise RecipeError(
                    f"The environment variable {name} is not set, and {where} needs it: export {name} first."
                )
        return _REFERENCE.sub(lambda match: environ[match[1]], value)
    if isinstance(value, Mapping):
        return {key: resolve(item, environ, where) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [resolve(item, environ, where) for item in value]
    return value
