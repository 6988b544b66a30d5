"""The need of a command: what is asked for, and for the rest what the recipe states."""

from __future__ import annotations

import click

from tuner.planner.need import Need
from tuner.recipe.model import TunerSettings
from tuner.session.needs import Stated


def needed(asked: Stated, settings: TunerSettings, *, output_tokens: int = 1) -> Need:
    """The whole need; ``output_tokens`` where nobody tells an answer's length.

    Raises click's UsageError where neither the options nor the recipe tell inputs and agents.
    """
    stated = asked.over(settings)
    for option, key, value in (
        ("--input", "need_input_tokens", stated.input_tokens),
        ("--agents", "need_agents", stated.agents),
    ):
        if value is None:
            raise click.UsageError(f"Give {option}, or {key} in the recipe's [tuner] table.")
    need = stated.need(output_tokens=output_tokens)
    assert need is not None
    return need
