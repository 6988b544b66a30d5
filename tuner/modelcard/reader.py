"""Reads typed values out of a ``config.json``, with one sentence for each thing that is wrong."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from tuner.modelcard.types import ModelError

#: No model in sight comes near these; a larger number is a damaged file, and would overflow every size.
LARGEST = {"layers": 4096, "heads": 65_536, "width": 4_194_304, "vocabulary": 16_777_216, "context": 1 << 32}


_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 40
_SHORT.maxlevel = 2
_SHOWN = 80


def shown(value: Any) -> str:
    """A value as a message quotes it: cut short, however long or deep it is."""
    text = _SHORT.repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


class ConfigReader:
    """One table of a ``config.json``. ``where`` names it in messages ("config.json" or "text_config")."""

    def __init__(self, table: Mapping[str, Any], where: str = "config.json") -> None:
        self.table = table
        self.where = where

    def has(self, key: str) -> bool:
        """Whether ``key`` is there and not null."""
        return self.table.get(key) is not None

    def count(self, *keys: str, most: int = LARGEST["width"], default: int | None = None, least: int = 1) -> int:
        """The first of ``keys`` that is there, as a whole number between ``least`` and ``most``.

        Raises ModelError when none is there and there is no default, or when the value makes no sense.
        """
        for key in keys:
            if not self.has(key):
                continue
            value = self.table[key]
            if isinstance(value, bool) or not isinstance(value, int | float) or not _whole(value):
                raise ModelError(f"{self.where} says {key} is {shown(value)}: a whole number was expected.")
            if not least <= value <= most:
                raise ModelError(
                    f"{self.where} says {key} is {shown(value)}: no real model has that, the file is damaged."
                )
            return int(value)
        if default is not None:
            return default
        raise ModelError(f"{self.where} has no {keys[0]}: it is not the config.json of a language model.")

    def optional_count(self, *keys: str, most: int = LARGEST["width"], least: int = 0) -> int | None:
        """As ``count``, but None when no key is there."""
        if not any(self.has(key) for key in keys):
            return None
        return self.count(*keys, most=most, least=least)

    def number(self, key: str, default: float) -> float:
        """A number, or ``default`` when ``key`` is not there."""
        value = self.table.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
            raise ModelError(f"{self.where} says {key} is {shown(value)}: a positive number was expected.")
        return float(value)

    def text(self, key: str, default: str = "") -> str:
        """A string, or ``default`` when ``key`` is not there."""
        value = self.table.get(key)
        if value is None:
            return default
        if not isinstance(value, str):
            raise ModelError(f"{self.where} says {key} is {shown(value)}: a word was expected.")
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false, or ``default`` when ``key`` is not there."""
        value = self.table.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelError(f"{self.where} says {key} is {shown(value)}: true or false was expected.")
        return value

    def child(self, key: str) -> ConfigReader | None:
        """The table under ``key``, or None."""
        value = self.table.get(key)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise ModelError(f"{self.where} says {key} is {shown(value)}: a table was expected.")
        return ConfigReader(value, key)

    def need(self, key: str) -> ConfigReader:
        """The table under ``key``; ModelError when it is not there."""
        found = self.child(key)
        if found is None:
            raise ModelError(f"{self.where} has no {key}: without it this model cannot be planned.")
        return found

    def words(self, key: str) -> tuple[str, ...] | None:
        """A list of strings, or None when ``key`` is not there."""
        value = self.table.get(key)
        if value is None:
            return None
        if isinstance(value, str) or not isinstance(value, Sequence) or not all(isinstance(v, str) for v in value):
            raise ModelError(f"{self.where} says {key} is {shown(value)}: a list of words was expected.")
        return tuple(value)

    def numbers(self, key: str) -> tuple[int, ...] | None:
        """A list of whole numbers, or None when ``key`` is not there."""
        value = self.table.get(key)
        if value is None:
            return None
        if (
            isinstance(value, str)
            or not isinstance(value, Sequence)
            or not all(isinstance(v, int) and not isinstance(v, bool) for v in value)
        ):
            raise ModelError(f"{self.where} says {key} is {shown(value)}: a list of whole numbers was expected.")
        return tuple(value)


def _whole(value: int | float) -> bool:
    """Whether ``value`` is a whole number; NaN and infinity are none."""
    return isinstance(value, int) or (math.isfinite(value) and value == int(value))
