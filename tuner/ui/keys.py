"""What the keys that can be changed are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from textual.app import App
from textual.binding import Binding
from textual.dom import DOMNode


class NamedKey(msgspec.Struct, frozen=True):
    """Where a key works (the class that has it), and its keys as they come."""

    owner: str
    keys: tuple[str, ...]


def named_keys(app: type[App[None]]) -> dict[str, NamedKey]:
    """All keys that have a name, of the app, of its screens and knobs; imports every screen."""
    from tuner.ui.screens.compare import CompareScreen
    from tuner.ui.screens.doctor import DoctorScreen
    from tuner.ui.screens.first_run import FirstRunScreen
    from tuner.ui.screens.guide import GuideScreen
    from tuner.ui.screens.log import LogScreen
    from tuner.ui.screens.presets import PresetsScreen
    from tuner.ui.screens.rounds import RoundsScreen
    from tuner.ui.screens.tune import TuneScreen
    from tuner.ui.screens.working import WorkingScreen
    from tuner.ui.widgets.choice import Choice
    from tuner.ui.widgets.log_view import LogView
    from tuner.ui.widgets.slider import Slider

    owners: Iterable[type[DOMNode]] = (
        app, TuneScreen, RoundsScreen, CompareScreen, LogScreen, DoctorScreen, PresetsScreen, WorkingScreen,
        FirstRunScreen, GuideScreen, Slider, Choice, LogView,
    )  # fmt: skip
    return {
        binding.id: NamedKey(owner.__name__, tuple(binding.key.split(",")))
        for owner in owners
        for binding in owner.BINDINGS
        if isinstance(binding, Binding) and binding.id
    }


def clashes(changed: Mapping[str, str], known: Mapping[str, NamedKey]) -> list[str]:
    """Names of actions that lose their key to a changed one of the same owner and get no other."""
    return sorted(
        other
        for name, text in changed.items()
        for key in text.split(",")
        for other, own in known.items()
        if other != name
        and own.owner == known[name].owner
        and key.strip() in (changed[other].split(",") if other in changed else own.keys)
    )
