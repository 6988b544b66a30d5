"""``tuner import``, ``export`` and ``presets``: the files that rounds come from and go to."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from tuner.cli.history import opened
from tuner.cli.named import find_round
from tuner.cli.output import DONE, UsageProblem, command, json_option, print_json, say
from tuner.paths import Home, list_presets, packaged_presets
from tuner.recipe import Imported, Recipe, RecipeError, load, load_file, loads_settings, read_text, to_argv
from tuner.recipe.files import file_text
from tuner.recipe.toml_file import LONGEST
from tuner.session.export import FORMATS, RECIPE_FORMATS, export, export_recipe, write_file
from tuner.text import wrapped

_STANDARD_INPUT = "-"


@click.command("import")
@click.argument("files", nargs=-1, metavar="[FILE...]")
@click.option("--server", metavar="URL", help="Ask a running server for its flags (/server_info).")
@click.option("--pid", type=click.IntRange(1), metavar="PID", help="Read the command line of this process.")
@click.option("--format", "fmt", type=click.Choice(RECIPE_FORMATS), default="toml", show_default=True)
@click.option("-o", "--output", metavar="PATH", help="Write the recipe here, in that format.")
@click.option("--save", "name", metavar="NAME", help="Keep the recipe as a preset of your own.")
@click.option("--replace", is_flag=True, help="Replace the file of -o, or the preset of --save.")
@json_option
@command
def import_command(
    files: tuple[str, ...],
    server: str | None,
    pid: int | None,
    fmt: str,
    output: str | None,
    name: str | None,
    replace: bool,
    as_json: bool,
) -> int:
    """Read a recipe from FILEs or a running server, and say what becomes of each key.

    FILE is a config.toml in either layout, a settings.json beside one, YAML for SGLang's --config, a shell command or
    script, a docker command, a systemd unit or an exported round; "-" is standard input.
    """
    read = _read(files, server, pid)
    recipe = read.recipe
    text = export_recipe(recipe, fmt, read.head)
    saved = _save(name, recipe, read.head, replace=replace) if name else None
    if output:
        write(output, text, fmt, replace=replace)
    if as_json:
        print_json(
            {
                "recipe": recipe.flags,
                "environment": recipe.environment,
                "python": recipe.python,
                "kept": recipe.kept,
                "remarks": read.remarks,
                "argv": to_argv(recipe),
                "written": output,
                "saved": saved,
                "text": None if output or saved else text,
            }
        )
        return DONE
    _say_recipe(read)
    for path in (output, saved):
        if path:
            say(f"Written: {path}")
    return DONE


def _say_recipe(read: Imported) -> None:
    for name, value in read.recipe.flags.items():
        say(f"  {name} = {_shown(value)}")
    for name, value in read.recipe.environment.items():
        say(f"  environment {name} = {value}")
    if read.recipe.python:
        say(f"  python = {read.recipe.python}")
    if read.recipe.kept:
        say("Kept without effect:")
    for kept in read.recipe.kept:
        nearest = f" Nearest: {kept.nearest}." if kept.nearest else ""
        say(f"  {kept.where} = {kept.value}: {kept.why}{nearest}")
    for remark in read.remarks:
        say(f"Note: {remark}")


def _shown(value: Any) -> str:
    """A flag's value as a file has it: true, not True."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _read(files: tuple[str, ...], server: str | None, pid: int | None) -> Imported:
    if sum(bool(source) for source in (files, server, pid)) != 1:
        raise UsageProblem("Name files, or --server URL, or --pid PID: one of them.")
    if server:
        return _from_server(server)
    if pid:
        return _from_process(pid)
    return _together(files)


def _from_server(url: str) -> Imported:
    import os  # only here the environment is asked

    from tuner.metrics.model import Reach
    from tuner.probes.http import ServerClient  # a client of HTTP costs time that no file needs
    from tuner.recipe.server_answer import from_server_info

    if "://" not in url:
        url = f"http://{url}"
    client = ServerClient(url, api_key=os.environ.get("SGLANG_API_KEY"))
    try:
        answer = client.server_info()
    finally:
        client.close()
    if not isinstance(answer, dict):
        why = {
            Reach.LOCKED: "it wants an API key: export SGLANG_API_KEY",
            Reach.OFF: "it has no /server_info: it is no SGLang server, or an older one",
        }.get(answer, "nothing answers there: check the address, and that the server is up")
        raise UsageProblem(f"The server {url} tells no flags: {why}.")
    return from_server_info(answer)


def _from_process(pid: int) -> Imported:
    import psutil  # only here a process is looked at

    from tuner.session.processes import recipe_of

    try:
        return recipe_of(pid)
    except psutil.NoSuchProcess as error:
        raise UsageProblem(f"There is no process {pid}.") from error
    except psutil.Error as error:
        raise UsageProblem(f"Process {pid} may not be looked at: it belongs to another user.") from error


