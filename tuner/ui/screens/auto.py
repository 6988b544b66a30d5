"""Auto: the need it is asked, and its rounds one by one, with the way to take over."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, cast

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.reactive import reactive
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Footer, Input, Label, Static

from tuner.planner.model import HEADROOM_GIB
from tuner.planner.need import Need
from tuner.session.auto.model import ANSWER_TOKENS, Ended, Goal
from tuner.session.needs import Stated
from tuner.text import plain
from tuner.ui.auto_view import AutoRow, AutoView
from tuner.ui.widgets.key_button import KeyButton
from tuner.units import format_gib, parse_gib, parse_tokens

if TYPE_CHECKING:
    from tuner.ui.app import TunerApp

#: Where the recipe says nothing.
_INPUT = 90_000
_SIGNS = {
    "True": ("✓", "$success"),
    "False": ("✗", "bold $warning"),
    "over": ("–", "$foreground 60%"),
    "running": ("◐", "bold $primary"),
}
_SPECULATION = "speculative_"


class NeedScreen(ModalScreen[Goal | None]):
    """Asks what the server must be good for; answers None when it stays as it is."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "dismiss(None)", "Cancel", tooltip="Change nothing")]

    def __init__(self, stated: Stated, *, running: str = "") -> None:
        """``stated``: what the recipe says is needed, to begin with; ``running``: what is stopped for it."""
        super().__init__()
        self._stated = stated
        self._stops = running

    def compose(self) -> ComposeResult:
        """Five fields and what it will do."""
        stated = self._stated
        headroom = stated.headroom_gib if stated.headroom_gib is not None else HEADROOM_GIB
        with Vertical(classes="dialog") as box:
            box.border_title = "Auto: rounds until the need is met"
            yield from self._field("input", "Longest input, tokens", _typed(stated.input_tokens or _INPUT))
            yield from self._field("agents", "Agents in flight together", str(stated.agents or 1))
            yield from self._field("warm", "Conversations kept warm", str(stated.warm_prefixes or 0))
            yield from self._field("output", "Longest answer, tokens", str(stated.output_tokens or ANSWER_TOKENS))
            yield from self._field("headroom", "Free at ready, GiB", f"{headroom:g}")
            stops = f"{self._stops} is stopped, and started again when the need cannot be met. " if self._stops else ""
            yield Static(Content(f"{stops}x takes over at any time."), classes="text")
            yield Static(Content(""), id="wrong", classes="text")
            with Horizontal(classes="buttons"):
                yield KeyButton("Start (Enter)", id="yes", variant="primary", compact=True)
                yield KeyButton("Cancel (Esc)", id="no", compact=True)

    def _field(self, name: str, label: str, value: str) -> ComposeResult:
        with Horizontal(classes="field"):
            yield Label(f"{label:<28}")
            yield Input(value=value, id=f"need-{name}", compact=True, select_on_focus=True)

    def on_mount(self) -> None:
        """Ready to write."""
        self.query_one("#need-input", Input).focus()

    @on(Input.Submitted)
    def _entered(self, event: Input.Submitted) -> None:
        event.stop()
        self._answer()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "yes":
            self._answer()
        else:
            self.dismiss(None)

    def _answer(self) -> None:
        try:
            goal = read_goal(
                *(self.query_one(f"#need-{n}", Input).value for n in ("input", "agents", "output", "headroom", "warm"))
            )
        except ValueError as error:
            self.query_one("#wrong", Static).update(Content.assemble((plain(str(error)), "$error")))
            return
        self.dismiss(goal)


def read_goal(input_tokens: str, agents: str, output_tokens: str, headroom: str, warm: str = "0") -> Goal:
    """The need as it was typed. Raises ValueError with one sentence."""
    if not agents.strip().isdigit() or int(agents) < 1:
        raise ValueError(f"The number of agents is {agents.strip() or 'missing'}: give 1 or more.")
    if not warm.strip().isdigit():
        raise ValueError(f"The number of conversations kept warm is {warm.strip() or 'missing'}: give 0 or more.")
    need = Need(
        input_tokens=parse_tokens(input_tokens),
        agents=int(agents),
        warm_prefixes=int(warm),
        output_tokens=max(1, parse_tokens(output_tokens)),
        headroom_gib=parse_gib(headroom),
    )
    if need.input_tokens < 1:
        raise ValueError("The longest input must have at least one token.")
    return Goal(need=need, keep=(_SPECULATION,))


def _typed(count: int) -> str:
    """A count of tokens as one would type it: ``90K``, ``262144``."""
    return f"{count // 1000}K" if count % 1000 == 0 else str(count)


