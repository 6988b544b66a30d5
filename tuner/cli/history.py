"""``tuner rounds``, ``show``, ``diff``, ``chart`` and the operator's words on a round: the history."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click
import msgspec

from tuner.cli.named import find_round
from tuner.cli.output import DONE, PLAIN_TEXT, UsageProblem, command, json_option, print_json, say, say_if_only_readable
from tuner.paths import Home
from tuner.rounds.chart import measure_chart
from tuner.rounds.diff import diff
from tuner.rounds.history import History
from tuner.rounds.measures import MEASURES, measure
from tuner.rounds.model import Round, RoundState
from tuner.rounds.report import (
    diff_markdown,
    diff_text,
    round_text,
    rounds_markdown,
    summaries_text,
    table_markdown,
    table_text,
)
from tuner.rounds.search import ANY, Search, read_words, with_flag
from tuner.rounds.summary import RoundSummary
from tuner.rounds.table import table

_STATES = [str(state) for state in RoundState]
#: A round in one of these runs, or has lost its tuner.
_OPEN = (RoundState.STARTING, RoundState.CHECKING)
#: Most rounds that are laid beside each other: a table of more is no table.
_MOST_COLUMNS = 12


@contextmanager
def opened() -> Iterator[History]:
    """The operator's history."""
    history = History(Home.find().database)
    say_if_only_readable(history)
    try:
        yield history
    finally:
        history.close()


@click.command("rounds")
@click.argument("words", nargs=-1, type=PLAIN_TEXT)
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES), help="How it ended; repeatable.")
@click.option(
    "--flag",
    "flags",
    multiple=True,
    type=PLAIN_TEXT,
    metavar="KEY[=VALUE]",
    help="Asked for this flag, or this value of it.",
)
@click.option("--tag", "tags", multiple=True, type=PLAIN_TEXT, metavar="TAG", help="Has this tag; repeatable.")
@click.option("--kept", "verdict", flag_value="keep", help="Marked with tuner keep.")
@click.option("--rejected", "verdict", flag_value="reject", help="Marked with tuner reject.")
@click.option("--sim/--real", "simulated", default=None, help="Only simulated rounds, or only real ones.")
@click.option("--front", "only_front", is_flag=True, help="Only rounds that no other one beats in everything.")
@click.option("--limit", type=click.IntRange(1), default=50, metavar="N", help="How many, newest first.")
@click.option("--md", "as_markdown", is_flag=True, help="Markdown, to paste somewhere.")
@json_option
@command
def rounds_command(
    words: tuple[str, ...],
    states: tuple[str, ...],
    flags: tuple[str, ...],
    tags: tuple[str, ...],
    verdict: str | None,
    simulated: bool | None,
    only_front: bool,
    limit: int,
    as_markdown: bool,
    as_json: bool,
) -> int:
    """List the rounds, newest first: what changed, pools, checks, verdict, note.

    WORDS are what the Rounds screen takes too: a state, "kept", "rejected", "simulated", "real", "front", #tag,
    flag=value; any other word is looked for in notes, reasons, phases, models, flags and tags. All must hold.
    """
    search = _search(words, states, flags, tags, verdict, simulated, only_front=only_front)
    with opened() as history:
        lines = [_settled(history, line) for line in history.summaries(limit=limit, search=search)]
        if as_json:
            print_json(_rounds_json(history, lines, limit, search))
        elif not lines and search != ANY:
            say("No round is like that.")
        else:
            say(rounds_markdown(lines) if as_markdown else summaries_text(lines, _terminal_cells()))
    return DONE


def _settled(history: History, line: RoundSummary) -> RoundSummary:
    """The line of a round that lost its tuner as it will be closed; changed by nobody who only looks."""
    if line.state not in _OPEN:
        return line
    from tuner.session.settle import seen_line  # the server's part of the tuner, for rounds that are open

    return seen_line(line, history, Home.find())


def _seen(round_: Round) -> Round:
    if round_.state not in _OPEN:
        return round_
    from tuner.session.settle import seen_here  # the server's part of the tuner, for rounds that are open

    return seen_here(round_, Home.find())


def _search(
    words: tuple[str, ...],
    states: tuple[str, ...],
    flags: tuple[str, ...],
    tags: tuple[str, ...],
    verdict: str | None,
    simulated: bool | None,
    *,
    only_front: bool,
) -> Search:
    """What the words and the options ask for together; an option counts over a word of its kind."""
    search = read_words(words)
    for text in flags:
        name, equals, value = text.partition("=")
        search = with_flag(search, name, value if equals else None)
    return msgspec.structs.replace(
        search,
        states=tuple(RoundState(s) for s in states) or search.states,
        tags=(*search.tags, *tags),
        verdict=verdict or search.verdict,
        simulated=search.simulated if simulated is None else simulated,
        front=only_front or search.front,
    )


def _rounds_json(
    history: History, lines: Sequence[RoundSummary], limit: int, search: Search
) -> list[dict[str, object]]:
    """Rounds in full; of a damaged one its line, with why it cannot be read."""
    front = history.front()
    whole = {r.number: msgspec.to_builtins(_seen(r)) for r in history.list(limit=limit, search=search)}
    told = []
    for line in lines:
        known = whole.get(line.number) or msgspec.to_builtins(line)
        if line.number not in whole and not line.damaged:
            known["damaged"] = f"{line.name} cannot be read from the history: its record has another form."
        told.append({"name": line.name, **known, "pareto": line.number in front})
    return told


