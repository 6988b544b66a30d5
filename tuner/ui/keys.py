"""What the keys that can be changed are called."""

from __future__ import annotations

from collections.abc import Iterable

from textual.app import App
from textual.binding import Binding
from textual.screen import Screen


def key_names(app: type[App[None]]) -> frozenset[str]:
    """The names of all keys of the app and of its screens; imports every screen."""
    from tuner.ui.screens.compare import CompareScreen
    from tuner.ui.screens.doctor import DoctorScreen
    from tuner.ui.screens.log import LogScreen
    from tuner.ui.screens.presets import PresetsScreen
    from tuner.ui.screens.rounds import RoundsScreen
    from tuner.ui.screens.tune import TuneScreen

    owners: Iterable[type[App[None] | Screen[None]]] = (
        app, TuneScreen, RoundsScreen, CompareScreen, LogScreen, DoctorScreen, PresetsScreen,
    )  # fmt: skip
    return frozenset(b.id for owner in owners for b in owner.BINDINGS if isinstance(b, Binding) and b.id)
