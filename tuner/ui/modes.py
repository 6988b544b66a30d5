"""The screens by the name of their mode. A screen that is not opened costs nothing at the first paint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from textual.screen import Screen

from tuner.ui.screens.tune import TuneScreen


def _rounds() -> Screen[Any]:
    from tuner.ui.screens.rounds import RoundsScreen  # screens not opened cost nothing at the first paint

    return RoundsScreen()


def _compare() -> Screen[Any]:
    from tuner.ui.screens.compare import CompareScreen

    return CompareScreen()


def _log() -> Screen[Any]:
    from tuner.ui.screens.log import LogScreen

    return LogScreen()


def _doctor() -> Screen[Any]:
    from tuner.ui.screens.doctor import DoctorScreen

    return DoctorScreen()


def _presets() -> Screen[Any]:
    from tuner.ui.screens.presets import PresetsScreen

    return PresetsScreen()


def _live() -> Screen[Any]:
    from tuner.ui.screens.live import LiveScreen

    return LiveScreen()


MODES: dict[str, Callable[[], Screen[Any]]] = {
    "tune": TuneScreen,
    "rounds": _rounds,
    "compare": _compare,
    "log": _log,
    "doctor": _doctor,
    "presets": _presets,
    "live": _live,
}
