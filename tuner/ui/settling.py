"""What the app opens with: the operator's settings where they can be used, else what the terminal can show. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import msgspec

from tuner.ui.ascii import only_ascii
from tuner.ui.keys import NamedKey, clashes
from tuner.ui.settings import FILE, AppSettings
from tuner.ui.themes import FEW_COLOURS, THEMES, few_colours


class Settled(msgspec.Struct, frozen=True, kw_only=True):
    """``keys`` are keys by the name of the action; ``problem`` is one sentence about what cannot be used, or empty."""

    theme: str
    ascii: bool
    keys: dict[str, str] = {}
    problem: str = ""


def settled(
    settings: AppSettings,
    themes: Collection[str],
    named: Callable[[], Mapping[str, NamedKey]],
    environ: Mapping[str, str],
) -> Settled:
    """``named`` gives the keys there are; it is only called when keys are set: it imports every screen."""
    theme, problem = FEW_COLOURS.name if few_colours(environ) else THEMES[0].name, ""
    if settings.theme in themes:
        theme = settings.theme
    elif settings.theme:
        problem = f"{FILE}: there is no theme {settings.theme!r}; there are {', '.join(sorted(themes))}."
    keys = settings.keys
    if keys:
        known = named()
        unknown = sorted(keys.keys() - known.keys())
        keys = {name: key for name, key in keys.items() if name in known}
        lost = clashes(keys, known)
        if unknown:
            problem = f"{FILE}: no key is called {', '.join(unknown)}; ? lists the names."
        elif lost:
            problem = f"{FILE}: another action has the key of {', '.join(lost)}: give that one another key, too."
    ascii_only = settings.ascii if settings.ascii is not None else only_ascii(environ)
    return Settled(theme=theme, ascii=ascii_only, keys=keys, problem=problem)
