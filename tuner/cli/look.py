"""What ``status`` and ``watch`` look at: the tuner's own server, or one by its address."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import click

from tuner.cli.output import UsageProblem, say_if_only_readable
from tuner.metrics.binding import Binding, binding
from tuner.paths import Home
from tuner.session.attached import AddressError, Attached, AttachedSession
from tuner.session.session import Session
from tuner.session.watching import Look

url_option = click.option("--url", metavar="URL", help="Look at the server there instead, which need not be ours.")
key_option = click.option(
    "--key-env", metavar="NAME", help="Environment variable with that server's API key (SGLANG_API_KEY)."
)


class Source(Protocol):
    """Something to look at."""

    def look(self, *, keep: bool = False) -> Look:
        """One look."""


@contextmanager
def opened(url: str | None, key_env: str | None) -> Iterator[Source]:
    """Our own server, or the one at ``url``. Raises UsageProblem."""
    if key_env and not url:
        raise UsageProblem("--key-env belongs to --url: a server of ours has its key named in its recipe.")
    session = attached_session(url, key_env) if url else _our_session()
    try:
        yield session
    finally:
        session.close()


def _our_session() -> Session:
    session = Session(Home.find())
    say_if_only_readable(session.history)
    return session


def attached_session(url: str, key_env: str | None, model: str | None = None) -> AttachedSession:
    """A session on the server at ``url`` that plans with ``model`` where one is given. Raises UsageProblem."""
    try:
        server = Attached(url, os.environ, key_env)
    except AddressError as error:
        raise UsageProblem(str(error)) from error
    return AttachedSession(Home.find(), server, model=model)


def bound(look: Look) -> Binding | None:
    """What binds the server of a look; None when there is none."""
    if look.running is None:
        return None
    asked = look.running.handle.recipe.flags.get("max_running_requests")
    return binding(look.readings, asked if isinstance(asked, int) else None)
