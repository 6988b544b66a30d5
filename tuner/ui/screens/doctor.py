"""Doctor: everything found and everything proposed, with its evidence, and what it would do to the pools."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import ClassVar

from textual import on, work
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.reactive import var
from textual.widget import Widget
from textual.widgets import Button, OptionList
from textual.widgets.option_list import Option
from textual.worker import get_current_worker

from tuner.modelcard import ModelError
from tuner.planner.model import CannotPlan
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round
from tuner.session.advising import advised_round
from tuner.ui.copying import Copied, clean, finding_text
from tuner.ui.preview import preview
from tuner.ui.remedies import Case, Entry, Outlook, cases, entries, flags_of, key_of, remedy_of
from tuner.ui.screens.base import Place
from tuner.ui.widgets.entry_text import EntryText, entry_line
from tuner.ui.widgets.key_button import KeyButton
from tuner.ui.widgets.row_list import RowList, list_cells

#: Readings of days take seconds to read, and a minute changes nothing in them.
_ADVICE_HOLDS_S = 60.0


class DoctorScreen(Place):
    """A list of findings and of proposals for the next round, and the one under the cursor."""

    mode = "doctor"
    purpose = "What was found about the plan and the server, and what to try next, best first."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "apply", "Apply", tooltip="Put its flags on the Tune screen", id="doctor.apply"),
        Binding("space", "more", "More", tooltip="A page further in the text below", id="doctor.more"),
        Binding("ctrl+z", "app.undo", "Undo", show=False, tooltip="Take the last change back", id="doctor.undo"),
        Binding("escape,i", "app.go('tune')", "Tune", show=False, tooltip="Back to the Tune screen", id="doctor.back"),
    ]

    shown: var[tuple[Entry, ...]] = var(())
    newest: var[Round | None] = var(None)
    #: What to try next; None until it is worked out, and while there is no round.
    outlook: var[Outlook | None] = var(None)
    #: What the advice was asked on, round and history, and when.
    _asked: tuple[int, int] = (0, 0)
    _asked_at: float = 0.0
    #: The entry that the operator went to; empty until then.
    _under: tuple[str, ...] = ()
    _seen_version: int = -1

    def body(self) -> Iterable[Widget]:
        """List, detail, button."""
        apply = KeyButton("Put it on the Tune screen (a)", id="apply", variant="primary", compact=True)
        with_button = VerticalScroll(EntryText(), apply, id="case", can_focus=False)
        yield Container(RowList(id="cases"), with_button, classes="pair")

    def on_mount(self) -> None:
        """Follows the plan and the server."""
        for name in ("bench", "inputs", "look"):
            self.watch(self.app, name, self._collect, init=False)
        self.watch(self.app, "history_version", self._reload, init=False)
        self.query_one(OptionList).focus()

    def on_screen_resume(self) -> None:
        """Catches up; after another round with what is worst."""
        if self._seen_version != self.tuner.history_version:
            self._seen_version, self._under = self.tuner.history_version, ()
        self._reload()
        self._collect()
        self._list()

    def on_resize(self) -> None:
        """Lines are as long as the screen is wide."""
        self.call_after_refresh(self._list)

    def _reload(self) -> None:
        if self.is_current:
            self._load()

    @work(thread=True, exclusive=True, group="newest")
    def _load(self) -> None:
        session, running = self.tuner.session, self.tuner.running_round
        if session.attached:
            # Rounds of this machine say nothing about a server elsewhere.
            self.app.call_from_thread(self._loaded, None, None)
            return
        try:
            newest = session.history.last()
            advised = advised_round(session.history, running)
        except HistoryError as error:
            self.app.call_from_thread(self.tuner.say, str(error), severity="error")
            return
        self.app.call_from_thread(self._loaded, newest, advised)

    def _loaded(self, newest: Round | None, advised: Round | None) -> None:
        self.newest = newest
        self._collect()
        if advised is None:
            self.outlook = None
            return
        asked = (advised.number, self.tuner.history_version)
        if asked != self._asked or time.monotonic() - self._asked_at >= _ADVICE_HOLDS_S:
            self._asked, self._asked_at = asked, time.monotonic()
            self._advise(advised)

    @work(thread=True, exclusive=True, group="advice")
    def _advise(self, round_: Round) -> None:
        """Readings of days take a second or two: the findings are shown meanwhile."""
        try:
            outlook = Outlook(round_.name, self.tuner.session.advise(round_))
        except (CannotPlan, ModelError, HistoryError) as error:
            outlook = Outlook(round_.name, problem=f"No advice after {round_.name}: {error}")
        if not get_current_worker().is_cancelled:
            self.app.call_from_thread(self._advised, outlook)

    def _advised(self, outlook: Outlook) -> None:
        self.outlook = outlook
        self._collect()

    def _collect(self) -> None:
        if self.is_current:
            app = self.tuner
            planned = preview(app.inputs, app.bench.draft).plan if app.inputs is not None else None
            self.shown = entries(cases(planned, app.running_round, self.newest), self.outlook)
            self._judge()

    def watch_shown(self) -> None:
        """Another list."""
        if self.is_mounted:
            self._list()

    def _list(self) -> None:
        listing = self.query_one(OptionList)
        at, under = listing.highlighted or 0, self._under
        cells, whole = list_cells(listing), self.has_class("-beside")
        with self.prevent(OptionList.OptionHighlighted):
            listing.clear_options()
            listing.add_options(Option(entry_line(entry, cells, whole=whole)) for entry in self.shown)
            if self.shown:
                # A change of flags takes findings away and brings others: the cursor stays on its entry. Where the
                # operator has not chosen one it stands on the worst, also when that comes late.
                same = (place for place, entry in enumerate(self.shown) if key_of(entry) == under)
                listing.highlighted = next(same, min(at, len(self.shown) - 1) if under else 0)
        self._judge()

    @on(OptionList.OptionHighlighted)
    def _moved(self) -> None:
        entry = self._entry()
        if entry is not None:
            self._under = key_of(entry)
        self._judge()

    def _judge(self) -> None:
        text, entry = self.query_one(EntryText), self._entry()
        text.entry = entry
        text.remedy = remedy_of(entry, self.tuner.bench, self.tuner.inputs)
        button = self.query_one("#apply")
        if button.display != bool(text.remedy.changes):
            # The footer is drawn anew with the keys: only when they change.
            button.display = bool(text.remedy.changes)
            self.refresh_bindings()

    @on(OptionList.OptionSelected)
    @on(Button.Pressed)
    def _chosen(self) -> None:
        self.action_apply()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Applying needs a change."""
        if action == "apply":
            return self.is_mounted and bool(self.query_one(EntryText).remedy.changes)
        return True

    def action_more(self) -> None:
        """A page further."""
        self.turn_page("#case")

    def to_copy(self) -> Copied:
        """The entry under the cursor, a finding with its evidence."""
        entry = self._entry()
        if isinstance(entry, Case):
            remedy = self.query_one(EntryText).remedy
            return finding_text(entry.finding, remedy.problem or remedy.lost)
        if entry is None:
            return super().to_copy()
        return Copied("the proposal", clean(self.query_one(EntryText).render().plain))

    def action_apply(self) -> None:
        """The flags of the entry onto the bench."""
        entry, remedy = self._entry(), self.query_one(EntryText).remedy
        if entry is None:
            return
        if remedy.changes:
            self.tuner.apply(remedy.flags)
        elif remedy.problem:
            self.tuner.say(remedy.problem, severity="warning")
        elif flags_of(entry):
            self.tuner.say("It is on the Tune screen already. R starts it.")
        elif isinstance(entry, Case):
            self.tuner.say("This remedy is nothing that a flag can do: see what it says.", severity="warning")

    def _entry(self) -> Entry | None:
        at = self.query_one(OptionList).highlighted
        return self.shown[at] if at is not None and at < len(self.shown) else None