def _together(files: tuple[str, ...]) -> Imported:
    """Several files as one recipe: a settings.json goes over the config.toml named beside it."""
    read: Imported | None = None
    for name in sorted(files, key=lambda f: Path(f).suffix == ".json"):
        if name == _STANDARD_INPUT:
            found = read_text(_standard_input())
        elif read is not None and Path(name).suffix == ".json":
            found = msgspec.structs.replace(read, recipe=loads_settings(file_text(Path(name)), read.recipe))
            read = None
        else:
            found = load_file(name)
        if read is not None:
            raise RecipeError(f"{name} would be a second recipe: give one config.toml, and a settings.json beside it.")
        read = found
    if read is None:
        raise UsageProblem("Name at least one file.")
    return read


def _standard_input() -> str:
    try:
        # One character more than a recipe may have is enough to refuse it.
        return sys.stdin.read(LONGEST + 1)
    except UnicodeDecodeError:
        raise RecipeError("The standard input is not UTF-8 text.") from None


def _save(name: str, recipe: Recipe, head: tuple[str, ...], *, replace: bool) -> str:
    folder = Home.find().presets
    stem = name.removesuffix(".toml")
    if not stem or stem.startswith(".") or any(letter in "/\\\0" or not letter.isprintable() for letter in stem):
        raise UsageProblem(f"{name!r} is no name for a preset: write one without slashes.")
    path = folder / f"{stem}.toml"
    if path.exists() and not replace:
        raise UsageProblem(f"You have a preset {stem} already: take another name, or give --replace.")
    write(str(path), export_recipe(recipe, "toml", head), "toml", replace=True)
    return str(path)


@click.command("export")
@click.argument("name", metavar="rN")
@click.option("--format", "fmt", type=click.Choice(FORMATS), default="toml", show_default=True)
@click.option("-o", "--output", metavar="PATH", help="Write to this file instead of standard output.")
@click.option("--replace", is_flag=True, help="Replace that file where it holds something else.")
@json_option
@command
def export_command(name: str, fmt: str, output: str | None, replace: bool, as_json: bool) -> int:
    """Write round rN as a file to keep, to run again or to share; "good" is the last good round."""
    with opened() as history:
        round_ = find_round(history, name)
        text = export(round_, fmt, history.samples(round_.number))
    if output:
        write(output, text, fmt, replace=replace)
    if as_json:
        print_json({"round": round_.name, "format": fmt, "written": output, "text": None if output else text})
    elif output:
        say(f"Written: {output}")
    else:
        click.echo(text, nl=False)
    return DONE


#: Words are not set narrower than this, whatever the terminal says of itself.
_LEAST_CELLS = 40


@click.command("presets")
@json_option
@command
def presets_command(as_json: bool) -> int:
    """List the presets, shipped ones and your own: model, port, and what each was measured on."""
    home = Home.find()
    shipped = packaged_presets()
    entries = []
    for name, path in list_presets(home).items():
        entry = {"name": name, "path": str(path), "own": path.parent != shipped}
        try:
            recipe = load(path)
            entry |= {"model": recipe.model_path or recipe.tuner.model_shape or "", "measured_on": measured_on(path)}
        except RecipeError as error:
            entry |= {"model": "", "measured_on": "", "error": str(error)}
        entries.append(entry)
    if as_json:
        print_json(entries)
        return DONE
    for entry in entries:
        say(f"{entry['name']}{' (yours)' if entry['own'] else ''}")
        told = entry.get("error") or entry["measured_on"] or "It does not say what it was measured on."
        say(f"  {entry['model']}")
        for line in wrapped(str(told), max(_LEAST_CELLS, shutil.get_terminal_size().columns - 2)):
            say(f"  {line}")
    say(f"Your own presets: {home.presets}")
    return DONE


def measured_on(path: Path) -> str:
    """What a preset's head says after "Measured on:", or the head that an export gave it."""
    said: list[str] = []
    head: list[str] = []
    for line in file_text(path).splitlines():
        if not line.startswith("#"):
            if line.strip():
                break
            continue
        if line.startswith("#:"):
            head.append(line.removeprefix("#:").strip())
            continue
        text = line.removeprefix("#").strip()
        if "Measured on:" in text:
            said.append(text.partition("Measured on:")[2].strip())
        elif said:
            if not text:
                break
            said.append(text)
    return " ".join(said) or " ".join(head)


def write(path: str, text: str, fmt: str, *, replace: bool = False) -> None:
    """Writes a whole file or nothing; over another file only with ``replace``. Raises UsageProblem."""
    target = Path(path)
    try:
        if not replace and target.exists() and not _holds(target, text.encode()):
            raise UsageProblem(f"{path} is there already and holds something else: give --replace, or another name.")
        write_file(target, text, fmt)
    except OSError as error:
        raise UsageProblem(f"{path} cannot be written: {error.strerror}.") from error


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content
