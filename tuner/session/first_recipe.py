"""A first recipe out of what a machine has, and what is left to ask. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence

import msgspec

from tuner.metrics.model import GpuReading
from tuner.recipe.model import Recipe
from tuner.session.finding_here import Found, FoundInterpreter, FoundModel, FoundServer

#: Share of a card's memory that weights may take: pools and graphs need the rest.
_WEIGHTS_SHARE = 0.85
#: SGLang's own port.
_PORT = 30000
_MIB_PER_GIB = 1024
_NAME = re.compile(r"[^\w.+-]+")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """What can be taken, best first, and the server whose flags can be taken whole."""

    interpreters: tuple[FoundInterpreter, ...] = ()
    models: tuple[FoundModel, ...] = ()
    server: FoundServer | None = None
    gpus: tuple[GpuReading, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether nothing is left to ask: a server's flags, or one interpreter and one model."""
        return self.server is not None or (len(self.interpreters) == 1 and len(self.models) == 1)

    @property
    def nothing(self) -> bool:
        """Whether there is nothing at all to begin with."""
        return self.server is None and not self.interpreters and not self.models


def options(found: Found) -> Options:
    """The best first: the newest SGLang; models that fit on the cards, hybrids before others, the newest first."""
    interpreters = sorted(found.interpreters, key=lambda i: _version(i.version), reverse=True)
    room = sum(_total_gib(gpu) for gpu in found.gpus) * _WEIGHTS_SHARE
    models = sorted(
        found.models, key=lambda m: (not room or m.weights_gib <= room, m.hybrid, m.changed_at), reverse=True
    )
    return Options(
        interpreters=tuple(interpreters),
        models=tuple(models),
        server=next((s for s in found.servers if s.recipe is not None), None),
        gpus=found.gpus,
    )


def first_recipe(python: str, model: str, name: str, weights_gib: float, gpus: Sequence[GpuReading]) -> Recipe:
    """SGLang's own choices for a model, on the fewest cards that hold it, those with most room first.

    ``python`` may be empty: the recipe then plans, but does not start.
    """
    flags: dict[str, object] = {
        "model_path": model,
        "served_model_name": name,
        "port": _PORT,
        # Without it the server tells hardly anything of itself.
        "enable_metrics": True,
    }
    environment: dict[str, str] = {}
    cards = _cards(weights_gib, gpus)
    if len(cards) > 1:
        flags["tp_size"] = len(cards)
    if len(gpus) > 1 and cards != [gpu.index for gpu in gpus][: len(cards)]:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(str(index) for index in cards)
    return Recipe(name=preset_name(name, ()), flags=flags, environment=environment, python=python or None)


def preset_name(name: str, taken: Container[str]) -> str:
    """A file name out of a model's name that no preset has yet."""
    stem = _NAME.sub("-", name).strip("-.").lower() or "first"
    if stem not in taken:
        return stem
    number = 2
    while f"{stem}-{number}" in taken:
        number += 1
    return f"{stem}-{number}"


def _cards(weights_gib: float, gpus: Sequence[GpuReading]) -> list[int]:
    """Indexes of the cards to take: 1, 2, 4 … of them."""
    freest = sorted(gpus, key=lambda gpu: (-(gpu.free_mib or 0), gpu.index))
    count = 1
    while count * 2 <= len(freest) and sum(map(_total_gib, freest[:count])) * _WEIGHTS_SHARE < weights_gib:
        count *= 2
    return sorted(gpu.index for gpu in freest[:count])


def _total_gib(gpu: GpuReading) -> float:
    return (gpu.total_mib or 0) / _MIB_PER_GIB


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text))
