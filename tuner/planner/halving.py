"""Whole numbers found by halving, where what holds changes only once."""

from __future__ import annotations

from collections.abc import Callable


def last_that(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The last number from ``low`` to ``high`` that holds, where holding once lost is lost for good; None: none."""
    if low > high or not holds(low):
        return None
    while low < high:
        middle = (low + high + 1) // 2
        if holds(middle):
            low = middle
        else:
            high = middle - 1
    return low


def first_that(low: int, high: int, holds: Callable[[int], bool]) -> int | None:
    """The first number from ``low`` to ``high`` that holds, where holding once won is won for good; None: none."""
    if low > high or not holds(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if holds(middle):
            high = middle
        else:
            low = middle + 1
    return low
