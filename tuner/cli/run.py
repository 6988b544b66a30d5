"""``tuner run``, ``verify``, ``stop``: the server without the app."""

from __future__ import annotations

import signal
import threading

import click
import msgspec

from tuner.checks.model import Verdict
from tuner.cli.output import DONE, FAILED, command, fail, json_option, print_json, say
from tuner.cli.plan import recipe_for
from tuner.cli.progress import narrator
from tuner.paths import Home
from tuner.recipe.model import SIMULATOR
from tuner.rounds.model import RoundState
from tuner.rounds.report import round_text
from tuner.session.session import Session


@click.command("run")
@click.argument("preset", required=False)
@click.option("--sim", is_flag=True, help="Run on the stand-in server; with the demo preset if none is named.")
@click.option("--python", metavar="PATH", help="Interpreter that has SGLang, instead of the recipe's.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A flag to change; repeatable.")
@click.option("--note", default="", metavar="TEXT", help="A note kept with the round.")
@click.option("--stop-after", is_flag=True, help="Stop the server when the round is over.")
@click.option("--force", is_flag=True, help="Start even what SGLang would surely refuse.")
@json_option
@command
def run_command(
    preset: str | None,
    sim: bool,
    python: str | None,
    assignments: tuple[str, ...],
    note: str,
    stop_after: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Run one round on PRESET (a name, or a recipe file): start the server, check it, record it."""
    if preset is None and not sim:
        raise click.UsageError("Name a preset or a recipe file, or give --sim for the stand-in server.")
    recipe = recipe_for(preset or "demo", assignments)
    if sim or python:
        recipe = msgspec.structs.replace(recipe, python=SIMULATOR if sim else python)
    cancel = threading.Event()
    # The first Ctrl-C ends the start cleanly, so that no half-started server is left.
    signal.signal(signal.SIGINT, lambda *_: cancel.set())
    session = Session(Home.find())
    try:
        round_ = session.run_round(
            recipe, note=note, publish=narrator(quiet=as_json), cancel=cancel, stop_after=stop_after, force=force
        )
    finally:
        session.close()
    if as_json:
        print_json({"name": round_.name, **msgspec.to_builtins(round_)})
    else:
        say(round_text(round_))
    return DONE if round_.state is RoundState.VERIFIED else FAILED


@click.command("verify")
@json_option
@command
def verify_command(as_json: bool) -> int:
    """Check the running server again and record the results in its round."""
    session = Session(Home.find())
    try:
        results = session.verify(publish=narrator(quiet=as_json), cancel=threading.Event())
    finally:
        session.close()
    if results is None:
        fail("No server of the tuner is running: start one with tuner run.", as_json=as_json)
        return FAILED
    if as_json:
        print_json({"checks": results})
    return DONE if all(r.verdict is Verdict.PASS for r in results) else FAILED


@click.command("stop")
@click.option("--port", type=int, metavar="PORT", help="The server on this port; without it the newest one.")
@json_option
@command
def stop_command(port: int | None, as_json: bool) -> int:
    """Stop the running server: ask, wait, then make sure that no process, port or VRAM is left."""
    session = Session(Home.find())
    try:
        outcome = session.stop(publish=narrator(quiet=as_json), port=port)
    finally:
        session.close()
    if outcome is None:
        fail("No server of the tuner is running.", as_json=as_json)
        return FAILED
    if as_json:
        print_json(outcome)
    elif not outcome.stopped:
        say(outcome.reason, err=True)
    return DONE if outcome.stopped else FAILED
