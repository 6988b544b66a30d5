"""Changing colours and sizes holds nothing up: the work is done in turns, and once."""

from __future__ import annotations

import asyncio
import gc
import time
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from types import MethodType
from typing import Any

import pytest
from textual.app import App
from textual.css import stylesheet
from textual.css.stylesheet import Stylesheet
from textual.dom import DOMNode
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget
from uiscreen import Opened, screen_text, styles_text, until

from tuner.ui import garbage
from tuner.ui.app import TunerApp
from tuner.ui.screens import sizing
from tuner.ui.screens.help import HelpScreen


@pytest.fixture
def collector() -> Iterator[None]:
    """Leaves Python's collections as they were."""
    threshold = gc.get_threshold()
    yield
    gc.set_threshold(*threshold)
    gc.unfreeze()


def rules_of(app: TunerApp) -> list[tuple[str, str]]:
    """What the style rules say about everything on the screens of this mode."""
    nodes = [node for screen in app.screen_stack for node in screen.walk_children(with_self=True)]
    return [(str(node), said(node.styles.base)) for node in nodes]


def rules_read(app: TunerApp) -> list[tuple[str, str]]:
    return [(rule.selectors, said(rule.styles)) for rule in app.stylesheet.rules]


def said(styles: Any) -> str:
    """As words: layouts know no equality."""
    return str(sorted(styles.get_rules().items()))


async def other_colours(app: TunerApp, pilot: Any) -> None:
    first = app.stylesheet
    await app.run_action("app.shade")
    await until(pilot, lambda: app.stylesheet is not first)
    await until(pilot, lambda: all(screen._css_update_count == app._css_update_count for screen in app.screen_stack))
    await pilot.pause()


def test_textual_counts_changes_of_styles_and_keeps_its_screens_as_the_app_takes_it(opened: Opened) -> None:
    # Without them the app changes its colours all the same, but slowly.
    assert "_css_update_count" in vars(App()) and "_screen_stacks" in vars(App())


async def test_other_colours_are_those_that_textual_itself_would_give(opened: Opened) -> None:
    async with opened() as (app, pilot):
        before = styles_text(app)
        for dialog in (False, True):
            if dialog:
                await pilot.press("R")
                await until(pilot, lambda: app.screen.is_modal and "Cancel" in screen_text(app))
            await other_colours(app, pilot)
            ours, seen, read = rules_of(app), styles_text(app), rules_read(app)
            App.refresh_css(app, animate=False)
            await pilot.pause(0.1)
            assert rules_read(app) == read
            assert rules_of(app) == ours
            assert styles_text(app) == seen != before


