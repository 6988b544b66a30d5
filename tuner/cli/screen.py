"""``tuner`` and ``tuner demo``: the terminal app."""

from __future__ import annotations

import sys

import click

from tuner.cli.output import UsageProblem, command
from tuner.cli.plan import recipe_for
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.rounds.model import Round
from tuner.session.session import Session


@click.command("demo")
@click.option("--port", type=click.IntRange(1, 65535), metavar="PORT", help="Port of the stand-in server.")
@command
def demo_command(port: int | None) -> int:
    """Open the terminal app on a stand-in server: no GPU, no SGLang, on any machine."""
    _need_a_terminal()
    recipe = recipe_for("demo", (f"port={port}",) if port else ())
    return _run(Session(Home.find()), recipe, demo=True)


@command
def open_app(preset: str | None) -> int:
    """Opens the app: on the running server, else on ``preset``, else where the last round left off."""
    _need_a_terminal()
    session = Session(Home.find())
    running = session.running()
    if running is not None and preset is None:
        return _run(session, running.handle.recipe, demo=running.handle.simulated)
    recipe = recipe_for(preset, ()) if preset else _left_off(session)
    if recipe is None:
        session.close()
        raise UsageProblem(
            "There is no server and no history yet: open a preset with tuner --preset NAME, "
            "or see how it works with tuner demo."
        )
    return _run(session, recipe, demo=recipe.simulated)


def _need_a_terminal() -> None:
    """The app can neither be seen nor left where its input or output is a pipe or a file. Raises UsageProblem."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageProblem("The app needs a terminal; without one, commands such as tuner run and tuner status work.")


def _left_off(session: Session) -> Recipe | None:
    last: Round | None = session.history.last(simulated=False)
    if last is not None:
        return last.recipe
    own = session.home.config / "config.toml"
    return recipe_for(str(own), ()) if own.is_file() else None


def _run(session: Session, recipe: Recipe, *, demo: bool) -> int:
    from tuner.ui.app import run_app  # Textual is heavy

    try:
        return run_app(session, recipe, demo=demo)
    finally:
        session.close()
