"""The classes a screen has for its size."""

from __future__ import annotations

from textual.app import App
from textual.geometry import Size


def size_classes(app: App[None], size: Size) -> dict[str, bool]:
    """Each of the app's classes for widths and heights, in cells, and whether a screen of this size has it."""
    steps = ((size.width, app.HORIZONTAL_BREAKPOINTS), (size.height, app.VERTICAL_BREAKPOINTS))
    classes = {name: False for _, points in steps for _, name in points or ()}
    for cells, points in steps:
        classes[max((least, name) for least, name in points or () if cells >= least)[1]] = True
    return classes