def _terminal_cells() -> int | None:
    """Width of the terminal; None where the output goes to a file or another program, which want all of it."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


@click.command("show")
@click.argument("name", metavar="rN")
@json_option
@command
def show_command(name: str, as_json: bool) -> int:
    """Show one round: what was asked, what was expected, what came. "last" is the newest, "good" the last good one."""
    with opened() as history:
        round_ = _seen(find_round(history, name))
    if as_json:
        print_json({"name": round_.name, **msgspec.to_builtins(round_)})
    else:
        say(round_text(round_))
    return DONE


@click.command("diff")
@click.argument("names", nargs=-1, required=True, metavar="rA rB [rC...]")
@click.option("--md", "as_markdown", is_flag=True, help="Markdown, to paste somewhere.")
@json_option
@command
def diff_command(names: tuple[str, ...], as_markdown: bool, as_json: bool) -> int:
    """Show what changed between two rounds: flags first, then pools, checks and latencies. More become a table."""
    if not 2 <= len(names) <= _MOST_COLUMNS:
        raise UsageProblem(f"Name two rounds, or up to {_MOST_COLUMNS} for a table: tuner diff r1 r2.")
    with opened() as history:
        rounds = [_seen(find_round(history, name)) for name in names]
    if len(rounds) > 2:
        many = table(rounds)
        if as_json:
            print_json(many)
        else:
            say(table_markdown(many) if as_markdown else table_text(many))
        return DONE
    difference = diff(*rounds)
    if as_json:
        print_json(difference)
    elif as_markdown:
        say(diff_markdown(difference))
    else:
        say(diff_text(difference))
    return DONE


@click.command("chart")
@click.argument("what", metavar="MEASURE")
@click.argument("names", nargs=-1, metavar="[rN...]")
@click.option("--limit", type=click.IntRange(1), default=30, metavar="N", help="The newest N, where none is named.")
@json_option
@command
def chart_command(what: str, names: tuple[str, ...], limit: int, as_json: bool) -> int:
    """Chart one MEASURE over the rounds, oldest first, such as kv_tokens or ttft_p50; "list" names all."""
    if what == "list":
        if as_json:
            print_json({m.name: m.label for m in MEASURES})
        for m in () if as_json else MEASURES:
            say(f"  {m.name:<24}{m.label}")
        return DONE
    wanted = measure(what)
    if wanted is None:
        raise UsageProblem(f"There is no measure {what!r}: take one of {', '.join(m.name for m in MEASURES)}.")
    with opened() as history:
        rounds = [find_round(history, name) for name in names] or history.list(limit=limit)[::-1]
    if as_json:
        print_json({"measure": wanted.name, "rounds": {r.name: wanted.read(r) for r in rounds}})
    else:
        say(wanted.label)
        for line in measure_chart(wanted, rounds):
            say(line)
    return DONE


@click.command("note")
@click.argument("name", metavar="rN")
@click.argument("text", required=False, type=PLAIN_TEXT)
@json_option
@command
def note_command(name: str, text: str | None, as_json: bool) -> int:
    """Write a note on round rN; without TEXT its note is shown, with an empty one it is taken away."""
    with opened() as history:
        round_ = find_round(history, name)
        if text is not None:
            history.set_note(round_.number, text)
            round_ = history.get(round_.number)
    return _told(round_, as_json, f"{round_.name}: {round_.note or 'no note'}")


@click.command("tag")
@click.argument("name", metavar="rN")
@click.argument("tags", nargs=-1, type=PLAIN_TEXT)
@click.option("--remove", multiple=True, type=PLAIN_TEXT, metavar="TAG", help="Take this tag away; repeatable.")
@json_option
@command
def tag_command(name: str, tags: tuple[str, ...], remove: tuple[str, ...], as_json: bool) -> int:
    """Put TAGS on round rN; without any its tags are shown."""
    with opened() as history:
        round_ = find_round(history, name)
        if tags or remove:
            history.set_tags(round_.number, tags, remove)
            round_ = history.get(round_.number)
    return _told(round_, as_json, f"{round_.name}: {' '.join(round_.tags) or 'no tags'}")


@click.command("keep")
@click.argument("name", metavar="rN")
@click.option("--undo", is_flag=True, help="Take the mark away.")
@json_option
@command
def keep_command(name: str, undo: bool, as_json: bool) -> int:
    """Mark round rN as one to keep: from then on it is the last good one ("good" in every command)."""
    return _mark(name, "" if undo else "keep", as_json)


@click.command("reject")
@click.argument("name", metavar="rN")
@click.option("--undo", is_flag=True, help="Take the mark away.")
@json_option
@command
def reject_command(name: str, undo: bool, as_json: bool) -> int:
    """Mark round rN as rejected: it is never the last good one."""
    return _mark(name, "" if undo else "reject", as_json)


def _mark(name: str, verdict: str, as_json: bool) -> int:
    with opened() as history:
        round_ = find_round(history, name)
        history.set_verdict(round_.number, verdict)
        round_ = history.get(round_.number)
    status = _told(round_, as_json, f"{round_.name}: {round_.verdict or 'no mark'}")
    if verdict == "keep" and round_.state is not RoundState.VERIFIED:
        say(f"{round_.name} is kept although it is {round_.state}.", err=True)
    return status


def _told(round_: Round, as_json: bool, line: str) -> int:
    if as_json:
        print_json({"name": round_.name, "note": round_.note, "tags": round_.tags, "verdict": round_.verdict})
    else:
        say(line)
    return DONE
