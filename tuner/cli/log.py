"""``tuner log``: what a server log says."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

from tuner.cli.output import DONE, FAILED, UsageProblem, command, fail, json_option, print_json, say
from tuner.cli.remedies import say_remedied
from tuner.cli.round_names import names_round
from tuner.doctor import diagnose_log, with_remedies
from tuner.serverlog.model import BootFacts
from tuner.session.bootlog import read_log
from tuner.units import format_gib, format_seconds, format_tokens

if TYPE_CHECKING:  # a database costs time that no file needs
    from tuner.rounds.model import Round

_HEAD_BYTES = 64 << 10


@click.command("log")
@click.argument("file", metavar="FILE|rN")
@json_option
@command
def log_command(file: str, as_json: bool) -> int:
    """Say what a server log says: pools, memory, times, how far it came, what is wrong.

    A file, or the log of round rN; "last" is the newest round, "good" the last good one.
    """
    round_ = round_named(file)
    if round_ is not None:
        file = _log_of(round_)
    facts, tail = read_log(Path(file))
    if facts is None and round_ is not None:
        name = round_.name
        raise UsageProblem(f"The log of {name} is gone ({file}): tuner show {name} tells what was kept of it.")
    if facts is None:
        raise UsageProblem(f"The log {file} cannot be read: give the path of a file, or a round like r3.")
    if _is_binary(Path(file)):
        fail(f"{file} is no server log but a binary file: give what the server printed.", as_json=as_json)
        return FAILED
    told = facts != BootFacts()
    facts = msgspec.structs.replace(facts, findings=diagnose_log(facts, tail))
    if as_json:
        print_json(facts)
    elif told:
        _say(facts)
    else:
        say(f"{file} holds nothing that a starting SGLang prints.", err=True)
    return DONE if told else FAILED


def round_named(name: str) -> Round | None:
    """The round called "r3", "last" or "good"; None for any other name, and for that of a file that is there.

    Raises UsageProblem for a round that is not there.
    """
    if not names_round(name):
        return None
    from tuner.cli.history import opened
    from tuner.cli.named import find_round
    from tuner.paths import Home
    from tuner.session.settle import seen_here

    with opened() as history:
        return seen_here(find_round(history, name), Home.find())


def _log_of(round_: Round) -> str:
    if not round_.log_path:
        raise UsageProblem(f"{round_.name} has no log: no server came of it; tuner show {round_.name} tells why.")
    return round_.log_path


def _is_binary(path: Path) -> bool:
    """Zeros between other bytes; a log that was cut while the server wrote on begins with a run of them."""
    with path.open("rb") as file:
        return b"\0" in file.read(_HEAD_BYTES).strip(b"\0")


def _say(facts: BootFacts) -> None:
    say(f"SGLang {facts.version or 'of unknown version'}: {facts.phase}")
    rows = {
        "Free before weights": _gib(facts.free_before_gib),
        "Free after weights": _gib(facts.free_after_gib),
        "Weights": _parts(facts.weights_gib),
        "State slots": _count(facts.mamba_slots),
        "KV tokens": _count(facts.kv_tokens),
        "Requests": _count(facts.max_running_requests),
        "Context length": _count(facts.context_len),
        "Graphs": _parts(facts.graphs_gib),
        "Free at ready": _gib(facts.available_gib),
        "Times": ", ".join(f"{name} {format_seconds(s)}" for name, s in facts.timings.items()),
    }
    for name, value in rows.items():
        if value:
            say(f"  {name:<21}{value}")
    if facts.findings:
        say("Findings")
        say_remedied(with_remedies(facts.findings, None))


def _gib(value: float | None) -> str:
    return format_gib(value) if value is not None else ""


def _count(value: int | None) -> str:
    return format_tokens(value) if value is not None else ""


def _parts(parts: dict[str, float]) -> str:
    return ", ".join(f"{name} {format_gib(gib)}" for name, gib in parts.items())
