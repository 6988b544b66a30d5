"""Inputs that several planner tests share."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from tuner.modelcard import ModelShape
from tuner.modelfile import load_shape
from tuner.planner.model import GIB, PlanInputs, Source, Sourced

DATA = Path(__file__).parents[2] / "data"
MEASURED = DATA / "measured"


@cache
def shape(name: str) -> ModelShape:
    return load_shape(name)


def inputs_for(
    model: str | ModelShape, version: str, free_before: float, free_after: float, *, loss: float = 0.066, **flags: Any
) -> PlanInputs:
    card = flags.pop("card_gib", None)
    fields = {
        key: flags.pop(key)
        for key in ("draft_weights", "free_after_has_draft", "environment", "graphs_gib", "draft_returned_gib")
        if key in flags
    }
    return PlanInputs(
        shape=shape(model) if isinstance(model, str) else model,
        flags=flags,
        sglang_version=version,
        free_before=Sourced(free_before, Source.OPERATOR),
        free_after=Sourced(free_after, Source.OPERATOR),
        startup_loss_gib=loss,
        card_gib=card,
        **fields,
    )


def gib(count: int) -> float:
    return count / GIB


def recorded_flags(name: str) -> dict[str, Any]:
    """Flags of a recorded round, by underscore name."""
    argv = json.loads((MEASURED / f"{name}.json").read_text())["scenario"]["flags"]
    flags: dict[str, Any] = {}
    position = 0
    while position < len(argv):
        key = argv[position].removeprefix("--").replace("-", "_")
        if position + 1 < len(argv) and not argv[position + 1].startswith("--"):
            flags[key] = argv[position + 1]
            position += 2
        else:
            flags[key] = True
            position += 1
    return flags
