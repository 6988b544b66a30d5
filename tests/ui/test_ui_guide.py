"""Reading the guide in the app: from where one is, through all pages, to where a word stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from textual.binding import Binding
from textual.command import CommandList, CommandPalette
from textual.containers import VerticalScroll
from textual.dom import DOMNode
from textual.widgets import Input, OptionList
from uiscreen import Opened, screen_text, told, until

from tuner.guide import NAMES, page, search, sections
from tuner.guide.lines import LineKind, lines_of, shown_row, shown_rows
from tuner.ui.app import TunerApp
from tuner.ui.keys import named_keys
from tuner.ui.modes import MODES
from tuner.ui.screens.auto import AutoScreen
from tuner.ui.screens.choose import ChooseScreen
from tuner.ui.screens.compare import CompareScreen, DiffScroll
from tuner.ui.screens.dialog import ConfirmScreen
from tuner.ui.screens.doctor import DoctorScreen
from tuner.ui.screens.first_run import FirstRunScreen
from tuner.ui.screens.guide import GuidePage, GuideScreen, GuideScroll, page_content, page_of
from tuner.ui.screens.help import HelpScreen
from tuner.ui.screens.live import LiveScreen
from tuner.ui.screens.log import LogScreen
from tuner.ui.screens.presets import PresetsScreen
from tuner.ui.screens.rounds import RoundList, RoundsScreen
from tuner.ui.screens.tune import TuneScreen
from tuner.ui.screens.working import WorkingScreen
from tuner.ui.settings import FILE, read_settings
from tuner.ui.settling import settled
from tuner.ui.themes import THEMES
from tuner.ui.widgets.choice import Choice
from tuner.ui.widgets.chrome import PLACES
from tuner.ui.widgets.log_view import LogView
from tuner.ui.widgets.slider import Slider

#: Whose keys a page may tell of: the screen's and those of the widgets on it. Every place also has the app's.
OWNERS: dict[str, tuple[type[DOMNode], ...]] = {
    "first-run": (FirstRunScreen,),
    "tune": (TuneScreen, Slider, Choice, TunerApp),
    "restart": (WorkingScreen,),
    "auto": (AutoScreen,),
    "live": (LiveScreen, VerticalScroll, TunerApp),
    "rounds": (RoundsScreen, RoundList, TunerApp),
    "compare": (CompareScreen, DiffScroll, TunerApp),
    "log": (LogScreen, LogView, TunerApp),
    "doctor": (DoctorScreen, OptionList, TunerApp),
    "presets": (PresetsScreen, OptionList, TunerApp),
}
#: How the pages write keys that Textual calls otherwise.
CALLED = {
    "esc": "escape", "/": "slash", "?": "question_mark", "-": "minus", "+": "plus", ".": "full_stop", ",": "comma",
    "pgup": "pageup", "pgdn": "pagedown",
}  # fmt: skip


def keys(name: str, heading: str = "Keys") -> list[str]:
    """Keys that the table under this heading gives, as written."""
    table = next(section.text for section in sections(name) if section.heading == heading)
    rows = [line.text for line in lines_of(table) if line.kind is LineKind.CODE]
    cells = [re.split(r"\s{2,}", row.strip())[0] for row in rows]
    return [key for cell in cells for key in re.split(r", | (?=\S$)", cell)]


def pressed(name: str) -> list[str]:
    """Keys that stand between backticks in the sentences of a page."""
    words = [line.text for line in lines_of(page(name).text) if line.kind is LineKind.TEXT]
    spans = re.findall(r"`([^`]+)`", " ".join(words))
    return [s for s in spans if (len(s) == 1 and s not in "=*") or re.fullmatch(r"(Ctrl|Shift)\+\S+|F\d+|Esc|Space", s)]


def called(key: str) -> str:
    """A key of a page in Textual's words."""
    *held, last = key.split("+") if len(key) > 1 else [key]
    last = last if len(last) == 1 and not held else last.lower()
    return "+".join([*(word.lower() for word in held), CALLED.get(last, last)])


def bound(owners: tuple[type[DOMNode], ...]) -> set[str]:
    """All keys of these classes, in Textual's words."""
    bindings = [b for owner in owners for kind in owner.__mro__ for b in vars(kind).get("BINDINGS", ())]
    return {key.strip() for b in bindings for key in (b.key if isinstance(b, Binding) else b[0]).split(",")}


@pytest.mark.parametrize("name", OWNERS)
def test_every_key_of_a_page_works_on_its_screen(name: str) -> None:
    assert len(keys(name)) >= 4
    assert {called(key) for key in keys(name)} <= bound(OWNERS[name])


@pytest.mark.parametrize("name", OWNERS)
def test_every_key_of_a_screen_is_on_its_page(name: str) -> None:
    told = {called(key) for key in (*keys(name), *pressed(name))}
    bindings = [b for b in OWNERS[name][0].BINDINGS if isinstance(b, Binding)]
    assert [b.description for b in bindings if not told & set(b.key.split(","))] == []


def test_every_key_of_the_question_before_a_start_answers_it() -> None:
    assert {called(key) for key in keys("restart", "What is asked")} <= bound((ConfirmScreen,))


@pytest.mark.parametrize("name", NAMES)
def test_keys_named_in_sentences_exist(name: str) -> None:
    everywhere = [owner for owners in OWNERS.values() for owner in owners]
    assert {called(key) for key in pressed(name)} <= bound((*everywhere, GuideScreen, ConfirmScreen))


