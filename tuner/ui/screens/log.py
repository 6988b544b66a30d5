"""Log: what the running server, or the chosen round's, prints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget
from textual.widgets import Input

from tuner.rounds.errors import HistoryError
from tuner.text import fitted, plain
from tuner.ui.copying import Copied, log_lines
from tuner.ui.logtail import LogTail
from tuner.ui.screens.base import Place
from tuner.ui.widgets.log_view import LogView

_EVERY_S = 0.5
#: Access lines of the tuner's own polls, two a second of them.
_POLLS = ('"GET /metrics', '"GET /v1/loads')


class LogHead(Widget):
    """Which log, how long, whether it is followed, how many hits."""

    words: reactive[tuple[str, str]] = reactive(("", ""))

    def render(self) -> Content:
        """File at the left, state at the right."""
        left, right = self.words
        room = max(0, self.size.width - len(right) - 2)
        return Content.assemble((f" {fitted(left, room)} ", "$foreground 80%"), (right, "bold $primary"))


class LogScreen(Place):
    """The log of one server."""

    mode = "log"
    purpose = "What the server prints, as it prints it."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f", "follow", "Follow", tooltip="Keep the newest line in sight, or stay",
                id="log.follow"),
        Binding("h", "polls", "Polls", tooltip="Hide or show the lines of the tuner's own polls",
                id="log.polls"),
        Binding("slash", "search", "Search", key_display="/", tooltip="Search the lines kept", id="log.search"),
        Binding("full_stop,greater_than_sign", "hit(1)", "Next hit", show=False, key_display=".",
                tooltip="To the next hit", id="log.next"),
        Binding("comma,less_than_sign", "hit(-1)", "Hit before", show=False, key_display=",",
                tooltip="To the hit before", id="log.before"),
        Binding("escape", "leave", "End search", show=False, tooltip="Close the search"),
    ]  # fmt: skip

    def __init__(self) -> None:
        super().__init__()
        self._tail: LogTail | None = None
        self._name = ""
        self._problem = ""
        self._reading = False
        self._polls = False

    def body(self) -> Iterable[Widget]:
        """Head, lines, search."""
        yield LogHead()
        yield LogView(id="lines")
        yield Horizontal(Input(placeholder="Search; Enter finds, . and , go through the hits", id="needle"), id="find")

    def on_mount(self) -> None:
        """Reads on while this screen is shown."""
        self.set_interval(_EVERY_S, self._tick)
        self.query_one("#find").display = False
        self.query_one(LogView).focus()

    def on_screen_resume(self) -> None:
        """Opens the log of what runs, or of the round chosen."""
        self._tick()

    def _tick(self) -> None:
        if self.is_current and not self._reading:
            self._reading = True
            self._read(self.tuner.log_of())

    @work(thread=True, group="log")
    def _read(self, wanted: tuple[str, int | None, str]) -> None:
        """Off the event loop: the disk can be slow. ``wanted``: name, round number, path where known."""
        name, number, path = wanted
        try:
            if not path and number is not None:
                path = self.tuner.session.history.get(number).log_path
            fresh = self._tail is None or str(self._tail.path) != path
            tail = LogTail(path) if fresh or self._tail is None else self._tail
            lines = tail.read() if path else []
            if not self._polls:
                lines = [line for line in lines if not any(poll in line for poll in _POLLS)]
        except OSError as error:
            problem = f"{path} cannot be read: {error.strerror or error}."
            self.app.call_from_thread(self._take, None, name, [], False, problem)
            return
        except HistoryError as error:
            self.app.call_from_thread(self._take, None, name, [], False, str(error))
            return
        problem = "" if path else "No server has printed anything yet. R starts one."
        self.app.call_from_thread(self._take, tail if path else None, name, lines, fresh, problem)

    def _take(self, tail: LogTail | None, name: str, lines: list[str], fresh: bool, problem: str) -> None:
        self._reading = False
        view = self.query_one(LogView)
        if fresh or tail is None:
            view.clear()
        self._tail, self._name, self._problem = tail, name, problem
        if tail is not None:
            view.add(lines, tail.pending)
            view.keep_end()
        self._say()

    @on(LogView.Counted)
    def _say(self) -> None:
        view = self.query_one(LogView)
        if self._problem:
            self.query_one(LogHead).words = (self._problem, "")
            return
        path = plain(self._tail.path.name) if self._tail else ""
        older = " · older lines only in the file" if self._tail and self._tail.skipped else ""
        hits = f"hit {view.hit + 1}/{len(view.hits)} · " if view.hits else "no hit · " if view.needle else ""
        polls = "" if self._polls else "polls hidden · "
        state = "following" if view.following else "f follows"
        self.query_one(LogHead).words = (
            f"{self._name}  {path}",
            f"{hits}{polls}{view.count:,} lines{older} · {state} ",
        )

    def to_copy(self) -> Copied:
        """The line of the hit, else those in sight."""
        view = self.query_one(LogView)
        found = view.found
        return log_lines(view.in_sight() if found is None else [found], hit=found is not None)

    def action_follow(self) -> None:
        """Toggles following."""
        view = self.query_one(LogView)
        view.following = not view.following
        self._say()

    def action_polls(self) -> None:
        """Hides or shows the lines of polls: reads the file anew."""
        self._polls = not self._polls
        self._tail = None

    def action_search(self) -> None:
        """Opens the search."""
        self.query_one("#find").display = True
        self.query_one(Input).focus()

    def action_leave(self) -> None:
        """Closes the search and its marks."""
        self.query_one("#find").display = False
        self.query_one(LogView).needle = ""
        self.query_one(LogView).focus()
        self._say()

    def action_hit(self, steps: int) -> None:
        """Another hit."""
        self.query_one(LogView).seek(steps)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self.query_one(LogView).needle = event.value
        self.query_one(LogView).focus()
        self._say()
