"""The guide, at the page of the screen one comes from.

Drawn as plain lines: Textual's Markdown takes 12 MB and a third of a second for the longest page, these take neither.
"""

from __future__ import annotations

import re
from typing import ClassVar

from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Center, VerticalScroll
from textual.content import Content
from textual.reactive import reactive, var
from textual.screen import ModalScreen, Screen
from textual.widget import Widget
from textual.widgets import Footer, Input

from tuner.guide import NAMES, page, pages, search
from tuner.guide.lines import Line, LineKind, shown_row, shown_rows
from tuner.text import clip, width
from tuner.ui.screens.base import Place
from tuner.ui.screens.choose import ChooseScreen
from tuner.ui.widgets.choice import Option

#: Pages of screens that are no place of the top line, by the name of their class: importing them all would be dear.
_PAGES = {
    "FirstRunScreen": "first-run",
    "ConfirmScreen": "restart",
    "WorkingScreen": "restart",
    "NeedScreen": "auto",
    "AutoScreen": "auto",
}
_WHY_CELLS = 44
_STYLES = {LineKind.TITLE: "bold $primary", LineKind.HEADING: "bold $primary", LineKind.CODE: "$foreground 75%"}


def page_of(screen: Screen[object]) -> str:
    """The page on a screen; the first one where there is none."""
    name = screen.mode if isinstance(screen, Place) else _PAGES.get(type(screen).__name__, "")
    return name if name in NAMES else NAMES[0]


def page_content(text: str, word: str = "") -> Content:
    """A page in colours, as many lines as it has rows; ``word`` stands out wherever it is."""
    content = Content("\n").join([_row(line) for line in shown_rows(text)])
    return content.highlight_regex(re.compile(re.escape(word), re.IGNORECASE), style="reverse") if word else content


def _row(line: Line) -> Content:
    if line.kind is not LineKind.TEXT:
        return Content.assemble((line.text, _STYLES[line.kind]))
    # What is to be typed stands between backticks.
    parts = line.text.split("`")
    return Content.assemble(*((part, "bold" if number % 2 else "") for number, part in enumerate(parts)))


class GuideHead(Widget):
    """Which page this is, and of how many."""

    here: reactive[str] = reactive(NAMES[0])

    def render(self) -> Content:
        """Title at the left, place at the right."""
        place = f" {NAMES.index(self.here) + 1} of {len(NAMES)} "
        room = max(0, self.size.width - width(place))
        title = clip(f" Guide: {page(self.here).title}", room)
        return Content.assemble((title, "bold $primary"), " " * (room - width(title)), (place, "$foreground 60%"))


class GuidePage(Widget):
    """The text of a page."""

    here: reactive[str] = reactive(NAMES[0], layout=True)
    word: reactive[str] = reactive("")

    def render(self) -> Content:
        """All of it."""
        return page_content(page(self.here).text, self.word)


class GuideScroll(VerticalScroll, inherit_bindings=False):
    """Scrolls up and down only: left and right turn pages."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up", "scroll_up", "Up", show=False, tooltip="A line up"),
        Binding("down", "scroll_down", "Down", show=False, tooltip="A line down"),
        Binding("pageup", "page_up", "Page up", show=False, tooltip="A screen up"),
        Binding("pagedown,space", "page_down", "Page down", show=False, tooltip="A screen down"),
        Binding("home", "scroll_home", "Top", show=False, tooltip="To the first line"),
        Binding("end", "scroll_end", "Bottom", show=False, tooltip="To the last line"),
    ]


class GuideScreen(ModalScreen[None]):
    """One page at a time."""

    purpose = "How the two pools work, each screen, answers from the field, every finding."

    CSS = """
    GuideScreen { background: $background; align: left top; }
    GuideHead { height: 1; width: 1fr; background: $panel; }
    #guide { height: 1fr; scrollbar-size-vertical: 1; }
    #guide Center { height: auto; }
    GuidePage { width: 78; max-width: 100%; height: auto; padding: 0 1; }
    GuideScreen.-tall GuidePage { padding: 1; }
    #guide-word { height: 1; border: none; padding: 0 1; display: none; }
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,G,q", "leave", "Close", tooltip="Back to the screen"),
        Binding("left", "turn(-1)", "Page before", key_display="←", tooltip="The page before", id="guide.before"),
        Binding("right", "turn(1)", "Next page", key_display="→", tooltip="The page after", id="guide.next"),
        Binding("c", "contents", "Contents", tooltip="All pages", id="guide.contents"),
        Binding("slash", "search", "Search", key_display="/", tooltip="Where a word stands", id="guide.search"),
    ]

    here: var[str] = var(NAMES[0], init=False)

    def __init__(self, name: str) -> None:
        super().__init__()
        self.set_reactive(GuideScreen.here, name)

    def compose(self) -> ComposeResult:
        """Head, page, search."""
        yield GuideHead()
        with GuideScroll(id="guide"), Center():
            yield GuidePage()
        yield Input(placeholder="A word; Enter lists where it stands, Esc closes", id="guide-word")
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Ready to read."""
        self.watch_here()
        self.query_one(GuideScroll).focus()

    def watch_here(self) -> None:
        """Another page, from its top."""
        self.query_one(GuideHead).here = self.here
        self.query_one(GuidePage).here = self.here
        self.query_one(GuideScroll).scroll_home(animate=False)

    def action_leave(self) -> None:
        """Closes the search, else the guide."""
        word = self.query_one("#guide-word", Input)
        if word.display:
            self._close_search()
        else:
            self.dismiss()

    def action_turn(self, step: int) -> None:
        """The page before or after; the ends meet."""
        self.here = NAMES[(NAMES.index(self.here) + step) % len(NAMES)]

    @work(exclusive=True, group="guide")
    async def action_contents(self) -> None:
        """Chooses among all pages."""
        options = tuple(Option(told.name, told.name, told.title) for told in pages())
        chosen = await self.app.push_screen_wait(ChooseScreen("Pages of the guide", options, self.here))
        if chosen is not None:
            self.here = chosen

    def action_search(self) -> None:
        """Asks for a word."""
        word = self.query_one("#guide-word", Input)
        word.display = True
        word.focus()

    def _close_search(self) -> None:
        self.query_one("#guide-word").display = False
        self.query_one(GuideScroll).focus()

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._find(event.value)

    @work(exclusive=True, group="guide")
    async def _find(self, word: str) -> None:
        hits = search(word)
        if not hits:
            self.notify(f"No page has {word!r}.", severity="warning", markup=False)
            return
        self._close_search()
        options = tuple(Option(str(i), hit.page, clip(hit.text, _WHY_CELLS)) for i, hit in enumerate(hits))
        title = f"{word}: {len(hits)} place{'s' if len(hits) > 1 else ''}"
        chosen = await self.app.push_screen_wait(ChooseScreen(title, options, ""))
        if chosen is None:
            return
        hit = hits[int(chosen)]
        self.here = hit.page
        shown = self.query_one(GuidePage)
        shown.word = word.strip()
        row = max(0, shown_row(page(hit.page).text, hit.line) - 1)
        self.call_after_refresh(self.query_one(GuideScroll).scroll_to, y=row, animate=False)