def test_every_screen_has_its_page_and_every_key_of_the_guide_a_name() -> None:
    assert {mode for mode, _, _ in PLACES} <= set(NAMES)
    assert {"guide", "guide.contents", "guide.search", "guide.next", "guide.before"} <= named_keys(TunerApp).keys()


async def test_the_guide_opens_at_the_page_of_the_screen_one_is_on(opened: Opened) -> None:
    async with opened():
        assert {mode: page_of(make()) for mode, make in MODES.items()} == {mode: mode for mode, _, _ in PLACES}
        assert [page_of(screen) for screen in (WorkingScreen(), AutoScreen())] == ["restart", "auto"]
        assert page_of(HelpScreen("", "", {}, "app.toml")) == NAMES[0]


async def test_help_leads_to_the_page_and_the_palette_has_it(opened: Opened) -> None:
    async with opened() as (app, pilot):
        commands = {command.title: command.help for command in app.get_system_commands(app.screen)}
        assert "key G" in commands["Guide"]
        await pilot.press("2", "question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.press("G")
        await until(pilot, lambda: isinstance(app.screen, GuideScreen))
        assert app.screen.here == "rounds"
        await pilot.press("q")
        await until(pilot, lambda: app.screen is app.screen_stack[0])
        assert app.is_running and app.current_mode == "rounds"


async def test_a_dialog_has_the_guide_in_the_palette(opened: Opened) -> None:
    async with opened() as (app, pilot):
        await app.push_screen(WorkingScreen())
        await pilot.press("ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await pilot.press(*"guide")
        found = app.screen.query_one(CommandList)
        await until(pilot, lambda: found.option_count == 1 and found.highlighted == 0)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, GuideScreen))
        assert app.screen.here == "restart"


async def test_left_and_right_turn_pages_and_the_ends_meet(opened: Opened) -> None:
    async with opened() as (app, pilot):
        await pilot.press("4", "G")
        await until(pilot, lambda: isinstance(app.screen, GuideScreen))
        assert app.screen.here == "log"
        await pilot.press("right")
        assert app.screen.here == NAMES[NAMES.index("log") + 1]
        app.screen.here = NAMES[-1]
        await pilot.press("right")
        assert app.screen.here == NAMES[0]
        await pilot.press("left")
        assert app.screen.here == NAMES[-1]


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_no_line_of_a_page_is_broken_or_cut(opened: Opened, size: tuple[int, int]) -> None:
    async with opened(size) as (app, pilot):
        await pilot.press("G")
        await until(pilot, lambda: isinstance(app.screen, GuideScreen))
        app.screen.here = "two-pools"
        await pilot.pause()
        shown, scroll = app.screen.query_one(GuidePage), app.screen.query_one(GuideScroll)
        assert shown.content_size.height == len(shown_rows(page("two-pools").text))
        for name in NAMES:
            lines = page_content(page(name).text).split("\n")
            assert max(line.cell_length for line in lines) <= shown.content_size.width
        await pilot.press("end")
        await until(pilot, lambda: scroll.scroll_y == scroll.max_scroll_y > 0)
        assert "3.20 GiB" in screen_text(app)


async def test_contents_choose_a_page(opened: Opened) -> None:
    async with opened() as (app, pilot):
        await pilot.press("G", "c")
        await until(pilot, lambda: isinstance(app.screen, ChooseScreen))
        await pilot.press("home", "enter")
        await until(pilot, lambda: isinstance(app.screen, GuideScreen))
        assert app.screen.here == NAMES[0]


async def test_a_search_leads_to_the_line_of_a_word(opened: Opened) -> None:
    async with opened((80, 24)) as (app, pilot):
        await pilot.press("G", "slash", *"Xyzzy", "enter")
        await until(pilot, lambda: "Xyzzy" in told(app))
        guide = app.screen
        guide.query_one(Input).value = "ping pong"
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, ChooseScreen))
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.screen is guide)
        hit = search("ping pong")[1]
        assert guide.here == hit.page
        row = shown_row(page(hit.page).text, hit.line)
        scroll = guide.query_one(GuideScroll)
        await until(pilot, lambda: scroll.scroll_y <= row < scroll.scroll_y + scroll.size.height)
        assert not guide.query_one("#guide-word").display
        await pilot.press("slash", "escape")
        assert app.screen is guide and guide.focused is scroll


def test_the_settings_file_of_the_page_can_be_used_as_it_stands(tmp_path: Path) -> None:
    told = next(s.text for s in sections("files-and-settings") if s.heading == "app.toml")
    (tmp_path / FILE).write_text(told.split("```")[1], encoding="utf-8")
    taken = settled(read_settings(tmp_path), [theme.name for theme in THEMES], lambda: named_keys(TunerApp), {})
    assert taken.problem == "" and taken.theme == "tuner-light" and taken.ascii and len(taken.keys) == 2
    assert all(theme.name in told for theme in THEMES)


def test_the_word_looked_for_stands_out_and_is_never_read_as_a_pattern() -> None:
    assert any("reverse" in str(span.style) for span in page_content("a (b) c", "(B)").spans)
    assert not any("reverse" in str(span.style) for span in page_content("a b c", "(b").spans)
