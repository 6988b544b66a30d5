"""``tuner`` and ``tuner demo``: the terminal app."""

from __future__ import annotations

import os
import sys

import click

from tuner.cli.output import UsageProblem, command
from tuner.cli.recipes import recipe_for
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.rounds.model import Round
from tuner.session.session import Session


@click.command("demo")
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="Port of the stand-in server.")
@command
def demo_command(port: int | None) -> int:
    """Open the terminal app on a stand-in server: no GPU, no SGLang, on any machine."""
    need_a_terminal()
    recipe = recipe_for("demo", (f"port={port}",) if port else ())
    return run_on(Session(Home.find()), recipe, demo=True)


@command
def open_app(preset: str | None) -> int:
    """Opens the app: on the running server, else on ``preset``, else where the last round left off.

    Where there is nothing of all that the app looks around and asks what it cannot find.
    """
    need_a_terminal()
    session = Session(Home.find())
    running = session.running()
    if running is not None and preset is None:
        return run_on(session, running.handle.recipe, demo=running.handle.simulated)
    recipe = recipe_for(preset, ()) if preset else _left_off(session)
    if recipe is None:
        return run_on(session, Recipe(), demo=False, first=True)
    return run_on(session, recipe, demo=recipe.simulated)


def need_a_terminal() -> None:
    """The app can neither be seen nor left where its input or output is a pipe or a file. Raises UsageProblem."""
    in_a_browser = bool(os.environ.get("TEXTUAL_DRIVER"))  # as textual serve starts it
    if not in_a_browser and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageProblem("The app needs a terminal; without one, commands such as tuner run and tuner status work.")


def _left_off(session: Session) -> Recipe | None:
    last: Round | None = session.history.last(simulated=False)
    if last is not None:
        return last.recipe
    own = session.home.config / "config.toml"
    if own.is_file():
        return recipe_for(str(own), ())
    mine = sorted(session.home.presets.glob("*.toml"), key=lambda path: path.stat().st_mtime)
    return recipe_for(str(mine[-1]), ()) if mine else None


def run_on(session: Session, recipe: Recipe, *, demo: bool, first: bool = False) -> int:
    from tuner.ui.app import run_app  # Textual is heavy

    try:
        return run_app(session, recipe, demo=demo, first=first)
    finally:
        session.close()
