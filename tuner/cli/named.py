"""What a name on the command line means: a round of the history, a preset, or a file."""

from __future__ import annotations

import re

from tuner.cli.output import UsageProblem
from tuner.cli.recipes import recipe_for
from tuner.cli.round_names import names_round
from tuner.recipe import merge_set
from tuner.recipe.model import Recipe, RecipeError
from tuner.rounds.history import History
from tuner.rounds.model import Round
from tuner.session.deaths import hidden_flags


def find_round(history: History, name: str) -> Round:
    """The round called "r3", "3", "last" or "good" (the last good one). Raises UsageProblem."""
    count = history.count()
    if name == "last":
        rounds = history.list(limit=1)
        if not rounds:
            raise UsageProblem("The history is empty: run a first round with tuner run.")
        return rounds[0]
    if name == "good":
        good = history.last_good()
        if good is None:
            raise UsageProblem("No round is good yet: none is verified, and none is marked with tuner keep.")
        return good
    match = re.fullmatch(r"r?(\d{1,9})", name)
    if match is None:
        raise UsageProblem(f"{name!r} is no round: name it like r3, or last, or good.")
    round_ = history.find(int(match[1]))
    if round_ is None:
        raise UsageProblem(f"There is no round r{int(match[1])}: the history holds {count} (see tuner rounds).")
    return round_


def recipe_named(history: History, name: str, assignments: tuple[str, ...]) -> Recipe:
    """The recipe of a round ("r3", "last", "good"), or of a preset or file, with ``--set`` changes.

    A file or preset of such a name comes first. Raises RecipeError or UsageProblem.
    """
    if not names_round(name):
        return recipe_for(name, assignments)
    recipe = merge_set(find_round(history, name).recipe, assignments)
    if hidden := hidden_flags(recipe):
        raise RecipeError(f"{name} was kept without its secrets: give them with --set {hidden[0]}=...")
    return recipe
