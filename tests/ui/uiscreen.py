"""What a terminal would show of an app under test."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager

from rich.cells import cell_len
from rich.color import Color
from rich.color_triplet import ColorTriplet
from rich.style import Style
from textual.app import App
from textual.geometry import Region
from textual.pilot import Pilot
from textual.strip import Strip

from tuner.ui.app import TunerApp

Opened = Callable[..., AbstractAsyncContextManager[tuple[TunerApp, Pilot[None]]]]


def screen_text(app: App[None], part: Region | None = None) -> str:
    """The screen, or a part of it, as lines of text, without trailing blanks."""
    return "\n".join(strip.text.rstrip() for strip in _strips(app, part))


async def until(pilot: Pilot[None], true: Callable[[], bool], *, tries: int = 500) -> None:
    """Lets the app work until something is true; fails when it never comes."""
    for _ in range(tries):
        if true():
            return
        await pilot.pause(0.01)
    raise AssertionError(f"what the test waited for never came; the screen:\n{screen_text(pilot.app)}")


def told(app: App[None]) -> str:
    """What the app has said in its corner; a terminal under test does not draw that."""
    return " ".join(notification.message for notification in app._notifications)


def styles_text(app: App[None], part: Region | None = None) -> str:
    """How many cells each style has on the screen, most first: what no text tells."""
    cells: Counter[str] = Counter()
    for text, style in styled(app, part):
        words = [name for name in ("bold", "reverse", "underline") if style is not None and getattr(style, name)]
        fore, back = (_name(style.color), _name(style.bgcolor)) if style is not None else ("-", "-")
        cells[" ".join([*words, fore, "on", back])] += cell_len(text)
    return "\n".join(f"{count:6} {name}" for name, count in sorted(cells.items(), key=lambda item: (-item[1], item[0])))


def poorest_contrast(app: App[None], part: Region | None = None) -> tuple[float, str]:
    """The lowest contrast ratio (WCAG 2, 1 to 21) of letters and digits on the screen, and those."""
    found = [
        (_ratio(style.color.get_truecolor(), style.bgcolor.get_truecolor()), text)
        for text, style in styled(app, part)
        if any(c.isalnum() for c in text)
        and style is not None
        and style.color is not None
        and style.bgcolor is not None
    ]
    return min(found)


def styled(app: App[None], part: Region | None = None) -> Iterator[tuple[str, Style | None]]:
    """Pieces of the screen, or of a part of it, with their styles."""
    for strip in _strips(app, part):
        for segment in strip:
            yield segment.text, segment.style


def _strips(app: App[None], part: Region | None) -> list[Strip]:
    region = part if part is not None else app.screen.region
    strips = app.screen._compositor.render_strips(app.size)[region.y : region.bottom]
    return [strip.crop(region.x, region.right) for strip in strips]


def _name(colour: Color | None) -> str:
    return "-" if colour is None else colour.name


def _ratio(one: ColorTriplet, other: ColorTriplet) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: ColorTriplet) -> float:
    parts = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in colour.normalized]
    return 0.2126 * parts[0] + 0.7152 * parts[1] + 0.0722 * parts[2]
