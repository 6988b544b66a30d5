"""Changing colours and sizes holds nothing up: the work is done in turns, and once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.geometry import Size
from textual.screen import Screen
from uiscreen import Opened, screen_text, until


async def test_other_colours_come_in_small_steps_and_reach_the_screens_that_are_not_in_sight(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: app.current_mode == "rounds" and "No round yet" in screen_text(app))
        rounds = app.screen
        await pilot.press("1")
        await until(pilot, lambda: app.current_mode == "tune")
        await pilot.pause()
        steps: list[int] = []
        update = Stylesheet.update_nodes

        def counted(self: Stylesheet, nodes: Iterable[DOMNode], animate: bool = False) -> None:
            given = list(nodes)
            steps.append(len(given))
            update(self, given, animate)

        monkeypatch.setattr(Stylesheet, "update_nodes", counted)
        await pilot.press("T")
        for screen in (app.screen, rounds):
            await until(pilot, lambda screen=screen: screen.styles.background.brightness > 0.9)
        await until(pilot, lambda: rounds._css_update_count == app._css_update_count)
        assert steps and max(steps) <= 10
        parsed: list[str] = []
        monkeypatch.setattr(Stylesheet, "reparse", lambda self: parsed.append("again"))
        await pilot.press("2")
        await until(pilot, lambda: app.screen is rounds)
        assert not parsed


async def test_another_size_is_laid_out_once_and_with_its_own_classes(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(size=(200, 50)) as (app, pilot):
        seen: list[tuple[Size, frozenset[str]]] = []
        lay_out = Screen._refresh_layout

        def noted(self: Screen[Any], size: Size | None = None, scroll: bool = False) -> None:
            if size is not None and self is app.screen:
                seen.append((size, self.classes))
            lay_out(self, size, scroll)

        monkeypatch.setattr(Screen, "_refresh_layout", noted)
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: app.screen.size == Size(80, 24))
        await pilot.pause(0.1)
        assert [size for size, _ in seen] == [Size(80, 24)]
        assert {"-narrow", "-short"} <= seen[0][1] and not {"-very-wide", "-wide", "-tall"} & seen[0][1]
        await pilot.resize_terminal(120, 36)
        await until(pilot, lambda: app.screen.size == Size(120, 36))
        assert {"-wide", "-tall"} <= app.screen.classes
