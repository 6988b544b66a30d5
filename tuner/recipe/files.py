"""Recipes from files on disk, whatever their form."""

from __future__ import annotations

import re
import stat
from pathlib import Path

import msgspec

from tuner.place import expanded, there
from tuner.recipe.imported import Imported
from tuner.recipe.model import Recipe, RecipeError
from tuner.recipe.round_file import is_round, loads_round
from tuner.recipe.settings_file import loads_settings, settings_head
from tuner.recipe.toml_file import LONGEST, loads_toml, toml_head
from tuner.text import clip, plain

CONFIG = "config.toml"
SETTINGS = "settings.json"

#: UTF-8 takes up to four bytes for a character.
_MOST_BYTES = 4 * LONGEST
_SHOWN_CELLS = 300

_YAML = (".yaml", ".yml")
_SECTION = re.compile(r"(?m)^\[Service\]\s*$")
#: What makes a text of no telling name a command that starts a server.
_STARTS_SERVER = re.compile(r"sglang|tuner\.sim|launch_server")


def load(path: str | Path) -> Recipe:
    """The recipe of a file or folder; :class:`RecipeError` in one sentence for everything that can be wrong with it.

    A ``.json`` is a ``settings.json`` and goes over the ``config.toml`` in its folder, which names the model, or a
    round that was exported. A folder is read by its ``settings.json`` if it has one, else by its ``config.toml``.
    YAML, systemd units, shell commands and scripts are read as :func:`read_text` says.
    """
    return load_file(path).recipe


def load_file(path: str | Path) -> Imported:
    """As :func:`load`, with what is worth saying about the reading."""
    path = expanded(path)
    if there(path) and path.is_dir():
        path = path / (SETTINGS if there(path / SETTINGS) else CONFIG)
    text = file_text(path)
    if path.suffix == ".json" and not is_round(text):
        config = path.with_name(CONFIG)
        if not there(config):
            raise RecipeError(f"{path.name} names no model: put it beside the {CONFIG} that does.")
        recipe = loads_settings(
            text, msgspec.structs.replace(loads_toml(file_text(config), config.name), name=config.stem)
        )
        return Imported(recipe=recipe, head=settings_head(text))
    return read_text(text, path.name)


def read_text(text: str, name: str = "") -> Imported:
    """A text as a recipe; ``name`` is its file's, whose ending says what it is where the text itself does not.

    ``.toml``, ``.yaml``, ``.yml``, ``.service``, an exported round in ``.json``; anything else is a shell command.
    """
    suffix, stem = Path(name).suffix.lower(), Path(name).stem
    if suffix == ".toml":
        recipe = msgspec.structs.replace(loads_toml(text, name), name=stem)
        return Imported(recipe=recipe, head=toml_head(text))
    if suffix == ".json" or is_round(text):
        return loads_round(text, stem)
    if suffix in _YAML:
        from tuner.recipe.yaml_file import loads_yaml  # each form loads what it needs

        read = loads_yaml(text, name)
    elif suffix == ".service" or _SECTION.search(text):
        from tuner.recipe.unit_file import loads_unit

        read = loads_unit(text, name)
    elif _STARTS_SERVER.search(text):
        from tuner.recipe.script_file import loads_script

        if len(text) > LONGEST:
            raise RecipeError(f"{name or 'The text'} is too long for a recipe: {len(text):,} characters.")
        read = loads_script(text, name)
    else:
        raise RecipeError(
            f"{name or 'The text'} is neither a .toml, .json, .yaml or .service file nor a command that starts SGLang."
        )
    return msgspec.structs.replace(read, recipe=msgspec.structs.replace(read.recipe, name=stem))


def file_text(path: Path) -> str:
    """The text of a regular file that is no longer than a recipe may be; :class:`RecipeError` in one sentence."""
    shown = clip(plain(str(path)), _SHOWN_CELLS)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise RecipeError(f"{shown} is no regular file: name one, or give a text to tuner import - instead.")
        with path.open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        if len(content) > _MOST_BYTES:
            raise RecipeError(f"{shown} is too large for a recipe.")
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RecipeError(f"{shown} is not UTF-8 text.") from None
    except OSError as error:
        raise RecipeError(f"{shown} cannot be read: {error.strerror or error}.") from None
    except ValueError:
        raise RecipeError(f"{shown} cannot be read: its name holds a character that none may hold.") from None
