"""All that a recipe says, as a flat list of slots: what files place, change and leave out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from tuner.recipe.keys import API_SECTION, TUNER_SECTION
from tuner.recipe.model import ApiSettings, KeptKey, Recipe, TunerSettings

#: What a value stands for: ("flags", name), ("environment", NAME), ("tuner", field), ("api", field) or PYTHON.
Slot = tuple[str, str]
PYTHON: Slot = ("server", "python")


def slots_of(recipe: Recipe) -> dict[Slot, Any]:
    """All that a recipe says, by slot; what is left at its default is not there."""
    slots: dict[Slot, Any] = {}
    if recipe.python is not None:
        slots[PYTHON] = recipe.python
    slots |= {("flags", name): value for name, value in recipe.flags.items()}
    slots |= {(API_SECTION, name): value for name, value in _set_fields(recipe.api).items()}
    slots |= {("environment", name): value for name, value in recipe.environment.items()}
    slots |= {(TUNER_SECTION, name): value for name, value in _set_fields(recipe.tuner).items()}
    return slots


def from_slots(base: Recipe, slots: Mapping[Slot, Any], kept: tuple[KeptKey, ...]) -> Recipe:
    """``base`` (for its name and source) that says what the slots say and nothing else."""
    return msgspec.structs.replace(
        base,
        flags=_of("flags", slots),
        environment=_of("environment", slots),
        python=slots.get(PYTHON),
        tuner=TunerSettings(**_of(TUNER_SECTION, slots)),
        api=ApiSettings(**_of(API_SECTION, slots)),
        kept=kept,
    )


def without(recipe: Recipe, slot: Slot) -> Recipe:
    """The recipe that no longer says anything of one slot."""
    return from_slots(recipe, {known: value for known, value in slots_of(recipe).items() if known != slot}, recipe.kept)


def _of(group: str, slots: Mapping[Slot, Any]) -> dict[str, Any]:
    return {name: value for (owner, name), value in slots.items() if owner == group}


def _set_fields(settings: TunerSettings | ApiSettings) -> dict[str, Any]:
    return {
        name: value for name, value in msgspec.structs.asdict(settings).items() if value is not None and value != {}
    }
