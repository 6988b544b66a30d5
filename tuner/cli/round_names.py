"""Whether a word on the command line names a round of the history."""

from __future__ import annotations

import re
from pathlib import Path

_ROUND = re.compile(r"r\d{1,9}|last|good")


def names_round(word: str) -> bool:
    """Whether it is "r3", "last" or "good"; a file of such a name comes first."""
    return _ROUND.fullmatch(word) is not None and not Path(word).exists()
