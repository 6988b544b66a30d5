"""Recipes from files on disk."""

from __future__ import annotations

from pathlib import Path

from tuner.recipe.model import Recipe, RecipeError
from tuner.recipe.settings_file import loads_settings
from tuner.recipe.toml_file import LONGEST, loads_toml

CONFIG = "config.toml"
SETTINGS = "settings.json"


def load(path: str | Path) -> Recipe:
    """The recipe of a file or folder; :class:`RecipeError` in one sentence for everything that can be wrong with it.

    A ``.json`` is a ``settings.json`` and goes over the ``config.toml`` in its folder, which names the model.
    A folder is read by its ``settings.json`` if it has one, else by its ``config.toml``.
    """
    path = Path(path).expanduser() if "\0" not in str(path) else Path("?")
    if path.is_dir():
        path = path / (SETTINGS if (path / SETTINGS).exists() else CONFIG)
    if path.suffix == ".json":
        config = path.with_name(CONFIG)
        if not config.exists():
            raise RecipeError(f"{path.name} names no model: put it beside the {CONFIG} that does.")
        return loads_settings(_text(path), loads_toml(_text(config), config.stem))
    if path.suffix != ".toml":
        raise RecipeError(f"{path.name} is neither a .toml nor a .json file.")
    return loads_toml(_text(path), path.stem)


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > 4 * LONGEST:
            raise RecipeError(f"{path} is too large for a recipe.")
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise RecipeError(f"{path} is not UTF-8 text.") from None
    except OSError as error:
        raise RecipeError(f"{path} cannot be read: {error.strerror or error}.") from None
