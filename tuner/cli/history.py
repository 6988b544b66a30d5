"""``tuner rounds``, ``show``, ``diff``: the history."""

from __future__ import annotations

import re

import click
import msgspec

from tuner.cli.output import DONE, UsageProblem, command, json_option, print_json, say
from tuner.paths import Home
from tuner.rounds.diff import diff
from tuner.rounds.history import History
from tuner.rounds.model import Round
from tuner.rounds.report import diff_markdown, diff_text, round_text, summaries_text


def find_round(history: History, name: str) -> Round:
    """The round called "r3", "3" or "last". Raises UsageProblem."""
    count = history.count()
    if name == "last":
        rounds = history.list(limit=1)
        if not rounds:
            raise UsageProblem("The history is empty: run a first round with tuner run.")
        return rounds[0]
    match = re.fullmatch(r"r?(\d{1,9})", name)
    if match is None:
        raise UsageProblem(f"{name!r} is no round: name it like r3, or last.")
    round_ = history.find(int(match[1]))
    if round_ is None:
        raise UsageProblem(f"There is no round r{int(match[1])}: the history holds {count} (see tuner rounds).")
    return round_


@click.command("rounds")
@click.option("--limit", type=click.IntRange(1), default=50, metavar="N", help="How many, newest first.")
@json_option
@command
def rounds_command(limit: int, as_json: bool) -> int:
    """List the rounds, newest first: what changed, pools, checks, verdict, note."""
    history = History(Home.find().database)
    try:
        if as_json:
            print_json([{"name": r.name, **msgspec.to_builtins(r)} for r in history.list(limit=limit)])
        else:
            say(summaries_text(history.summaries(limit=limit)))
    finally:
        history.close()
    return DONE


@click.command("show")
@click.argument("name", metavar="rN")
@json_option
@command
def show_command(name: str, as_json: bool) -> int:
    """Show one round: what was asked, what was expected, what came."""
    history = History(Home.find().database)
    try:
        round_ = find_round(history, name)
    finally:
        history.close()
    if as_json:
        print_json({"name": round_.name, **msgspec.to_builtins(round_)})
    else:
        say(round_text(round_))
    return DONE


@click.command("diff")
@click.argument("old", metavar="rA")
@click.argument("new", metavar="rB")
@click.option("--md", "as_markdown", is_flag=True, help="Markdown, to paste somewhere.")
@json_option
@command
def diff_command(old: str, new: str, as_markdown: bool, as_json: bool) -> int:
    """Show what changed between two rounds: flags first, then pools, checks and latencies."""
    history = History(Home.find().database)
    try:
        difference = diff(find_round(history, old), find_round(history, new))
    finally:
        history.close()
    if as_json:
        print_json(difference)
    elif as_markdown:
        say(diff_markdown(difference))
    else:
        say(diff_text(difference))
    return DONE
