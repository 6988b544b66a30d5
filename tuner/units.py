"""Sizes, durations and token counts: how they are written for people and read from them.

SGLang writes "GB" where it means GiB (bytes / 2**30), and operators copy it; so does everything here.
"""

from __future__ import annotations

import math
import re

_KIB = 1024
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")

_GIB_PER_UNIT = {"": 1.0, "m": 1 / 1024, "g": 1.0, "t": 1024.0}
_GIB_TEXT = re.compile(r"(\d{1,3}(?:,\d{3})+|\d+)?(\.\d+)?\s*(?:([mgt])(?:i?b)?)?", re.IGNORECASE)

_TOKENS_PER_UNIT = {"": 1, "k": 1_000, "m": 1_000_000, "ki": 1 << 10, "mi": 1 << 20}
_TOKEN_TEXT = re.compile(r"(\d{1,3}(?:[,_ ]\d{3})+|\d+)(\.\d+)?\s*(ki?|mi?)?(?:\s*tokens?)?", re.IGNORECASE)


def format_gib(gib: float, digits: int = 2) -> str:
    """A number of GiB: ``12.24 GiB``."""
    return f"{gib:.{digits}f} GiB"


def format_bytes(n: int) -> str:
    """A number of bytes in the largest binary unit that leaves at least 1: ``74.8 MiB``, ``1.2 GiB``."""
    size = float(abs(n))
    unit = 0
    while round(size, 1) >= _KIB and unit < len(_BINARY_UNITS) - 1:
        size /= _KIB
        unit += 1
    sign = "-" if n < 0 else ""
    return f"{sign}{size:.0f} B" if unit == 0 else f"{sign}{size:.1f} {_BINARY_UNITS[unit]}"


def format_tokens(n: int) -> str:
    """A count of tokens with thousands separators: ``262,294``."""
    return f"{n:,}"


def format_seconds(s: float) -> str:
    """A duration given in seconds: ``60 ms``, ``0.83 s``, ``4.5 s``, ``41 s``, ``2 min 05 s``, ``1 h 02 min``."""
    if s < 0:
        return "-" + format_seconds(-s)
    if s == 0:
        return "0 s"
    if s < 0.0095:
        return f"{s * 1000:.1f} ms"
    if s < 0.0995:
        return f"{s * 1000:.0f} ms"
    if s < 0.995:
        return f"{s:.2f} s"
    if s < 9.95:
        return f"{s:.1f} s"
    whole = round(s)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    minutes = round(s / 60)
    return f"{minutes // 60} h {minutes % 60:02d} min"


def parse_gib(text: str) -> float:
    """GiB from what an operator types: ``48``, ``48 GiB``, ``48GB``, ``512 MiB``. A bare number is GiB.

    Raises ``ValueError`` with a sentence for the operator.
    """
    match = _GIB_TEXT.fullmatch(text.strip())
    number = match and (match[1] or "") + (match[2] or "")
    if not match or not number:
        raise ValueError(f"{_shown(text)} is not an amount of memory; write for example 48, 48 GiB or 512 MiB.")
    return _finite(number.replace(",", ""), text, "an amount of memory") * _GIB_PER_UNIT[(match[3] or "").lower()]


def parse_tokens(text: str) -> int:
    """Tokens from what an operator types: ``100K`` (100,000), ``256Ki`` (262,144), ``90,000``, ``1.5M``.

    Raises ``ValueError`` with a sentence for the operator.
    """
    match = _TOKEN_TEXT.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{_shown(text)} is not a number of tokens; write for example 90000, 100K or 256Ki.")
    digits = re.sub(r"[,_ ]", "", match[1]) + (match[2] or "")
    if not match[2] and not match[3]:
        return _whole(digits, text)
    count = _finite(digits, text, "a number of tokens") * _TOKENS_PER_UNIT[(match[3] or "").lower()]
    if abs(count - round(count)) > 1e-6:
        raise ValueError(f"{_shown(text)} is not a whole number of tokens.")
    return round(count)


def _finite(digits: str, text: str, what: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError(f"{_shown(text)} is too large for {what}.")
    return value


def _whole(digits: str, text: str) -> int:
    if len(digits) > 18:
        raise ValueError(f"{_shown(text)} is too large for a number of tokens.")
    return int(digits)


def _shown(text: str) -> str:
    short = text if len(text) <= 40 else text[:39] + "…"
    return repr(short)
