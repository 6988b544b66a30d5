"""The work under way: phases with estimates, the last log line, an abort; and how it ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Footer

from tuner.rounds.model import RoundState
from tuner.session.deaths import refused_for_deaths
from tuner.text import clip, plain
from tuner.ui.progress import CHECKS, Progress, Work
from tuner.ui.round_text import ending_text, missed_text
from tuner.ui.widgets.findings_list import findings_text
from tuner.ui.widgets.key_button import KeyButton
from tuner.ui.widgets.palette import meter
from tuner.ui.widgets.phase_list import PhaseList
from tuner.ui.widgets.sheet import Sheet
from tuner.units import format_seconds

if TYPE_CHECKING:
    from tuner.ui.app import TunerApp

#: Starts of the same server differ by some percent.
_LATE = 1.1


class WorkHead(Widget):
    """How far, of how long."""

    progress: reactive[Progress | None] = reactive(None)

    def render(self) -> Content:
        """Elapsed and expected time; the outcome once it is over."""
        progress = self.progress
        if progress is None:
            return Content("")
        if progress.ended:
            return _outcome(progress)
        words = format_seconds(progress.total_s)
        if progress.total_before_s:
            left = max(0.0, progress.total_before_s - progress.total_s)
            words += f" of about {format_seconds(progress.total_before_s)}"
            bar = meter(progress.total_s, progress.total_before_s, 24)
            late = " · longer than before" if progress.total_s > _LATE * progress.total_before_s else ""
            about = f" · {format_seconds(left)} left" if left else late
            return Content.assemble(bar, f"  {words}", (about, "$foreground 60%"))
        return Content.assemble(f"{words} so far", ("  never timed before", "$foreground 60%"))


class LastLine(Sheet):
    """The server's last word while it works; what came of it afterwards."""

    progress: reactive[Progress | None] = reactive(None, layout=True)

    def text(self, cells: int) -> Content:
        """One clipped log line, or the round."""
        progress = self.progress
        if progress is None:
            return Content("")
        lines: list[Content] = []
        if not progress.ended:
            if progress.aborting:
                lines.append(Content.assemble(("Aborting …", "bold $warning")))
            if progress.stalled:
                lines.append(
                    Content.assemble(("! No news for long. The log (4) may tell why; x aborts.", "bold $warning"))
                )
            shown = plain(progress.last_line).replace("\n", " ")
            lines.append(Content.assemble((clip(shown, cells), "$foreground 60%")))
            if progress.findings:
                lines.append(findings_text(progress.findings, cells))
        elif progress.work is Work.ROUND and progress.round is not None:
            lines.append(ending_text(progress.round, cells))
        elif progress.results:
            lines.append(missed_text(progress.results, cells))
        return Content("\n").join(lines)


