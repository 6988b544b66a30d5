"""How commands print and fail: one JSON value with ``--json``, plain text without, one sentence on an error."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec

import click
import msgspec

from tuner.findings import Finding
from tuner.modelcard import ModelError
from tuner.paths import HomeError
from tuner.planner.model import CannotPlan
from tuner.recipe.model import RecipeError
from tuner.redact import redact, redact_text
from tuner.rounds.errors import HistoryError
from tuner.text import plain, replaced

if TYPE_CHECKING:  # a database costs time that most commands do not need
    from tuner.rounds.history import History

P = ParamSpec("P")

#: Exit status: done, the thing failed, wrong use.
DONE, FAILED, WRONG_USE = 0, 1, 2

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON value and nothing else.")


class PlainText(click.ParamType[str]):
    """Words to keep or to look for: no escape sequences, and nothing that cannot be encoded again."""

    name = "text"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        return plain(str(value))


PLAIN_TEXT = PlainText()


class UsageProblem(Exception):
    """Wrong use that no type of ours names; the message is one sentence for the operator."""


#: Errors that are the operator's to mend; their messages are whole sentences.
_EXPECTED = (RecipeError, ModelError, CannotPlan, HomeError, HistoryError, UsageProblem)


def command(function: Callable[P, int]) -> Callable[P, None]:
    """Turns a command's return value into the exit status and its expected errors into one sentence."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            status = function(*args, **kwargs)
        except _EXPECTED as error:
            fail(str(error), as_json=bool(kwargs.get("as_json")))
            status = WRONG_USE
        except BrokenPipeError:
            # The reader of a pipe (head, less) went away: that is its right.
            sys.stderr.close()
            status = DONE
        sys.exit(status)

    return wrapped


def fail(sentence: str, *, as_json: bool) -> None:
    """Says what is wrong: on standard error, and as {"error": ...} where JSON was asked for."""
    sentence = redact_text(plain(sentence))
    if as_json:
        print_json({"error": sentence})
    click.echo(f"tuner: {sentence}", err=True)


def print_json(value: Any) -> None:
    """One JSON value on standard output, secrets out."""
    clean = redact(msgspec.to_builtins(value))
    try:
        encoded = msgspec.json.encode(clean)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_encodable(clean))
    click.echo(msgspec.json.format(encoded, indent=1).decode())


def _encodable(value: Any) -> Any:
    """The value with U+FFFD for bytes of a name that are no UTF-8 (lone surrogates)."""
    match value:
        case str():
            return replaced(value)
        case dict():
            return {replaced(key): _encodable(item) for key, item in value.items()}
        case list():
            return [_encodable(item) for item in value]
        case _:
            return value


def say(text: str = "", *, err: bool = False) -> None:
    """A line for a person; escape sequences of logs and answers never reach the terminal."""
    click.echo(plain(text), err=err)


def say_if_only_readable(history: History) -> None:
    """Where the tuner's folder may not be written, what is read is all there will be."""
    if history.only_readable:
        say(f"The history may only be read, so nothing is kept ({history.path}).", err=True)


def say_findings(findings: tuple[Finding, ...]) -> None:
    """Findings as text: severity, title, evidence, remedy."""
    for finding in findings:
        say(f"  {finding.severity:<8}{finding.id}: {finding.title}")
        for line in finding.evidence:
            say(f"          {line}")
        if finding.remedy:
            say(f"          -> {finding.remedy}")
