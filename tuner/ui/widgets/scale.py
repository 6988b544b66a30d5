"""The values a slider can take, and where they lie on its track. Pure."""

from __future__ import annotations

import math

import msgspec


class Scale(msgspec.Struct, frozen=True, kw_only=True):
    """Values from ``low`` to ``high``: evenly ``step`` apart, or, on a ``doubling`` scale, each twice the last.

    ``bend`` above 1 gives small values more room on the track: value = low + (high - low) * position ** bend.
    """

    low: float
    high: float
    step: float = 1.0
    #: Steps that one coarse move takes.
    coarse: int = 10
    doubling: bool = False
    bend: float = 1.0
    digits: int = 0

    def snap(self, value: float) -> float:
        """The nearest value of the scale."""
        held = min(self.high, max(self.low, value))
        if self.doubling:
            return float(self.low * 2.0 ** round(math.log2(held / self.low)))
        steps = round((held - self.low) / self.step)
        return round(min(self.high, self.low + steps * self.step), max(self.digits, 6))

    def position(self, value: float) -> float:
        """Where a value lies on the track, 0 to 1."""
        held = min(self.high, max(self.low, value))
        if self.doubling:
            return math.log2(held / self.low) / math.log2(self.high / self.low)
        return float(((held - self.low) / (self.high - self.low)) ** (1 / self.bend))

    def at(self, position: float) -> float:
        """The value at a place on the track, 0 to 1."""
        held = min(1.0, max(0.0, position))
        if self.doubling:
            return self.snap(self.low * 2 ** (held * math.log2(self.high / self.low)))
        return self.snap(self.low + (self.high - self.low) * held**self.bend)

    def moved(self, value: float, steps: int) -> float:
        """The value some steps further, kept within the bounds."""
        if self.doubling:
            return self.snap(self.snap(value) * 2.0**steps)
        on_grid = self.snap(value)
        if steps > 0 and on_grid > value + 1e-9:
            steps -= 1
        elif steps < 0 and on_grid < value - 1e-9:
            steps += 1
        return self.snap(on_grid + steps * self.step)