async def test_rules_are_read_one_source_a_turn_and_not_again_for_the_next_screen(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as (app, pilot):
        turn, read, places = 0, Counter[int](), Counter[str]()
        parse = stylesheet.parse

        async def turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def noted(*args: Any, **options: Any) -> Any:
            read[turn] += 1
            places[str(args[2])] += 1
            return parse(*args, **options)

        sources = len(app.stylesheet.source)
        counting = asyncio.create_task(turns())
        monkeypatch.setattr(stylesheet, "parse", noted)
        await other_colours(app, pilot)
        assert read.total() == sources and set(read.values()) == {1}
        await pilot.press("2")
        await until(pilot, lambda: app.current_mode == "rounds" and "No round yet" in screen_text(app))
        counting.cancel()
        # What comes with the screen, and at the most what has another rank by it; never the app's own rules.
        assert [count for place, count in places.items() if "tuner.tcss" in place] == [1]
        assert read.total() < 1.5 * sources


async def test_nothing_is_painted_in_the_middle_of_other_colours(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: app.current_mode == "rounds" and "No round yet" in screen_text(app))
        await pilot.press("1")
        await pilot.pause()
        frames: list[bool] = []
        display = App._display

        def painted(self: App[None], screen: Screen[Any], what: Any) -> None:
            if what is not None and self.stylesheet is not first:
                frames.append(all(shown._css_update_count == app._css_update_count for shown in app.screen_stack))
            display(self, screen, what)

        first = app.stylesheet
        monkeypatch.setattr(App, "_display", painted)
        await pilot.press("T", "2")
        await until(pilot, lambda: app.current_mode == "rounds" and len(frames) > 1)
        await pilot.pause(0.1)
        assert all(frames)


async def test_help_is_laid_out_once_when_it_is_opened_and_follows_the_terminals_size(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as (app, pilot):
        sizes: list[Size] = []
        lay_out = Screen._refresh_layout

        def noted(self: Screen[Any], size: Size | None = None, scroll: bool = False) -> None:
            if size is not None and isinstance(self, HelpScreen):
                sizes.append(size)
            lay_out(self, size, scroll)

        monkeypatch.setattr(Screen, "_refresh_layout", noted)
        await pilot.press("question_mark")
        await until(pilot, lambda: "Esc closes" in screen_text(app))
        await pilot.pause(0.1)
        assert sizes == [Size(120, 36)]
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: app.screen.query_one("#keys").region.right <= 80)
        assert "Esc closes" in screen_text(app)
        assert {"-narrow", "-short"} <= app.screen.classes and not {"-wide", "-tall"} & app.screen.classes


async def test_a_dialog_closed_before_it_is_painted_leaves_nothing_held_back(opened: Opened) -> None:
    async with opened() as (app, pilot):
        for _ in range(3):
            await app.push_screen(HelpScreen("Tune", "", {}, "config"))
            app.pop_screen()
        await until(pilot, lambda: not app.screen.is_modal and app._batch_count == 0)
        await pilot.press("2")
        await until(pilot, lambda: "No round yet" in screen_text(app))


async def test_garbage_waits_until_the_loop_has_nothing_else_to_do(
    collector: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    did: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: did.append("collected"))

    async def busy() -> None:
        for _ in range(5):
            time.sleep(0.01)
            did.append("drawn")
            await asyncio.sleep(0)

    drawing = asyncio.create_task(busy())
    await garbage.collect()
    await drawing
    assert did == [*["drawn"] * 5, "collected"]


async def test_what_lives_as_long_as_the_app_is_kept_out_of_full_collections(collector: None) -> None:
    assert not garbage.in_turns()
    garbage.only_in_turns()
    assert garbage.in_turns()
    kept = gc.get_freeze_count()
    living = [[] for _ in range(5000)]  # type: ignore[var-annotated]
    await garbage.collect(keep=True)
    assert gc.get_freeze_count() >= kept + len(living) and not garbage.due()


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


async def test_another_size_is_drawn_in_turns_after_its_layout_and_then_painted_at_once(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(size=(200, 50)) as (app, pilot):
        await app.workers.wait_for_complete()
        await pilot.pause(0.1)
        turn, laid_out, painted = 0, list[int](), list[int]()
        drawn: dict[int, set[Widget]] = {}
        lay_out, paint, draw = Screen._refresh_layout, Screen._compositor_refresh, Widget.render_lines

        async def turns() -> None:
            nonlocal turn
            while True:
                turn += 1
                await asyncio.sleep(0)

        def noted_layout(self: Screen[Any], size: Size | None = None, scroll: bool = False) -> None:
            if size is not None:
                laid_out.append(turn)
            lay_out(self, size, scroll)

        def noted_painting(self: Screen[Any]) -> None:
            painted.append(turn)
            paint(self)

        def noted_drawing(self: Widget, crop: Any) -> Any:
            drawn.setdefault(turn, set()).add(self)
            return draw(self, crop)

        monkeypatch.setattr(sizing, "_DRAWN_S", 0.0)
        monkeypatch.setattr(Screen, "_refresh_layout", noted_layout)
        monkeypatch.setattr(Screen, "_compositor_refresh", noted_painting)
        monkeypatch.setattr(Widget, "render_lines", noted_drawing)
        counting = asyncio.create_task(turns())
        await pilot.resize_terminal(80, 24)
        await until(pilot, lambda: bool(laid_out) and any(turn > laid_out[0] for turn in painted))
        counting.cancel()
        first = min(turn for turn in painted if turn >= laid_out[0])
        ahead = {at: widgets for at, widgets in drawn.items() if laid_out[0] < at < first}
        assert len(ahead) > 10 and {len(widgets) for widgets in ahead.values()} == {1}
        assert {slider.id for slider in app.screen.query("Slider")} <= {w.id for ws in ahead.values() for w in ws}


async def test_work_that_an_app_does_not_come_to_begin_leaves_no_warning(collector: None, opened: Opened) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        async with opened() as (app, _):
            garbage.only_in_turns()
            app._keep()
            app.workflow.begin_round()
            app.workers.cancel_all()
        gc.collect()
    assert not [str(warning.message) for warning in seen if "never awaited" in str(warning.message)]


async def test_what_a_thread_brings_for_a_dialog_that_has_gone_is_dropped(opened: Opened) -> None:
    async with opened() as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        dialog = app.screen
        dialog.brought = []
        dialog.bring = MethodType(lambda self, what: self.brought.append(what), dialog)
        await asyncio.to_thread(app.call_from_thread, dialog.bring, "in time")
        await asyncio.to_thread(app.call_from_thread, setattr, dialog, "title", "Help in time")
        await pilot.press("escape")
        await until(pilot, lambda: app.screen is not dialog and not dialog.is_running)
        await asyncio.to_thread(app.call_from_thread, dialog.bring, "late")
        await asyncio.to_thread(app.call_from_thread, setattr, dialog, "title", "Help, late")
        assert (dialog.brought, dialog.title) == (["in time"], "Help in time")
