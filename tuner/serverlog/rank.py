"""What one rank of a server says of its weights and pools."""

from __future__ import annotations

import re
from typing import Any


class Rank:
    """What one rank says of its weights and pools. Every rank prints these lines; the facts are those of the first."""

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        self.weights: dict[str, float] = {}
        self.draft: dict[str, Any] = {}
        self.graphs: dict[str, float] = {}
        self.graph_seconds: dict[str, float] = {}
        self.load_seconds: float | None = None
        self.loads_ended = 0
        self.pools_ended = 0
        self.pools_seen = False
        self.unified = False

    def first(self, name: str, value: Any) -> None:
        """Keeps a value that is told, unless there is one."""
        if value is not None:
            self.facts.setdefault(name, value)


def rank_order(name: str) -> tuple[list[int], str]:
    """Ranks by their numbers: TP10 after TP2."""
    return [int(n) for n in re.findall(r"\d{1,9}", name)], name