class WorkingScreen(ModalScreen[None]):
    """Can be closed at any time: the work goes on, and p brings this back."""

    purpose = "The work under way, and how it ended."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "dismiss", "Close", tooltip="Close this; the work goes on", id="work.close"),
        Binding(
            "x", "abort", "Abort", tooltip="Stop the start under way; the server it started is ended", id="work.abort"
        ),
        Binding("f", "force", "Start anyway", tooltip="Start what the plan refuses, after a question", id="work.force"),
        Binding("b", "back", "Go back", tooltip="Start the last good round again, after a question", id="work.back"),
        Binding("c", "compare", "Compare", tooltip="Compare with the round before", id="work.compare"),
        Binding("5,i", "doctor", "Doctor", tooltip="What was found, why, and what to do", id="work.doctor"),
        Binding("4,l", "log", "Log", tooltip="What the server prints", id="work.log"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._keys: object = ()

    @property
    def tuner(self) -> TunerApp:
        """The app with its type."""
        return cast("TunerApp", self.app)

    def compose(self) -> ComposeResult:
        """Head, steps, last word."""
        with VerticalScroll(classes="dialog wide", id="work", can_focus=True):
            yield WorkHead()
            with Horizontal(id="ways"):
                yield KeyButton("", id="back", variant="primary", compact=True)
                yield KeyButton("Start anyway (f)", id="force", compact=True)
            yield PhaseList()
            yield LastLine()
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Follows the app."""
        self.watch(self.app, "progress", self._draw)

    def _draw(self, progress: Progress | None) -> None:
        box = self.query_one("#work")
        if progress is not None:
            mark = " — SIMULATED, not a real SGLang" if progress.simulated else ""
            box.border_title = f"{progress.title}{mark}"
        self.query_one(WorkHead).progress = progress
        last, steps = self.query_one(LastLine), self.query_one(PhaseList)
        last.progress = steps.progress = progress
        # Why it did not come out well must not be below what a small terminal shows.
        why_first = progress is not None and progress.ended and not progress.good
        if why_first != last.has_class("-first"):
            last.set_class(why_first, "-first")
            if why_first:
                box.move_child(last, before=steps)
            else:
                box.move_child(last, after=steps)
        back = progress.back.name if progress is not None and progress.back is not None else ""
        keys = None if progress is None else (progress.ended, progress.forceable, progress.work, back)
        if keys != self._keys:
            # Drawing the footer anew at each log line would make it flicker.
            self._keys = keys
            self.refresh_bindings()
            self._offer(back, forceable=progress is not None and progress.forceable)

    def _offer(self, back: str, *, forceable: bool) -> None:
        """Ways on from a round that did not come out well, right below how it ended."""
        ways = self.query_one("#ways")
        ways.display = bool(back) or forceable
        self.query_one("#back", KeyButton).label = f"Go back to {back} (b)"
        self.query_one("#back").display = bool(back)
        self.query_one("#force").display = forceable

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "back":
            self.action_back()
        else:
            self.action_force()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Aborting needs something under way, comparing something ended, forcing a refusal that rests on the plan."""
        progress = self.tuner.progress
        if action == "force":
            return progress is not None and progress.forceable
        if action == "back":
            return progress is not None and progress.back is not None
        if action == "doctor":
            return progress is not None and progress.ended
        if action == "abort":
            return progress is not None and not progress.ended and progress.work is not Work.STOP
        if action == "compare":
            round_ = progress.round if progress is not None and progress.ended else None
            return round_ is not None and round_.number > 1 and round_.state is not RoundState.REFUSED
        return True

    def action_abort(self) -> None:
        """Asks the work to end."""
        self.tuner.workflow.abort()

    def action_compare(self) -> None:
        """The new round with the one before."""
        progress = self.tuner.progress
        self.dismiss()
        if progress is not None and progress.round is not None:
            self.tuner.marked = (progress.round.number - 1, progress.round.number)
            self.tuner.go("compare")

    def action_force(self) -> None:
        """Asks, then starts what was refused."""
        self.dismiss()
        self.tuner.ask(self.tuner.workflow.force)

    def action_back(self) -> None:
        """Asks, then starts the last good round again."""
        self.dismiss()
        self.tuner.ask(self.tuner.workflow.fall_back)

    def action_doctor(self) -> None:
        """To the findings."""
        self.dismiss()
        self.tuner.go("doctor")

    def action_log(self) -> None:
        """To the log."""
        self.dismiss()
        self.tuner.go("log")


def _outcome(progress: Progress) -> Content:
    if progress.problem:
        return Content.assemble(("✗ ", "bold $error"), (plain(progress.problem), "$error"))
    if progress.work is Work.STOP:
        return Content.assemble(("✓ ", "$success"), ("The server is stopped.", "bold"))
    passed = sum(s.state == "done" for s in progress.checks)
    if progress.good:
        return Content.assemble(
            ("✓ ", "$success"), ("The check passed." if passed == 1 else f"All {passed} checks passed.", "bold")
        )
    round_ = progress.round
    if round_ is not None and progress.work is Work.ROUND and round_.state is RoundState.REFUSED:
        more = " f starts it anyway." if progress.forceable else ""
        died = refused_for_deaths(round_)
        why = "Not started: it died twice in the same way." if died else "Not started: refused beforehand."
        return Content.assemble(("✗ ", "bold $error"), (why, "bold $error"), more)
    if round_ is not None and progress.work is Work.ROUND and round_.state is RoundState.ABORTED:
        return Content.assemble(("– ", "bold $warning"), ("Aborted: what was started is ended.", "bold"))
    if round_ is not None and progress.work is Work.ROUND and round_.state is not RoundState.UNVERIFIED:
        came_up = round_.phase == CHECKS
        why = "The server came up, and died while it was checked." if came_up else "The server did not come up."
        return Content.assemble(("✗ ", "bold $error"), (why, "bold $error"))
    return Content.assemble(("! ", "bold $warning"), ("The server runs, but not every check passed.", "bold $warning"))
