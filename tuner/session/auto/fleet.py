"""The same need on several GPUs of one machine at once: a server, a port and a lock for each, one history."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tuner.recipe.model import Recipe, RecipeError

_DEVICES = "CUDA_VISIBLE_DEVICES"
_LAST_PORT = 65_535


def recipes_for(recipe: Recipe, gpus: Sequence[str]) -> tuple[Recipe, ...]:
    """A recipe for each GPU: the first on the recipe's port, the others on those after it. Pure.

    Raises RecipeError, one sentence, when a GPU is named twice or the ports do not suffice.
    """
    twice = sorted({gpu for gpu in gpus if list(gpus).count(gpu) > 1})
    if twice:
        raise RecipeError(f"GPU {twice[0]} is named twice: each server needs one of its own.")
    if recipe.port + len(gpus) - 1 > _LAST_PORT:
        raise RecipeError(f"There are not {len(gpus)} ports from {recipe.port} on: choose a lower one.")
    return tuple(
        msgspec.structs.replace(
            recipe,
            flags={**recipe.flags, "port": recipe.port + number},
            environment={**recipe.environment, _DEVICES: gpu},
        )
        for number, gpu in enumerate(gpus)
    )
