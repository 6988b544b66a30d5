"""The terminal app: what the screens share, what the threads tell, and the keys that work everywhere."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import click
from textual import on, work
from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.driver import Driver
from textual.drivers.linux_driver import LinuxDriver
from textual.filter import LineFilter
from textual.reactive import var
from textual.screen import Screen

from tuner.paths import HomeError
from tuner.planner.model import PlanInputs
from tuner.recipe.model import Recipe, RecipeError
from tuner.rounds.errors import HistoryError
from tuner.rounds.model import Round
from tuner.session.events import RoundClosed, RoundOpened
from tuner.ui.ascii import AsciiFilter
from tuner.ui.auto_view import AutoView
from tuner.ui.bench import Bench, flag_changes
from tuner.ui.commands import ON_THE_SERVER, commands
from tuner.ui.copying import Copies
from tuner.ui.garbage import collect, due, in_turns, only_in_turns
from tuner.ui.keys import named_keys
from tuner.ui.messages import Happened, InputsArrived, LookArrived, LookFailed, WorkEnded
from tuner.ui.modes import MODES
from tuner.ui.preview import Baseline, baseline, preview
from tuner.ui.progress import Progress
from tuner.ui.restyling import RestylingApp
from tuner.ui.round_actions import Verdict, edit_note, export_round, mark_round
from tuner.ui.runner import EVERY_S, Runner
from tuner.ui.screens.base import Place
from tuner.ui.screens.dialog import ConfirmScreen
from tuner.ui.settings import FILE, AppSettings, SettingsError, read_settings
from tuner.ui.settling import settled
from tuner.ui.signals import Handlers, on_signals
from tuner.ui.terminal import TerminalDriver
from tuner.ui.themes import THEMES
from tuner.ui.trend import Trend
from tuner.ui.widgets.chrome import PLACES
from tuner.ui.wording import Known, changes_line
from tuner.ui.workflow import Workflow

if TYPE_CHECKING:
    from tuner.session.session import Session
    from tuner.session.watching import Look

#: Seconds after which a screen has been drawn for the first time.
_OPENED_S = 0.5
#: Seconds between two looks at whether there is much garbage.
_COLLECT_S = 0.5
#: Seconds without a look from which on what is shown counts as old; a look takes 1.5 s at the most.
LATE_S = 2.5


def _machine(recipe: Recipe) -> object:
    """Of a recipe, what the inputs of its plans depend on; the other flags only go into the plan itself."""
    parallel = tuple(recipe.flags.get(name) for name in ("tp_size", "pp_size", "dp_size"))
    return recipe.model_path, recipe.port, parallel, recipe.python, recipe.environment, recipe.tuner


class TunerApp(RestylingApp):
    """Holds what the screens share. They read its variables; the work under way is changed by ``workflow`` alone."""

    TITLE = "tuner"
    CSS_PATH = "tuner.tcss"
    MODES = MODES  # type: ignore[assignment]
    DEFAULT_MODE = "tune"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide"), (176, "-very-wide")]  # noqa: RUF012
    VERTICAL_BREAKPOINTS = [(0, "-short"), (32, "-tall")]  # noqa: RUF012
    ENABLE_COMMAND_PALETTE = True

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("question_mark,f1", "help", "Help", show=False, id="help",
                tooltip="The keys of this screen"),
        Binding("G", "guide", "Guide", show=False, id="guide", tooltip="The page of the guide on this screen"),
        Binding("1", "go('tune')", "Tune", show=False, id="go.tune", tooltip="Knobs and the plan of the next start"),
        Binding("2", "go('rounds')", "Rounds", show=False, id="go.rounds", tooltip="The history of rounds"),
        Binding("3", "go('compare')", "Compare", show=False, id="go.compare", tooltip="Two rounds side by side"),
        Binding("4", "go('log')", "Log", show=False, id="go.log", tooltip="What the server prints"),
        Binding("5", "go('doctor')", "Doctor", show=False, id="go.doctor", tooltip="What was found, and what to do"),
        Binding("6", "go('presets')", "Presets", show=False, id="go.presets", tooltip="Recipes to start from"),
        Binding("7", "go('live')", "Live", show=False, id="go.live", tooltip="Every reading, what binds now, charts"),
        Binding("R,r,ctrl+r", "restart", "Restart", id="restart",
                tooltip="Start the server with the flags on the Tune screen, after a question"),
        Binding("v", "verify", "Verify", show=False, id="verify", tooltip="Run the checks on the running server again"),
        Binding("s", "stop", "Stop", show=False, id="stop", tooltip="Stop the running server, after a question"),
        Binding("n", "note", "Note", id="note", tooltip="Write the note of the round chosen (else of the newest)"),
        Binding("e", "export", "Export", id="export",
                tooltip="Write the round to a file: systemd, start script, recipe"),
        Binding("k", "judge('keep')", "Keep", show=False, id="keep", tooltip="Mark the round as one to keep"),
        Binding("x", "judge('reject')", "Reject", show=False, id="reject", tooltip="Mark the round as rejected"),
        Binding("p", "progress", "Progress", show=False, id="progress",
                tooltip="Show the work under way, or how the last one ended"),
        Binding("y", "copy", "Copy", show=False, id="copy",
                tooltip="Copy the finding, lines of the log, the launch command of the round, else the address"),
        Binding("f3", "find", "Find", show=False, id="find",
                tooltip="Look around for SGLang, models, cards and servers, and begin with what is found"),
        Binding("T", "shade", "Light or dark", show=False, id="shade", tooltip="Light colours or dark ones"),
        Binding("q", "quit", "Quit", id="quit", tooltip="Leave; the server stays up"),
    ]  # fmt: skip

    # Vars, not reactives: a reactive of the app would repaint the whole screen at every look.
    look: var[Look | None] = var(None)
    #: Why the last poll failed; then ``look`` is old.
    look_problem: var[str] = var("")
    #: Seconds since the last look, once it is overdue.
    late_s: var[int] = var(0)
    bench: var[Bench] = var(Bench.opened(Recipe()))
    inputs: var[PlanInputs | None] = var(None)
    inputs_problem: var[str] = var("")
    baseline: var[Baseline] = var(Baseline())
    #: How far the plans of the last rounds were off, newest first.
    known: var[Known] = var(())
    #: The process of another tuner that is in the middle of the running server's round.
    starter: var[int | None] = var(None)
    progress: var[Progress | None] = var(None)
    #: The rounds of auto, under way or the last.
    auto: var[AutoView | None] = var(None)
    #: Name of the running round ("r3"), "server" for one without a round, "" while nothing runs.
    running_name: var[str] = var("")
    #: Counts changes of the history, for screens that show it.
    history_version: var[int] = var(0)
    #: Rounds marked to compare, in the order marked.
    marked: var[tuple[int, ...]] = var(())
    #: The round under the cursor of the rounds list.
    chosen: var[int | None] = var(None)

    def __init__(
        self, session: Session, recipe: Recipe, *, demo: bool = False, first: bool = False, every_s: float = EVERY_S
    ) -> None:
        """``demo`` starts the recipe when nothing runs; ``first`` looks around for what a recipe needs."""
        super().__init__()
        self.session = session
        self._demo = demo
        self._first = first
        self._looked = False
        #: What the inputs were gathered for and in which turn.
        self._gathered_for: object = None
        self._gathered_turn = 0
        #: The running round as last seen.
        self._seen: object = None
        self._ascii = False
        self._told_to_go: Handlers | None = None
        #: Screens, and in which theme, whose objects are kept out of collections.
        self._kept: set[tuple[str, str]] = set()
        #: What charts show, and when the last look came.
        self.trend = Trend()
        self._looked_at_s = time.monotonic()
        self.runner = Runner(session, self.post_message, every_s=every_s)
        self.workflow = Workflow(self)
        self.set_reactive(TunerApp.bench, Bench.opened(recipe))
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name
        self.settings_problem = ""
        self._settle()

    def _settle(self) -> None:
        """Takes the operator's settings; what cannot be used is told once the screen is up."""
        settings, problem = AppSettings(), ""
        try:
            settings = read_settings(self.session.home.config)
        except (SettingsError, HomeError) as error:
            problem = str(error)
        taken = settled(settings, self.available_themes, partial(named_keys, type(self)), os.environ)
        self.settings_problem = problem or taken.problem
        self._ascii, self.theme = taken.ascii, taken.theme
        if taken.keys:
            self.set_keymap(taken.keys)

    def get_driver_class(self) -> type[Driver]:
        """Textual's own choice; on a plain terminal the driver that notices when it is gone."""
        chosen = super().get_driver_class()
        return TerminalDriver if chosen is LinuxDriver else chosen

    def get_line_filters(self) -> Sequence[LineFilter]:
        """Besides Textual's own: everything in ASCII where the terminal has nothing else."""
        filters = super().get_line_filters()
        return [*filters, AsciiFilter()] if self._ascii else filters

    @property
    def simulated(self) -> bool:
        """Whether what runs (or would start) is the stand-in server."""
        if self.look is not None and self.look.running is not None:
            return self.look.running.handle.simulated
        return self.bench.draft.simulated

    @property
    def running_round(self) -> Round | None:
        """The round of the running server."""
        return self.look.running.round if self.look is not None and self.look.running is not None else None

    # life

    def on_mount(self) -> None:
        """Polls, gathers what plans need, and leaves properly when it is told to go."""
        self._told_to_go = on_signals(self._let_go, self.exit)
        self._gather()
        self._close_lost()
        self.runner.watch()
        self._keep_out_of_collections()
        self.set_interval(1.0, self._mark_late)
        self.set_interval(_COLLECT_S, self._collect)
        self.theme_changed_signal.subscribe(self, lambda _: self._keep_out_of_collections())
        if self.settings_problem:
            self.say(self.settings_problem, severity="warning")
        if self._first:
            self.action_find()

    @work(thread=True, group="lost")
    def _close_lost(self) -> None:
        """Rounds whose tuner went away in the middle are closed, where that may be written."""
        if self.session.attached:
            return
        try:
            self.session.settle()
        except HistoryError as error:
            self.call_from_thread(self.say, str(error), severity="warning")

    def call_from_thread(self, callback: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """As Textual's, but what a thread brings for a screen that has gone meanwhile, or at the end, is dropped."""
        owner = args[0] if callback is setattr else getattr(callback, "__self__", self)

        def if_there() -> Any:
            gone = isinstance(owner, Screen) and not (owner.is_attached and owner.is_running)
            return callback(*args, **kwargs) if self.is_running and not gone else None

        return super().call_from_thread(if_there)

    def _keep_out_of_collections(self) -> None:
        """Screens live as long as the app: looking through them for garbage holds it up 0.1 s a time."""
        opened = self.current_mode, self.theme
        if in_turns() and opened not in self._kept:
            self._kept.add(opened)
            self.set_timer(_OPENED_S, self._keep)

    def _keep(self) -> None:
        # Not what is about to go: a dialog, or everything at the end.
        if self.screen_stack:
            self._collect_when_quiet(keep=not self.screen.is_modal)

    def _collect(self) -> None:
        if due():
            self._collect_when_quiet(keep=False)

    @work(group="garbage")
    async def _collect_when_quiet(self, *, keep: bool) -> None:
        await collect(keep=keep)

    def on_unmount(self) -> None:
        """Lets the threads go; the server stays up."""
        self.runner.close()
        if self._told_to_go is not None:
            self._told_to_go.restore()

    def _let_go(self) -> None:
        """The loop may wait for a terminal that takes nothing: no longer. Runs in a signal handler."""
        if isinstance(self._driver, TerminalDriver):
            self._driver.leave()

    @property
    def unseen(self) -> bool:
        """Whether nobody sees any more what is written."""
        return isinstance(self._driver, TerminalDriver) and self._driver.gone

    # what threads tell

    @on(LookArrived)
    def _looked_at(self, message: LookArrived) -> None:
        self.workflow.tick()
        self._keep_for_charts(message.look)
        self.look, self.look_problem, self.starter = message.look, "", message.starter
        running = message.look.running
        name = (running.handle.round_name or "server") if running else ""
        if name != self.running_name or not self._looked:
            gone, self.running_name = self.running_name, name
            if running is not None:
                self.bench = self.bench.rebased(running.handle.recipe, name)
            else:
                self.bench = self.bench.rebased(self.bench.base, "")
                self._miss(gone)
            self._gather()
        seen = running.round if running is not None else None
        state = (seen.name, seen.state, seen.note, seen.verdict) if seen is not None else None
        if state != self._seen:
            # Another tuner may be at work on it.
            self._seen = state
            self.history_version += 1
        if not self._looked:
            self._looked = True
            if self._demo and running is None:
                self.workflow.begin_round()

    def _keep_for_charts(self, look: Look) -> None:
        self._looked_at_s = time.monotonic()
        self.late_s = 0
        if look.running is not None and look.readings is not None:
            self.trend.take(look.readings, look.running.handle.round_name or "server", look.gpus)

    def _mark_late(self) -> None:
        """Says since when there is no news at all: a look that hangs must not pass for a quiet server."""
        passed = time.monotonic() - self._looked_at_s
        self.late_s = int(passed) if passed > LATE_S else 0

    def _miss(self, name: str) -> None:
        """Says that a server has gone, unless that was to be expected."""
        if name and not self.workflow.expected_end(name):
            self.say(
                f"The server of {name} is gone: stopped or killed from outside. 4 shows its log, R starts it again.",
                severity="warning",
            )

    def _gather(self) -> None:
        """What plans of the draft need."""
        self._gathered_for = _machine(self.bench.draft)
        self.runner.gather(self.bench.draft)

    def watch_bench(self) -> None:
        """Another model, interpreter or environment on the bench needs other inputs."""
        if self.is_running and self._gathered_for is not None and self._gathered_for != _machine(self.bench.draft):
            self._gather()

    @on(LookFailed)
    def _look_failed(self, message: LookFailed) -> None:
        self.look_problem = message.problem

    @on(InputsArrived)
    def _gathered(self, message: InputsArrived) -> None:
        if _machine(message.recipe) != self._gathered_for or message.turn < self._gathered_turn:
            return
        self._gathered_turn = message.turn
        self.inputs, self.inputs_problem, self.known = message.inputs, message.problem, message.accuracy
        same = _machine(self.bench.base) == self._gathered_for
        planned = preview(message.inputs, self.bench.base).plan if message.inputs is not None and same else None
        self.baseline = baseline(self.bench.base_name, planned, self.running_round)

    @on(Happened)
    def _happened(self, message: Happened) -> None:
        self.workflow.follow(message.event)
        if isinstance(message.event, RoundOpened | RoundClosed):
            self.history_version += 1
            self.chosen = message.event.round.number

    @on(WorkEnded)
    def _work_ended(self, message: WorkEnded) -> None:
        self.workflow.finish(message.problem)
        self.history_version += 1
        self.runner.look_now()
        # The boot log of a round just ended may calibrate the next plan.
        self._gather()

    # the bench

    def change(self, flags: dict[str, Any]) -> None:
        """Changes flags of the draft; None removes one."""
        self.bench = self.bench.changed(flags)

    def use(self, round_: Round) -> None:
        """Another round's flags onto the bench."""
        self.bench = self.bench.replaced(round_.recipe)
        self.say(f"The flags of {round_.name} are on the Tune screen. R starts them, Ctrl+Z takes them back.")
        self.go("tune")

    def apply(self, flags: dict[str, Any]) -> None:
        """A remedy's flags onto the bench."""
        before = self.bench
        self.bench = self.bench.applied(flags)
        words = changes_line(flag_changes(before.draft.flags, self.bench.draft.flags))
        self.say(f"On the Tune screen: {words}. R starts it, Ctrl+Z takes it back.")

    def load(self, recipe: Recipe, name: str) -> None:
        """A whole recipe onto the bench."""
        self.bench = self.bench.loaded(recipe)
        self.say(f"{name} is on the Tune screen. R starts it, Ctrl+Z takes it back.")
        self.go("tune")

    def action_undo(self) -> None:
        """One change back."""
        self.bench = self.bench.undone()

    def action_redo(self) -> None:
        """One change forward."""
        self.bench = self.bench.redone()

    def action_reset(self) -> None:
        """All knobs as running."""
        self.bench = self.bench.reset()

    # dialogs and work

    def ask(self, dialog: Callable[[], Awaitable[None]]) -> None:
        """Runs what asks the operator something; the last question counts."""
        self.run_worker(dialog, exclusive=True, group="dialog")

    def action_find(self) -> None:
        """Looks around this machine, asks what is missing, and puts the recipe on the bench."""
        from tuner.ui.beginning import begin_with_what_is_here

        self.ask(partial(begin_with_what_is_here, self))

    def action_restart(self) -> None:
        """Asks once, then starts."""
        self.ask(self.workflow.restart)

    def action_auto(self) -> None:
        """Asks for the need and begins; while it is under way, shows it."""
        self.ask(self.workflow.auto)

    def action_verify(self) -> None:
        """The checks again."""
        self.workflow.verify()

    def action_stop(self) -> None:
        """Asks, then stops the server."""
        self.ask(self.workflow.stop)

    def action_progress(self) -> None:
        """The work under way, or the last."""
        self.workflow.show()

    # rounds

    def action_note(self) -> None:
        """Edits the note of the round meant."""
        self.ask(partial(edit_note, self))

    def action_export(self, fmt: str = "toml") -> None:
        """Writes the round meant to a file."""
        self.ask(partial(export_round, self, fmt))

    def action_judge(self, verdict: Verdict) -> None:
        """Marks the round meant; the same key again takes the mark away."""
        self.ask(partial(mark_round, self, verdict))

    def log_of(self) -> tuple[str, int | None, str]:
        """Which log to show: name, round number and path, as far as known."""
        progress = self.progress
        if progress is not None and not progress.ended and progress.round is not None:
            return progress.round.name, progress.round.number, ""
        if self.chosen is not None:
            return f"r{self.chosen}", self.chosen, ""
        if self.look is not None and self.look.running is not None:
            return self.running_name, None, self.look.running.handle.log_path
        return "", None, ""

    def action_copy(self) -> None:
        """What is under the eye, to the clipboard of the terminal."""
        screen = self.screen
        if not isinstance(screen, Copies):
            return
        try:
            copied = screen.to_copy()
        except RecipeError as error:
            self.say(str(error), severity="error")
            return
        if not copied.text:
            self.say(copied.what, severity="warning")
            return
        self.copy_to_clipboard(copied.text)
        self.say(f"Copied {copied.what}. If it does not paste, allow OSC 52 (clipboard) in the terminal.")

    # getting around

    def go(self, mode: str) -> None:
        """To a screen."""
        self.action_go(mode)

    def action_go(self, mode: str) -> None:
        """To a screen; dialogs of the one left stay open there."""
        if mode != self.current_mode:
            self.switch_mode(mode)
            self._keep_out_of_collections()

    def action_shade(self) -> None:
        """The other of our two themes."""
        dark, light = THEMES[0].name, THEMES[1].name
        self.theme = light if self.current_theme.dark else dark

    def action_help(self) -> None:
        """Lists the keys that work here."""
        from tuner.ui.screens.help import HelpScreen, key_groups

        screen = self.screen
        title = next((t for m, _, t in PLACES if isinstance(screen, Place) and m == screen.mode), "")
        groups = key_groups(screen, without=ON_THE_SERVER if self.session.attached else ())
        self.push_screen(HelpScreen(title, getattr(screen, "purpose", ""), groups, FILE))

    def action_guide(self) -> None:
        """The guide at the page of the screen."""
        from tuner.ui.screens.guide import GuideScreen, page_of

        self.push_screen(GuideScreen(page_of(self.screen)))

    async def action_quit(self) -> None:
        """Leaves; asks only while a start is under way."""
        self.ask(self._leave)

    async def _leave(self) -> None:
        if self.runner.busy:
            text = Content("The work goes on without being watched: a start ends up unchecked. Esc stays here.")
            if not await self.push_screen_wait(ConfirmScreen("Quit", text, yes="Quit", no="Stay", careful=True)):
                return
        self.exit()

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Every key of the screen and of the app is a command."""
        yield from commands(self, screen, without=ON_THE_SERVER if self.session.attached else ())
        if not screen.is_modal:
            for name, fmt in (("systemd service", "systemd"), ("start script", "sh")):
                about = f"Write the round as a {name} · key e"
                yield SystemCommand(f"Export a {name}", about, partial(self.action_export, fmt))
        if screen.is_modal:
            # There the app's own keys do not work.
            yield SystemCommand("Guide", "The page of the guide on this screen", self.action_guide)

    def say(self, text: str, *, severity: Literal["information", "warning", "error"] = "information") -> None:
        """One sentence at the corner; never read as markup."""
        self.notify(text, severity=severity, markup=False)


def run_app(session: Session, recipe: Recipe, *, demo: bool, first: bool = False) -> int:
    """Opens the app and returns the exit status; says what still runs when it is left."""
    app = TunerApp(session, recipe, demo=demo, first=first)
    only_in_turns()
    app.run()
    if app.return_code or app.unseen:
        return app.return_code or 1
    running = app.look.running if app.look is not None else None
    if running is not None and not session.attached:
        kind = "simulated server" if running.handle.simulated else "server"
        click.echo(f"The {kind} still runs on port {running.handle.port}: tuner opens it again, tuner stop ends it.")
    return 0
