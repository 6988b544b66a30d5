"""What the copy key takes to the terminal's clipboard: always without secrets, and safe to paste. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

from tuner.findings import Finding
from tuner.recipe.model import SIMULATOR, Recipe
from tuner.redact import redact, redact_text
from tuner.text import plain

if TYPE_CHECKING:
    from tuner.session.watching import Look


class Copied(msgspec.Struct, frozen=True):
    """``what`` it is, in a few words for a sentence, and the text itself; ``text`` empty: ``what`` says why."""

    what: str
    text: str = ""


@runtime_checkable
class Copies(Protocol):
    """A screen that has something to copy."""

    def to_copy(self) -> Copied:
        """What is under the eye. Raises RecipeError for a launch command that cannot be said."""


def clean(text: str) -> str:
    """Without escape sequences, then without secrets: a sequence inside a key would hide it from the redaction."""
    return redact_text(plain(text))


def address(look: Look | None) -> Copied:
    """Where the running server is."""
    if look is None or look.running is None:
        return Copied("Nothing to copy here: no server runs.")
    return Copied("the server's address", clean(look.url or look.running.handle.url))


def finding_text(finding: Finding, limit: str = "") -> Copied:
    """A finding with its evidence, what to do, and the ``limit`` of that (why it would not help, or its price)."""
    evidence = [f"  {line}" for line in finding.evidence]
    lines = [f"{finding.title} ({finding.id})", *evidence, *(line for line in (finding.remedy, limit) if line)]
    return Copied("the finding with its evidence", clean("\n".join(lines)))


def log_lines(lines: Sequence[str], *, hit: bool) -> Copied:
    """Lines of a log: the one that was searched for, or those in sight."""
    if not lines:
        return Copied("Nothing to copy here: the log has no line in sight.")
    what = "the line found" if hit else f"{len(lines)} lines of the log" if len(lines) > 1 else "a line of the log"
    return Copied(what, clean("\n".join(lines)))


def launch_command(recipe: Recipe, name: str) -> Copied:
    """The command that starts a round's server, as a shell takes it. Raises RecipeError for what none can say."""
    from tuner.recipe.shell import quoted, server_words  # read by those who copy a command

    variables = [f"{key}={quoted(plain(value))}" for key, value in redact(dict(recipe.environment)).items()]
    python = "python3" if recipe.python in (None, SIMULATOR) else plain(recipe.python or "")
    home = "~/" if python.startswith("~/") else ""
    module = "tuner.sim" if recipe.simulated else "sglang.launch_server"
    launcher = [quoted(plain(word)) for word in redact(list(recipe.launcher))]
    words = [quoted(plain(word)) for word in redact(server_words(recipe))]
    parts = [*variables, *launcher, home + quoted(python.removeprefix(home)), "-m", module, *words]
    return Copied(f"the launch command of {name}", " ".join(parts))
