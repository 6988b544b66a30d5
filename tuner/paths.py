"""Folders and files of the tuner, and where presets are found."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from tuner.recipe.model import RecipeError
from tuner.text import clip, plain

HOME_VARIABLE = "TUNER_HOME"
_APP = "tuner"
_PRIVATE = 0o700
_SHOWN_CELLS = 80


class HomeError(Exception):
    """A folder of the tuner that cannot be made or written; the message is one sentence for the operator."""


@dataclass(frozen=True)
class Home:
    """The tuner's own folders. Each is created, readable by its owner only, when it is first asked for.

    Every property raises ``HomeError`` when its folder cannot be created.
    """

    config_root: Path
    state_root: Path
    cache_root: Path
    log_root: Path

    @classmethod
    def find(cls, environ: Mapping[str, str] | None = None) -> Home:
        """The home of this user: under ``TUNER_HOME`` when set, else where the platform keeps such folders."""
        environ = os.environ if environ is None else environ
        told = environ.get(HOME_VARIABLE, "").strip()
        if told:
            return cls.at(Path(told))
        return cls(
            config_root=platformdirs.user_config_path(_APP),
            state_root=platformdirs.user_state_path(_APP),
            cache_root=platformdirs.user_cache_path(_APP),
            log_root=platformdirs.user_log_path(_APP),
        )

    @classmethod
    def at(cls, folder: Path) -> Home:
        """A home with everything under one folder."""
        try:
            root = Path(os.path.abspath(folder.expanduser()))  # noqa: PTH100 - resolve() would follow links
        except RuntimeError as error:
            raise HomeError(f"{HOME_VARIABLE} names a home folder that is not known: {folder}.") from error
        return cls(root / "config", root / "state", root / "cache", root / "logs")

    @property
    def config(self) -> Path:
        """Folder of what the operator wrote."""
        return _private_folder(self.config_root)

    @property
    def state(self) -> Path:
        """Folder of what the tuner must not lose."""
        return _private_folder(self.state_root)

    @property
    def cache(self) -> Path:
        """Folder of what can be made again."""
        return _private_folder(self.cache_root)

    @property
    def logs(self) -> Path:
        """Folder of the server logs."""
        return _private_folder(self.log_root)

    @property
    def presets(self) -> Path:
        """Folder of the operator's own presets."""
        return _private_folder(self.config / "presets")

    @property
    def servers(self) -> Path:
        """Folder of the handles and locks of running servers."""
        return _private_folder(self.state / "servers")

    @property
    def database(self) -> Path:
        """File of the history of rounds."""
        return self.state / "history.sqlite3"

    def card(self, port: int) -> Path:
        """Folder of the simulated card that stand-in servers on this port use."""
        return _private_folder(self.state / "cards" / str(port))


def _private_folder(path: Path) -> Path:
    try:
        for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
            missing.mkdir(mode=_PRIVATE, exist_ok=True)
        if not path.is_dir():
            raise HomeError(f"{path} is not a folder: move it away or set {HOME_VARIABLE} to another folder.")
    except OSError as error:
        reason = error.strerror or str(error)
        raise HomeError(
            f"The folder {path} cannot be made ({reason}): set {HOME_VARIABLE} to a folder you can write."
        ) from error
    return path


def packaged_presets() -> Path:
    """Folder of the presets that come with the tuner: inside the package, or beside it in a source tree."""
    package = Path(__file__).parent
    inside = package / "presets"
    return inside if inside.is_dir() else package.parent / "presets"


def list_presets(home: Home) -> dict[str, Path]:
    """All presets by name, the operator's own before the packaged ones of the same name."""
    found = dict(_presets_in(packaged_presets()))
    found.update(_presets_in(home.presets))
    return dict(sorted(found.items()))


def _presets_in(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in sorted(folder.glob("*.toml")):
        yield path.stem, path


def find_preset(name_or_path: str, home: Home) -> Path:
    """The file that a preset's name, ``presets/NAME.toml`` or any path means.

    Raises ``RecipeError`` that lists what there is.
    """
    try:
        given = Path(name_or_path).expanduser()
        is_file, is_folder = given.is_file(), given.is_dir()
    except (OSError, RuntimeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        shown = clip(plain(name_or_path), _SHOWN_CELLS)
        raise RecipeError(f"{shown} can be no preset or file: {reason}.") from error
    if is_file:
        return given
    presets = list_presets(home)
    is_name = len(given.parts) == 1 or given.parts[:-1] == ("presets",)
    stem = given.name.removesuffix(".toml")
    if is_name and stem in presets:
        return presets[stem]
    if is_folder:
        raise RecipeError(f"{name_or_path} is a folder: name the config.toml or settings.json in it.")
    known = ", ".join(presets) or "none"
    raise RecipeError(f"There is no preset or file {name_or_path!r}. Presets: {known}.")
