"""Terminals with few colours, and screens that must be read without any."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import pytest
from rich.color import ColorType
from uifakes import DEMO, FakeSession
from uiscreen import Opened, screen_text, styled, until

from tuner.ui.ascii import only_ascii
from tuner.ui.themes import FEW_COLOURS, THEMES, few_colours
from tuner.ui.widgets.chrome import PLACES
from tuner.ui.widgets.pool_numbers import PoolNumbers
from tuner.ui.widgets.slider import Slider


@pytest.mark.parametrize(
    ("environ", "few"),
    [
        ({"TERM": "linux"}, True),
        ({"TERM": "xterm"}, True),
        ({"TERM": "screen"}, True),
        ({"TERM": "xterm-16color"}, True),
        ({"TERM": "xterm-256color"}, False),
        ({"TERM": "tmux-256color"}, False),
        ({"TERM": "xterm-kitty"}, False),
        ({"TERM": "xterm", "COLORTERM": "truecolor"}, False),
        ({"TERM": "linux", "TEXTUAL_COLOR_SYSTEM": "truecolor"}, False),
        ({"TERM": "xterm-256color", "TEXTUAL_COLOR_SYSTEM": "standard"}, True),
    ],
)
def test_a_terminal_says_how_many_colours_it_has(environ: dict[str, str], few: bool) -> None:
    assert few_colours(environ) is few


def test_the_console_of_linux_gets_ascii_unless_told_otherwise() -> None:
    assert only_ascii({"TERM": "linux"}, "utf-8")
    assert not only_ascii({"TERM": "linux", "TUNER_ASCII": "0"}, "utf-8")
    assert not only_ascii({"TERM": "xterm-256color"}, "utf-8")


async def test_with_sixteen_colours_every_screen_uses_the_terminals_own_and_can_be_read(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM")
    for _ in range(2):
        session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    async with opened(size=(80, 24)) as (app, pilot):
        assert app.theme == FEW_COLOURS.name
        await until(pilot, lambda: app.baseline.name == "r2")
        for key in [*(key for _, key, _ in PLACES), "question_mark", "1", "R"]:
            await pilot.press(key)
            await pilot.pause()
            for text, style in styled(app):
                if style is None or not text.strip():
                    continue
                for colour in (style.color, style.bgcolor):
                    assert colour is None or colour.type in (ColorType.DEFAULT, ColorType.STANDARD), (key, text, style)
                both = style.color is not None and style.color == style.bgcolor
                assert not both or style.color.is_default, (key, text, style)  # type: ignore[union-attr]
            if key == "question_mark":
                await pilot.press("escape")


async def test_with_sixteen_colours_a_log_shows_what_went_wrong_in_the_terminals_red(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM")
    round_ = session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    Path(round_.log_path).write_text("a warning\nRuntimeError: no kernel\n", encoding="utf-8")
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("4")
        await until(pilot, lambda: "RuntimeError: no kernel" in screen_text(app))
        colours = {text.strip(): style.color for text, style in styled(app) if style is not None}
        red, yellow = colours["RuntimeError: no kernel"], colours["a warning"]
        assert red is not None and (red.type, red.number) == (ColorType.STANDARD, 1)
        assert yellow is not None and (yellow.type, yellow.number) == (ColorType.STANDARD, 3)


async def test_with_sixteen_colours_the_chosen_row_is_in_one_colour_that_can_be_read_on_it(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("COLORTERM")
    session.fail_in = "sizing pools"
    for _ in range(2):
        session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "r1" in screen_text(app) and app.chosen == 2)
        await pilot.pause()
        failed = [(style.bgcolor, style.color) for text, style in styled(app) if style and text.startswith("failed in")]
        numbers = [(back and back.number, fore and fore.number) for back, fore in failed]
        blue, bright_white, red = 4, 15, 1
        assert numbers[:2] == [(blue, bright_white), (None, red)]


async def test_neighbours_in_the_bar_have_different_colours_in_every_theme(opened: Opened) -> None:
    for theme in THEMES:
        variables = theme.variables
        names = ("context", "weights", "draft", "states", "spec", "kv", "draft_kv", "graphs", "runtime")
        colours = [variables[f"term-{name}"] for name in names]
        assert all(one != other for one, other in pairwise(colours)), theme.name


async def test_a_number_that_changed_stands_out_for_a_moment_and_settles(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuner.ui.widgets.pool_numbers.FRESH_S", 0.05)
    async with opened() as (app, pilot):
        numbers = app.screen.query_one(PoolNumbers)
        seen: set[str] = set()
        monkeypatch.setattr(numbers, "redraw", lambda: seen.update(numbers.fresh))
        app.screen.query_one("#mamba_full_memory_ratio", Slider).focus()
        await pilot.press("left")
        await until(pilot, lambda: bool(seen))
        assert {"KV tokens", "State slots", "Longest input"} <= seen
        await until(pilot, lambda: not numbers.fresh)


async def test_while_a_value_is_typed_its_bounds_are_shown(opened: Opened) -> None:
    async with opened(size=(80, 24)) as (app, pilot):
        app.screen.query_one("#mem_fraction_static", Slider).focus()
        await pilot.press("enter")
        knob = app.screen.query_one("#mem_fraction_static", Slider)
        await until(pilot, lambda: f"{knob.scale.low:.2f} to" in screen_text(app))
