"""Values of flags: from text, and checked against what the flag takes. Errors are one sentence for the operator."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from typing import Any

import msgspec

from tuner.flags.model import FlagInfo

#: msgspec writes no whole numbers outside this range, and no flag needs them.
BIGGEST = 2**63 - 1

_SUFFIXED = re.compile(r"([0-9]+(?:\.[0-9]+)?)(k|M|G|T|Ki|Mi|Gi|Ti)")
_FLOAT = re.compile(r"[+-]?(?:[0-9]{1,30}\.?[0-9]{0,30}|\.[0-9]{1,30})(?:[eE][+-]?[0-9]{1,3})?")
_FACTORS = {"k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


class FlagValueError(ValueError):
    """A value that a flag does not take; the message is one sentence naming the flag, the value and what it takes."""


def check_value(info: FlagInfo, value: Any, *, any_choice: bool = False) -> Any:
    """The value as it is kept in a recipe, or :class:`FlagValueError`.

    Accepts what a TOML or JSON file can hold. Whole numbers become floats where the flag takes a float, JSON text
    becomes the object it holds, "100k" the number where SGLang reads it so (``human_readable_int`` of 0.5.17).
    ``any_choice`` leaves the list of choices out, for a version whose list is not known.
    """
    if info.kind == "bool":
        if not isinstance(value, bool):
            raise _wrong(info, value, "true or false")
        return value
    if info.kind == "list":
        items = value if isinstance(value, list | tuple) else [value]
        if not items and not info.bare:
            raise _wrong(info, value, "at least one value")
        return [_checked_item(info, item, any_choice) for item in items]
    if info.kind == "json":
        return _checked_json(info, value)
    if info.bare and isinstance(value, bool):
        return value
    return _checked_word(info, info.kind, value, any_choice)


def parse_value(info: FlagInfo | None, text: str) -> Any:
    """The value that a text on a command line means; a flag that is not known takes the plainest reading."""
    text = text.strip()
    if info is None:
        return _plainest(text)
    if info.kind == "bool":
        word = text.lower()
        if word in ("true", "1", "yes", "on", ""):
            return True
        if word in ("false", "0", "no", "off"):
            return False
        raise _wrong(info, text, "true or false")
    if info.kind == "list":
        if text.startswith("["):
            return check_value(info, _json(info, text))
        words = text.replace(",", " ").split() if info.element != "str" else text.split()
        return check_value(info, [_number(word, info.element) for word in words])
    if info.kind in ("int", "float"):
        return check_value(info, _number(text, info.kind))
    return check_value(info, text)


def _number(text: str, kind: str) -> Any:
    """A word as the number it spells, else the word itself, for ``check_value`` to judge."""
    if kind == "int" and re.fullmatch(r"[+-]?[0-9](?:_?[0-9]){0,29}", text):
        return int(text)
    if kind == "float" and _FLOAT.fullmatch(text):
        return float(text)
    return text


def _plainest(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    for kind in ("int", "float"):
        number = _number(text, kind)
        if not isinstance(number, str) and abs(number) <= BIGGEST:
            return number
    return text


def _checked_item(info: FlagInfo, item: Any, any_choice: bool) -> Any:
    if isinstance(item, list | tuple | dict):
        raise _wrong(info, item, f"a list of {_plural(info.element)}")
    return _checked_word(info, info.element, item, any_choice)


def _checked_word(info: FlagInfo, kind: str, value: Any, any_choice: bool) -> Any:
    if kind == "str":
        if not isinstance(value, str):
            raise _wrong(info, value, _wanted(info, kind))
        if "\0" in value or not _encodable(value):
            raise _wrong(info, value, "a text without NUL characters and broken letters")
    elif kind == "int":
        if isinstance(value, str) and info.suffixes:
            value = _suffixed(value)
        if not isinstance(value, int) or isinstance(value, bool) or abs(value) > BIGGEST:
            raise _wrong(info, value, _wanted(info, kind))
    else:
        if not isinstance(value, int | float) or isinstance(value, bool) or abs(value) > BIGGEST or math.isnan(value):
            raise _wrong(info, value, _wanted(info, kind))
        value = float(value)
    if info.choices and value not in info.choices and not any_choice:
        raise _wrong(info, value, _wanted(info, kind))
    if kind != "str" and not _within(info, value):
        raise _wrong(info, value, _wanted(info, kind))
    return value


def _within(info: FlagInfo, number: float) -> bool:
    return (
        (info.above is None or number > info.above)
        and (info.least is None or number >= info.least)
        and (info.most is None or number <= info.most)
    )


def _suffixed(text: str) -> Any:
    match = _SUFFIXED.fullmatch(text)
    if match is None or ("." in match[1] and match[2].endswith("i")) or len(match[1]) > 18:
        return _number(text, "int")
    number = Decimal(match[1]) * _FACTORS[match[2]]
    return int(number) if number == int(number) else text


def _checked_json(info: FlagInfo, value: Any) -> Any:
    if info.form == "text":
        if isinstance(value, str):
            return _checked_word(info, "str", value, any_choice=True)
        if not isinstance(value, dict):
            raise _wrong(info, value, "a table, or a text of JSON")
    else:
        if isinstance(value, str):
            value = _json(info, value)
        wanted: type = dict if info.form == "object" else list
        if not isinstance(value, wanted):
            raise _wrong(info, value, "a table" if info.form == "object" else "an array")
    if not is_json(value):
        raise _wrong(info, value, "JSON: texts, finite numbers, true, false, arrays and tables")
    # A file that cannot hold null keeps the text that SGLang gets anyway.
    return msgspec.json.encode(value).decode() if info.form == "text" and has_null(value) else value


def _json(info: FlagInfo, text: str) -> Any:
    try:
        return msgspec.json.decode(text.encode("utf-8"))
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        raise _wrong(info, text, "valid JSON") from None


def is_json(value: Any, depth: int = 32) -> bool:
    """Whether a value can be kept as JSON and come back the same: no dates, NaN, broken text or endless nesting."""
    if depth == 0:
        return False
    if value is None or isinstance(value, bool):
        return True
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, int):
        return abs(value) <= BIGGEST
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, list):
        return all(is_json(item, depth - 1) for item in value)
    return isinstance(value, dict) and all(
        isinstance(key, str) and _encodable(key) and is_json(item, depth - 1) for key, item in value.items()
    )


def has_null(value: Any) -> bool:
    """Whether a JSON value has a null anywhere; TOML has no word for it."""
    if isinstance(value, dict):
        return any(has_null(item) for item in value.values())
    if isinstance(value, list):
        return any(has_null(item) for item in value)
    return value is None


def _encodable(text: str) -> bool:
    return not any("\ud800" <= letter <= "\udfff" for letter in text)


def _plural(kind: str) -> str:
    return {"int": "whole numbers", "float": "numbers", "str": "texts"}[kind]


def _wanted(info: FlagInfo, kind: str) -> str:
    if info.choices:
        return "one of " + ", ".join(str(choice) for choice in info.choices)
    noun = {"int": "a whole number", "float": "a number", "str": "a text"}[kind]
    limits = []
    if info.above is not None:
        limits.append(f"above {info.above:g}")
    if info.least is not None:
        limits.append(f"of at least {info.least:g}")
    if info.most is not None:
        limits.append(f"up to {info.most:g}" if limits else f"of at most {info.most:g}")
    return f"{noun} {' and '.join(limits)}" if limits else noun


def _wrong(info: FlagInfo, value: Any, wanted: str) -> FlagValueError:
    shown = "a secret" if info.secret else shown_value(value)
    return FlagValueError(f"{info.name} cannot be {shown}; it takes {wanted}.")


def shown_value(value: Any) -> str:
    """A value for a message: short, on one line, without control characters."""
    if isinstance(value, str):
        text = "".join(letter if letter.isprintable() else "?" for letter in value)
        return f'"{text[:56]}…"' if len(text) > 60 else f'"{text}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int) and abs(value) > BIGGEST:
        return "so large a number"
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list | tuple):
        return "a list" if value else "an empty list"
    return "nothing" if value is None else str(value)
