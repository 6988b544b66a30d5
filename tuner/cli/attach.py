"""``tuner attach``: the terminal app on a server that is not ours."""

from __future__ import annotations

import click

from tuner.cli.look import attached_session, key_option
from tuner.cli.output import UsageProblem, command
from tuner.cli.screen import need_a_terminal, run_on
from tuner.session.attached import AddressError


@click.command("attach")
@click.argument("url", metavar="URL")
@key_option
@click.option(
    "--model", metavar="DIR|config.json", help="Plan with this model, where the server's own folder is not here."
)
@command
def attach_command(url: str, key_env: str | None, model: str | None) -> int:
    """Open the terminal app on the server at URL, read-only: readings, charts and findings, no GPU needed here."""
    need_a_terminal()
    session = attached_session(url, key_env, model)
    try:
        recipe = session.told_recipe()
    except AddressError as error:
        session.close()
        raise UsageProblem(str(error)) from error
    return run_on(session, recipe, demo=False)
