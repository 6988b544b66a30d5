"""Which GPUs a recipe's server uses, seen from here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from tuner.metrics.model import GpuReading
from tuner.recipe.model import Recipe
from tuner.server.cards import used_gpus
from tuner.server.model import ServerHandle

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


def without(gpus: Sequence[GpuReading], handles: Sequence[ServerHandle]) -> list[GpuReading]:
    """The readings as they will be once the servers of ``handles`` have given back what they took since their start.

    What others took since then counts as given back too, so this may show more free memory than there will be.
    """
    before: dict[str, int] = {}
    for handle in handles:
        before.update(handle.vram_before_mib)
    return [_given_back(gpu, before.get(str(gpu.index))) for gpu in gpus]


def _given_back(gpu: GpuReading, before_mib: int | None) -> GpuReading:
    if before_mib is None or gpu.used_mib is None or gpu.free_mib is None:
        return gpu
    held = max(0, gpu.used_mib - before_mib)
    return msgspec.structs.replace(gpu, used_mib=gpu.used_mib - held, free_mib=gpu.free_mib + held)
