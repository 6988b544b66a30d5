"""What opens over the screens, or before them, at three sizes: text, and in the second theme colours."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion
from test_ui_auto import AutoSession
from test_ui_first_run import CARD, DENSE, HYBRID, OLDER, PYTHON, FakeFinder, found
from test_ui_snapshots import SIZES, _pinned, dialog_of, history, looks, settled
from textual.command import CommandList, CommandPalette
from textual.widgets import Input
from uifakes import FakeSession, busy
from uiscreen import Opened, poorest_contrast, screen_text, until

from tuner.guide import Page
from tuner.recipe.model import Recipe
from tuner.ui.app import TunerApp
from tuner.ui.screens.auto import AutoScreen, NeedScreen
from tuner.ui.screens.guide import GuideScreen
from tuner.ui.screens.large_chart import LargeChartScreen
from tuner.ui.screens.tags import TagsScreen
from tuner.ui.trend import Trend

__all__ = ["_pinned", "history"]

NOW = 1_790_000_600.0
GUIDE = """# 两个池

What this page is about, in one sentence.

## Keys

| key | what |
|---|---|
| `Left`, `Right` | one step |

- **State slots** hold what a request remembers in the linear layers; a slot costs the same however long the input is.
"""


@pytest.fixture
def session(tmp_path) -> AutoSession:
    return AutoSession(tmp_path)


def ten_minutes() -> Trend:
    """Readings of a KV pool that fills and is emptied again, two rounds long."""
    trend = Trend()
    for step in range(0, 600, 5):
        readings = msgspec.structs.replace(busy(100_000, 40), at=NOW - 600 + step, kv_used_tokens=(step * 331) % 90_000)
        trend.take(readings, "r2" if step < 300 else "r3")
    return trend


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_what_opens_over_a_screen(
    history: FakeSession,
    opened: Opened,
    snapshot: SnapshotAssertion,
    size: tuple[int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The guide with a page of its own: what the pages say belongs to their tests."""
    monkeypatch.setattr("tuner.ui.screens.guide.page", lambda name: Page(name, "两个池", "", GUIDE))
    monkeypatch.setattr("tuner.ui.screens.large_chart.time", SimpleNamespace(time=lambda: NOW))
    history.history.set_tags(1, ["winner", "长输入"], [])
    async with opened(size=size) as (app, pilot):
        await settled(app, pilot)

        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await until(pilot, lambda: "key A" in screen_text(app) and not app.screen.query_one(CommandList).loading)
        # What lies under it is painted in a turn of its own.
        await until(pilot, lambda: "[1 Tune]" in screen_text(app))
        await read(app, snapshot, "palette")
        await pilot.press("escape", "G")
        await until(pilot, lambda: isinstance(app.screen, GuideScreen) and "c Contents" in screen_text(app))
        await read(app, snapshot, "guide")
        await pilot.press("escape")
        await app.push_screen(LargeChartScreen(ten_minutes(), 600.0, "10 minutes"))
        await until(pilot, lambda: "r3" in screen_text(app))
        await read(app, snapshot, "large chart")
        await pilot.press("escape", "2")
        await until(pilot, lambda: "r3 verified" in screen_text(app))
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, TagsScreen) and "长输入" in screen_text(app))
        # A cursor that comes and goes changes the colours.
        app.screen.query_one(Input).cursor_blink = False
        await looks(app, pilot, snapshot, dialog_of(app))


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_auto(session: AutoSession, opened: Opened, snapshot: SnapshotAssertion, size: tuple[int, int]) -> None:
    async with opened(size=size) as (app, pilot):
        await pilot.press("A")
        await until(pilot, lambda: isinstance(app.screen, NeedScreen))
        await pilot.pause()
        assert screen_text(app, dialog_of(app)) == snapshot(name="need")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, AutoScreen) and "The need is met by r2." in screen_text(app))
        await pilot.pause()
        await looks(app, pilot, snapshot, dialog_of(app))


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_first_run(
    session: AutoSession, snapshot: SnapshotAssertion, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    over = threading.Event()
    over.set()
    here = found(gpus=(CARD,), interpreters=(PYTHON, OLDER), models=(HYBRID, DENSE), folders=7)
    monkeypatch.setattr(FakeSession, "finder", lambda self: FakeFinder(here, over), raising=False)
    app = TunerApp(session, Recipe(), first=True, every_s=0.1)  # type: ignore[arg-type]
    async with app.run_test(size=size) as pilot:
        await until(pilot, lambda: bool(app.screen.query("#model")) and "7 folders" in screen_text(app))
        await until(pilot, lambda: app.screen.query_one("#model").has_focus)
        await pilot.pause()
        await looks(app, pilot, snapshot, dialog_of(app))


async def read(app: TunerApp, snapshot: SnapshotAssertion, name: str) -> None:
    """The text of the whole screen, none of which is too pale to be read."""
    assert screen_text(app) == snapshot(name=name)
    region = app.screen.query_one(CommandList).region if isinstance(app.screen, CommandPalette) else None
    contrast, words = poorest_contrast(app, region)
    assert contrast >= 3, words
