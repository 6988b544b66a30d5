"""Python's full collections of garbage: in turns of their own, and short.

They look through every object that may be part of a cycle, which for all of this app takes 20 to 100 ms. Python begins
one as soon as enough objects have been made: when a screen is opened or drawn anew, in the middle of it.
"""

from __future__ import annotations

import asyncio
import gc
import time

from textual._styles_cache import StylesCache

#: Collections of the middle generation, of 7000 objects each, after which a full one is due. Python waits for ten.
_DUE = 3
_NEVER = 1_000_000_000
#: Seconds of a pause, and the most it may take while the event loop has nothing else to do.
_PAUSE_S, _QUIET_S = 0.002, 0.004
#: Pauses after which there is a collection all the same.
_TRIES = 100


def only_in_turns() -> None:
    """From now on, in this process, full collections come from ``collect`` alone; what is alive is left out of them."""
    gc.set_threshold(*gc.get_threshold()[:2], _NEVER)
    gc.freeze()


def in_turns() -> bool:
    """Whether this process has asked for that; else full collections are Python's own business."""
    return gc.get_threshold()[2] == _NEVER


def due() -> bool:
    """Whether enough has been made since the last full collection."""
    return in_turns() and gc.get_count()[2] >= _DUE


async def collect(*, keep: bool = False) -> None:
    """Collects in the next moment in which the event loop has nothing else to do.

    ``keep`` leaves what is alive then out of later collections. If it dies as part of a cycle, it stays in memory: only
    for what lives as long as the app.
    """
    for _ in range(_TRIES):
        began = time.perf_counter()
        await asyncio.sleep(_PAUSE_S)
        if time.perf_counter() - began < _QUIET_S:
            break
    # A cache of colours, which keeps the drawn lines of up to 1,024 widgets that are gone.
    StylesCache.get_inner_outer.cache_clear()
    gc.collect()
    if keep:
        gc.freeze()
