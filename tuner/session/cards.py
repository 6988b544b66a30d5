"""Which GPUs a recipe's server uses, seen from here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tuner.metrics.model import GpuReading
from tuner.recipe.model import Recipe
from tuner.server.cards import used_gpus

_DEVICES = "CUDA_VISIBLE_DEVICES"
_REFERENCE = re.compile(r"\$\{(\w+)\}")


def cards_of(recipe: Recipe, environ: Mapping[str, str], gpus: Sequence[GpuReading]) -> list[GpuReading]:
    """The GPUs that a server of ``recipe`` uses, in its own order.

    A variable that the recipe's device list refers to and that is not set counts as empty: a launch says so,
    a look must not fail over it.
    """
    environment = dict(environ)
    if _DEVICES in recipe.environment:
        asked = recipe.environment[_DEVICES]
        environment[_DEVICES] = _REFERENCE.sub(lambda name: environ.get(name[1], ""), asked)
    return used_gpus(recipe, environment, gpus)
