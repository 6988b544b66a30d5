"""``tuner import`` and ``tuner export``: the files that rounds come from and go to."""

from __future__ import annotations

from pathlib import Path

import click

from tuner.cli.history import find_round
from tuner.cli.output import DONE, UsageProblem, command, json_option, print_json, say
from tuner.paths import Home
from tuner.recipe import dumps_toml, load, to_argv
from tuner.recipe.model import Recipe, RecipeError
from tuner.rounds.history import History
from tuner.session.export import FORMATS, export


@click.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@click.option("-o", "--output", metavar="PATH", help="Write the recipe as config.toml here.")
@json_option
@command
def import_command(files: tuple[str, ...], output: str | None, as_json: bool) -> int:
    """Read recipe files (config.toml, settings.json) and say what becomes of each key."""
    recipe = _together(files)
    if output:
        write(output, dumps_toml(recipe))
    if as_json:
        print_json(
            {
                "recipe": recipe.flags,
                "environment": recipe.environment,
                "kept": recipe.kept,
                "argv": to_argv(recipe),
                "written": output,
            }
        )
        return DONE
    for name, value in recipe.flags.items():
        say(f"  {name} = {value}")
    if recipe.kept:
        say("Kept without effect:")
    for kept in recipe.kept:
        nearest = f" Nearest: {kept.nearest}." if kept.nearest else ""
        say(f"  {kept.where} = {kept.value}: {kept.why}{nearest}")
    if output:
        say(f"Written: {output}")
    return DONE


def _together(files: tuple[str, ...]) -> Recipe:
    """Several files as one recipe: a settings.json goes over the config.toml named beside it."""
    from tuner.recipe import loads_settings

    recipe: Recipe | None = None
    for name in sorted(files, key=lambda f: Path(f).suffix == ".json"):
        path = Path(name)
        if path.suffix == ".json" and recipe is not None:
            recipe = loads_settings(read(path), recipe)
        elif recipe is None:
            recipe = load(path)
        else:
            raise RecipeError(f"{name} would be a second recipe: give one config.toml, and a settings.json beside it.")
    if recipe is None:
        raise UsageProblem("Name at least one file.")
    return recipe


@click.command("export")
@click.argument("name", metavar="rN")
@click.option("--format", "fmt", type=click.Choice(FORMATS), default="toml", show_default=True)
@click.option("-o", "--output", metavar="PATH", help="Write to this file instead of standard output.")
@json_option
@command
def export_command(name: str, fmt: str, output: str | None, as_json: bool) -> int:
    """Write round rN as a file to keep, to run again or to share."""
    history = History(Home.find().database)
    try:
        text = export(find_round(history, name), fmt)
    finally:
        history.close()
    if output:
        write(output, text)
    if as_json:
        print_json({"round": name, "format": fmt, "written": output, "text": None if output else text})
    elif output:
        say(f"Written: {output}")
    else:
        click.echo(text, nl=False)
    return DONE


def read(path: Path) -> str:
    """A file's text. Raises UsageProblem."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageProblem(f"{path} cannot be read as text: {error}.") from error


def write(path: str, text: str) -> None:
    """Writes a whole file or nothing. Raises UsageProblem."""
    target = Path(path)
    part = target.with_name(target.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(target)
    except OSError as error:
        raise UsageProblem(f"{path} cannot be written: {error.strerror}.") from error
