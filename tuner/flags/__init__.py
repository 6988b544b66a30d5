"""The flags of SGLang that the tuner knows: what each does, what it may be, which pool it moves."""

from tuner.flags.catalogue import catalogue, is_in, lookup, suggest
from tuner.flags.model import FlagInfo, Kind
from tuner.flags.values import FlagValueError, check_value, parse_value

__all__ = [
    "FlagInfo",
    "FlagValueError",
    "Kind",
    "catalogue",
    "check_value",
    "is_in",
    "lookup",
    "parse_value",
    "suggest",
]