class AutoRounds(Widget):
    """The need, a block for each round, and the end."""

    view: reactive[AutoView | None] = reactive(None, layout=True)

    def render(self) -> Content:
        """Signs say what colours say."""
        view = self.view
        if view is None:
            return Content("")
        lines = [Content.assemble((plain(view.need or "Planning …"), "bold"))]
        for row in view.rows:
            lines += [Content(""), *_row(row, view.of, over=view.ended)]
        if view.ended:
            lines += [Content(""), *_end(view)]
        elif view.aborting:
            lines += [Content(""), Content.assemble(("Taking over: what ran before is put back …", "bold $warning"))]
        return Content("\n").join(lines)


def _row(row: AutoRow, of: int, *, over: bool) -> list[Content]:
    sign, style = _SIGNS["over" if over else "running"] if row.met is None else _SIGNS[str(row.met)]
    place = {None: "Back", 0: "As it runs"}.get(row.number, f"Round {row.number} of {of} at the most")
    lines = [
        Content.assemble(
            (f"{sign} ", style), (place, "bold"), (f"  {row.name}" if row.name else "", "$foreground 60%")
        ),
        Content.assemble((f"  {plain(row.why)}", "$foreground 70%")),
    ]
    if row.planned:
        lines.append(Content.assemble(("  planned  ", "$foreground 60%"), row.planned))
    if row.now and not over:
        lines.append(Content.assemble(("  now      ", "$foreground 60%"), (plain(row.now), "bold")))
    if row.came:
        lines.append(Content.assemble(("  came     ", "$foreground 60%"), (plain(row.came), style)))
    return lines


def _end(view: AutoView) -> list[Content]:
    outcome = view.outcome
    if outcome is None:
        return [Content.assemble(("✗ ", "bold $error"), (plain(view.problem), "$error"))]
    if outcome.met:
        return [Content.assemble(("✓ ", "$success"), (f"The need is met by {outcome.winner}.", "bold"))]
    if outcome.ended is Ended.ABORTED:
        lines = [Content.assemble(("– ", "bold $warning"), ("Taken over before the need was met.", "bold"))]
    else:
        head = f"Not met ({outcome.ended}). "
        lines = [Content.assemble(("✗ ", "bold $error"), (head, "bold $error"), plain(outcome.reason))]
    if outcome.nearest is not None and outcome.nearest.fits:
        near = outcome.nearest
        lines.append(
            Content(
                f"The nearest that starts: {near.kv_tokens:,} KV tokens, {near.max_running_requests} requests, "
                f"{format_gib(near.ready_free_gib)} free at ready."
            )
        )
    if outcome.serving:
        lines.append(Content(f"The server of {outcome.serving} runs."))
    return lines


class AutoScreen(ModalScreen[None]):
    """Can be closed at any time: the work goes on, and the same key brings this back."""

    purpose = "Auto, round by round, and how to take over."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,enter", "dismiss", "Close", tooltip="Close this; the rounds go on"),
        Binding("x", "abort", "Take over", tooltip="End auto now and put back what ran before"),
        Binding("p", "phases", "Phases", tooltip="The start under way, phase by phase"),
        Binding("4,l", "log", "Log", tooltip="What the server prints"),
    ]

    @property
    def tuner(self) -> TunerApp:
        """The app with its type."""
        return cast("TunerApp", self.app)

    def compose(self) -> ComposeResult:
        """The rounds in a box that scrolls."""
        with VerticalScroll(classes="dialog wide", id="auto", can_focus=True):
            yield AutoRounds()
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Follows the app."""
        self.watch(self.app, "auto", self._draw)

    def _draw(self, view: AutoView | None) -> None:
        box = self.query_one("#auto", VerticalScroll)
        box.border_title = "Auto — SIMULATED, not a real SGLang" if self.tuner.simulated else "Auto"
        rounds = self.query_one(AutoRounds)
        more = view is not None and rounds.view is not None and len(view.rows) > len(rounds.view.rows)
        before, rounds.view = rounds.view, view
        if more:
            box.scroll_end(animate=False)
        if before is None or view is None or before.ended != view.ended:
            self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Only what is under way can be taken over."""
        if action in ("abort", "phases"):
            view = self.tuner.auto
            return view is not None and not view.ended
        return True

    def action_abort(self) -> None:
        """Asks auto to end; the app puts back what ran before."""
        self.tuner.workflow.abort()

    def action_phases(self) -> None:
        """The steps of the start under way."""
        self.dismiss()
        self.tuner.workflow.show_phases()

    def action_log(self) -> None:
        """To the log."""
        self.dismiss()
        self.tuner.go("log")
