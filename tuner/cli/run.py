"""``tuner run``, ``verify``, ``stop``: the server without the app."""

from __future__ import annotations

from functools import partial
from typing import Any

import click
import msgspec

from tuner.cli.interrupts import Interrupts, leave_at_once, port_words
from tuner.cli.named import recipe_named
from tuner.cli.output import DONE, FAILED, PLAIN_TEXT, command, fail, json_option, print_json, say
from tuner.cli.progress import narrator
from tuner.paths import Home
from tuner.recipe.model import SIMULATOR
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round, RoundState
from tuner.rounds.report import round_outcome
from tuner.server.cards import Foreign
from tuner.server.managers import stop_command_of
from tuner.server.model import InUse, StopOutcome
from tuner.session.session import Session
from tuner.session.watching import Running
from tuner.session.without_history import stop_without_history
from tuner.units import format_seconds


@click.command("run")
@click.argument("preset", required=False)
@click.option("--sim", is_flag=True, help="Run on the stand-in server; with the demo preset if none is named.")
@click.option("--python", metavar="PATH", help="Interpreter that has SGLang, instead of the recipe's.")
@click.option("--set", "assignments", multiple=True, metavar="KEY=VALUE", help="A flag to change; repeatable.")
@click.option("--note", type=PLAIN_TEXT, default="", metavar="TEXT", help="A note kept with the round.")
@click.option("--stop-after", is_flag=True, help="Stop the server when the round is over.")
@click.option("--force", is_flag=True, help="Start even what SGLang would surely refuse, or what died twice alike.")
@click.option("--fallback", is_flag=True, help="If the round is not verified, start the last good one again.")
@click.option("--now", is_flag=True, help="Do not wait for requests of the server that is replaced.")
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
    fallback: bool,
    now: bool,
    as_json: bool,
) -> int:
    """Run one round on PRESET (a name, a recipe file, or a round like r3): start the server, check it, record it.

    Ctrl-C breaks the round off, and leaves no server that is half started; a second one leaves at once.
    """
    if preset is None and not sim:
        raise click.UsageError("Name a preset or a recipe file, or give --sim for the stand-in server.")
    if fallback and stop_after:
        raise click.UsageError("Give --fallback or --stop-after: one starts a server again, the other leaves none.")
    interrupts = Interrupts("Breaking off the round.")
    publish = narrator(quiet=as_json)
    session = Session(Home.find())
    try:
        recipe = recipe_named(session.history, preset or "demo", assignments)
        if sim or python:
            recipe = msgspec.structs.replace(recipe, python=SIMULATOR if sim else python)
        before = session.running(recipe.port)

        def work() -> tuple[Round, Round | None, Round | None]:
            round_ = session.run_round(
                recipe,
                note=note,
                publish=publish,
                cancel=interrupts.cancel,
                stop_after=stop_after,
                force=force,
                drain=not now,
            )
            if round_.state is RoundState.VERIFIED:
                return round_, None, None
            good = session.last_good(recipe)
            falls = fallback and not interrupts.cancel.is_set()
            return round_, good, session.fall_back(round_, publish=publish, cancel=interrupts.cancel) if falls else None

        left = partial(leave_at_once, session, {recipe.port: before}, as_json=as_json)
        ((round_, good, instead),) = interrupts.run([work], left)
        broken_off = port_words(session, recipe.port, before) if interrupts.cancel.is_set() else ""
    finally:
        session.close()
    if as_json:
        extra = {"last_good": good.name if good else None, "fallback": _named(instead) if instead else None}
        print_json({**_named(round_), **extra})
    else:
        say(round_outcome(round_))
        if instead is not None:
            say(f"\nInstead runs what was good before:\n{round_outcome(instead)}")
        elif broken_off:
            say(f"\n{broken_off}")
        elif good is not None:
            say(f"\nThe last good round on this port is {good.name}: tuner run {good.name} starts it again.")
    return DONE if round_.state is RoundState.VERIFIED else FAILED


def _named(round_: Round) -> dict[str, Any]:
    return {"name": round_.name, **msgspec.to_builtins(round_)}


@click.command("stop")
@click.option(
    "--port", type=click.IntRange(1, 65535), metavar="PORT", help="The server on this port; without it the newest one."
)
@click.option("--now", is_flag=True, help="Do not wait for running requests.")
@click.option("--force", is_flag=True, help="Stop it also in the middle of another tuner's round.")
@json_option
@command
def stop_command(port: int | None, now: bool, force: bool, as_json: bool) -> int:
    """Stop the running server: ask, wait, then make sure that no process, port or VRAM is left."""
    home = Home.find()
    try:
        session = Session(home)
        session.settle()
    except HistoryError as error:
        say(f"{error} The server is stopped without it.", err=True)
        outcome = stop_without_history(home, port=port, drain=not now, publish=narrator(quiet=as_json))
        return _stopped(outcome, [], as_json=as_json)
    try:
        running = session.running(port)
        if not as_json and running is not None:
            bound = format_seconds(session.stop_bound_s(drain=not now))
            say(f"Stopping {_server_words(running)}, which takes {bound} at the most.", err=True)
        outcome = session.stop(publish=narrator(quiet=as_json), port=port, drain=not now, force=force)
        others = session.foreign(port) if outcome is None else []
        left = session.running() if outcome is not None and not as_json else None
    except InUse as refusal:
        fail(_in_words(refusal), as_json=as_json)
        return FAILED
    finally:
        session.close()
    status = _stopped(outcome, others, as_json=as_json)
    if left is not None and outcome is not None and outcome.stopped:
        say(f"{_server_words(left)} still runs: tuner stop --port {left.handle.port} ends it.", err=True)
    return status


def _server_words(running: Running) -> str:
    return f"{running.handle.round_name or 'the server'} on port {running.handle.port}"


def _stopped(outcome: StopOutcome | None, others: list[Foreign], *, as_json: bool) -> int:
    if outcome is None:
        fail(_nothing_of_ours(others), as_json=as_json)
        return FAILED
    if as_json:
        print_json(outcome)
    else:
        say(f"Stopped in {format_seconds(outcome.seconds)}: {outcome.how}. {outcome.reason}".rstrip(), err=True)
    return DONE if outcome.stopped else FAILED


def _in_words(refusal: InUse) -> str:
    return " ".join(f"{finding.title} {finding.remedy}" for finding in refusal.findings)


def _nothing_of_ours(others: list[Foreign]) -> str:
    """One sentence; a server that somebody else started is named and left alone."""
    if not others:
        return "No server of the tuner is running."
    named = "; ".join(f"process {o.pid}, port {o.port}, to stop it: {stop_command_of(o.pid)}" for o in others)
    return f"No server of the tuner is running, but an SGLang that it did not start is, and is left alone: {named}."
