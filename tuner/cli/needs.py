"""The need of a command: what is asked for, and for the rest what the recipe states."""

from __future__ import annotations

import click

from tuner.planner.need import Need
from tuner.recipe.model import TunerSettings
from tuner.session.needs import Stated


def needed(asked: Stated, settings: TunerSettings) -> Need:
    """The whole need. Raises click's UsageError where neither the options nor the recipe tell inputs and agents."""
    stated = asked.over(settings)
    for option, key, value in (
        ("--input", "need_input_tokens", stated.input_tokens),
        ("--agents", "need_agents", stated.agents),
    ):
        if value is None:
            raise click.UsageError(f"Give {option}, or {key} in the recipe's [tuner] table.")
    need = stated.need()
    assert need is not None
    return need
