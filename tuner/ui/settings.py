"""The operator's settings of the app: ``app.toml`` in the tuner's config folder.

theme = "tuner-light"
ascii = true
[keys]
restart = "f5"
"""

from __future__ import annotations

from pathlib import Path

import msgspec

FILE = "app.toml"


class SettingsError(Exception):
    """A settings file that cannot be used; the message is one sentence for the operator."""


class AppSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``theme`` is a theme's name; ``ascii`` None: as the terminal can; ``keys`` are keys by the name of the action."""

    theme: str = ""
    ascii: bool | None = None
    keys: dict[str, str] = {}


def read_settings(folder: Path) -> AppSettings:
    """The settings in ``folder``; defaults when there is no file. Raises SettingsError."""
    path = folder / FILE
    try:
        return msgspec.toml.decode(path.read_bytes(), type=AppSettings)
    except FileNotFoundError:
        return AppSettings()
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not used: {error}.") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}.") from error
