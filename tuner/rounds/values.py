"""How values and changes of rounds are written: each with the precision of its field. Pure.

The end of a name tells its unit: ", s" seconds, ", GiB" memory, "/s" a rate, "ratio" of hits a share. Whole numbers
count tokens, slots or requests.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tuner.redact import redact, redact_text
from tuner.rounds.summary import same
from tuner.text import plain
from tuner.units import format_tokens

NONE = "-"
#: End of the names of pools as they were planned.
PREDICTED = " (predicted)"
HIT_RATIO = "prefix hit ratio"
ACCEPTANCE = "acceptance length"
_SECONDS = ", s"
_GIB = ", GiB"
_RATE = "/s"
#: From here on a whole number gets separators.
_LONG = 10_000


def number_text(name: str, value: int | float) -> str:
    """A number of a difference or a table: ``220,883``, ``9.80``, ``80.1 ms``, ``59.2 %``, ``0.86``."""
    name = name.removesuffix(PREDICTED)
    if name.endswith(_SECONDS):
        return seconds_text(value)
    if name.endswith(_GIB):
        return f"{value:,.2f}"
    if name == HIT_RATIO:
        return percent_text(value)
    if name == ACCEPTANCE:
        return f"{value:.2f}"
    if name.endswith(_RATE):
        return significant(value)
    if is_label(name) and isinstance(value, int):
        return str(value)
    if isinstance(value, int):
        return format_tokens(value) if abs(value) >= _LONG else str(value)
    return f"{value:.4g}" if abs(value) < _LONG else f"{value:,.0f}"


def change_text(name: str, old: Any, new: Any) -> str:
    """What was added or taken away: "+78,000", "-0.12", "+25 %"; empty where no difference makes sense.

    Times and rates change by a share, amounts by as many decimals as they are written with.
    """
    name = name.removesuffix(PREDICTED)
    if not is_number(old) or not is_number(new) or same(old, new) or is_label(name):
        return ""
    if name.endswith((_SECONDS, _RATE)):
        return share_text(old, new)
    if name == HIT_RATIO:
        return f"{(new - old) * 100:+.1f} points"
    step = new - old
    if name.endswith(_GIB) or name == ACCEPTANCE:
        return f"{step:+,.2f}"
    if isinstance(step, int):
        return f"{step:+,}"
    if abs(step) >= _LONG:
        return f"{step:+,.0f}" if abs(step) < 1e9 else f"{step:+.4g}"
    told = f"{step:+.4f}".rstrip("0").rstrip(".")
    return "" if told in ("+0", "-0") else told


def share_text(old: float, new: float) -> str:
    """ "+12 %", "-1.7 %"; empty where there is nothing to divide by."""
    if not old:
        return ""
    share = (new / old - 1) * 100
    return f"{share:+.1f} %" if abs(share) < 9.95 else f"{share:+,.0f} %"


def value_text(name: str, value: Any) -> str:
    """A value of any kind on one line: a number by its name, a switch as on or off, JSON as such; "-" for None."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "on" if value else "off"
    if is_number(value):
        return number_text(name, value)
    text = value if isinstance(value, str) else msgspec.json.encode(redact(value)).decode()
    return " ".join(redact_text(plain(text)).split())


def seconds_text(seconds: float) -> str:
    """Three significant digits, which show a change of 1 %: ``80.1 ms``, ``5.52 s``, ``125 s``."""
    return f"{significant(seconds * 1000)} ms" if abs(seconds) < 0.9995 else f"{significant(seconds)} s"


def percent_text(ratio: float) -> str:
    """A share with one decimal: ``59.2 %``."""
    return f"{ratio * 100:.1f} %"


def significant(value: float) -> str:
    """Three significant digits, never in powers of ten: ``0.512``, ``19.4``, ``3,711``."""
    if abs(value) >= 99.95:
        return f"{value:,.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if abs(value) >= 0.9995 or not value else f"{value:.3f}"


def is_number(value: Any) -> bool:
    """Whether a value is a number; a switch is none."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_label(name: str) -> bool:
    """Whether a number is a name and no amount: a port, a seed."""
    return name.endswith(("port", "seed"))
