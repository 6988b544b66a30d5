"""The memory fraction that a start needs at least."""

from __future__ import annotations

import math

#: Above this nothing is left for what lives outside the pools, whatever the model.
_HIGHEST = 0.98
#: Beyond the least: pools of a few tokens serve nobody.
_START = 0.04


def fraction_above(least: float) -> tuple[str, dict[str, float]]:
    """Remedy and flags when ``mem_fraction_static`` must be above ``least`` for the weights to leave anything."""
    wanted = math.ceil((least + _START) * 100) / 100
    # Rounded up, as the plan says it: a value below would not do.
    least = math.ceil(least * 1000 - 1e-6) / 1000
    if wanted > _HIGHEST:
        return (
            f"The weights need a mem_fraction_static above {least:.3f}, which leaves no room beside the pools: "
            "use smaller weights, more cards, or no speculation.",
            {},
        )
    return (
        f"Raise mem_fraction_static above {least:.3f}: {wanted:.2f} leaves the pools something to start with.",
        {"mem_fraction_static": wanted},
    )
