"""The command line. Commands are imported when they are called, so that each one starts fast."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from typing import Any

import click

from tuner import __version__

#: Command -> (module in this package, one line of help).
_COMMANDS = {
    "demo": ("screen", "Open the terminal app on a stand-in server, on any machine."),
    "plan": ("plan", "Say what a start would give: both pools, before it."),
    "solve": ("solve", "Say which flags give what is needed: agents, inputs, warm conversations."),
    "advise": ("advise", "Say what to try after a round, ranked, or that it is good enough."),
    "log": ("log", "Say what a server log says."),
    "doctor": ("doctor", "Say what is wrong and what to do, with the flags to set."),
    "run": ("run", "Run one round: start, check, record."),
    "auto": ("auto", "Go from a need to a server that was seen to meet it, in few rounds."),
    "verify": ("check", "Check the running server again: quickly, fully, or through a gateway."),
    "measure": ("measure", "Measure the running server: load, physics, one flag against another."),
    "stop": ("run", "Stop the running server and make sure that nothing is left."),
    "status": ("status", "Say what runs now and how it does."),
    "watch": ("watch", "Print a line a second about the running server."),
    "attach": ("attach", "Open the terminal app on a server that is not ours, read-only."),
    "rounds": ("history", "List the rounds, or those that are like something."),
    "show": ("history", "Show one round."),
    "diff": ("history", "Show what changed between rounds."),
    "chart": ("history", "Chart one measure over the rounds."),
    "note": ("history", "Write a note on a round."),
    "tag": ("history", "Put tags on a round."),
    "keep": ("history", "Mark a round as the one to go back to."),
    "reject": ("history", "Mark a round as rejected."),
    "import": ("files", "Read a recipe from files or a running server."),
    "export": ("files", "Write a round as a file."),
    "presets": ("files", "List the presets."),
    "flags": ("flags", "Say what a flag does, what it may be, which pool it moves."),
    "guide": ("guide", "Read how the two pools work, each screen, answers from the field, every finding."),
}


class _LazyGroup(click.Group):
    """Knows its commands by name and imports a command's module only when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        module = importlib.import_module(f"tuner.cli.{_COMMANDS[name][0]}")
        command = getattr(module, f"{name}_command")
        if not isinstance(command, click.Command):
            raise TypeError(f"tuner.cli.{_COMMANDS[name][0]}.{name}_command is no command")
        return command

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        **extra: Any,
    ) -> Any:
        words = list(sys.argv[1:] if args is None else args)
        if not standalone_mode or "--json" not in words:
            return super().main(args, prog_name, complete_var, standalone_mode, **extra)
        try:
            status = super().main(words, prog_name, complete_var, False, **extra)
        except click.ClickException as error:
            # A wrong option is an answer too: a program that asked for JSON gets JSON.
            from tuner.cli.output import fail  # commands that are not called wrongly do not need it

            fail(error.format_message(), as_json=True)
            status = error.exit_code
        except click.Abort:
            from tuner.cli.output import FAILED, fail  # as above

            fail("It was broken off.", as_json=True)
            status = FAILED
        sys.exit(status)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        # The help lines stand here already: listing them must not import every command.
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in _COMMANDS.items()])


@click.group(cls=_LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--preset", metavar="PRESET", help="Open the app on this preset or recipe file.")
@click.version_option(__version__, prog_name="tuner")
@click.pass_context
def main(ctx: click.Context, preset: str | None) -> None:
    """Tune a running SGLang server for hybrid models: see both memory pools before the restart.

    Without a command the terminal app opens, on the server that runs if one does.
    """
    if preset is not None and ctx.invoked_subcommand is not None:
        raise click.UsageError(f"--preset opens the app; tuner {ctx.invoked_subcommand} does not take it.")
    if ctx.invoked_subcommand is None:
        from tuner.cli.screen import open_app  # the app is heavy, commands are not

        open_app(preset)
