"""The first run: what is here, and the few things that cannot be found asked for; it ends with a recipe or the demo."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import ClassVar, Literal

import msgspec
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Button, Footer, Input, Label, Static

from tuner.recipe.model import Recipe
from tuner.session.finding_here import Finder, Found, FoundInterpreter, FoundModel, FoundServer, NotHere
from tuner.session.first_recipe import Options, first_recipe, options
from tuner.text import clip, plain, wrapped
from tuner.ui.screens.choose import choose_for
from tuner.ui.widgets.choice import Choice, Option
from tuner.ui.widgets.key_button import KeyButton
from tuner.units import format_gib

_EVERY_S = 0.2
_OTHER = "another"
_SHOWN_CELLS = 54
#: Of a sentence below what was found, in the dialog of the smallest terminal.
_WHY_CELLS = 62
_LABEL = 8


class FirstRun(msgspec.Struct, frozen=True, kw_only=True):
    """How it ended: with a recipe, or with the demo. ``words`` say what was found, for the operator."""

    recipe: Recipe | None = None
    words: str = ""
    demo: bool = False


class FirstRunScreen(ModalScreen[FirstRun | None]):
    """Answers how to begin; None: as it is."""

    purpose = "What this machine has, and what is left to say."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("ctrl+o", "open", "Open", id="first.open", tooltip="Plan with what is chosen here"),
        Binding("f5", "again", "Look again", id="first.again", tooltip="Look around once more"),
        Binding("f2", "demo", "Demo", id="first.demo", tooltip="The demo: a stand-in server, no GPU, on any machine"),
        Binding("escape", "dismiss(None)", "Close", tooltip="Without a recipe; 6 lists the presets"),
        Binding("ctrl+q", "app.quit", "Quit", show=False, tooltip="Leave"),
        Binding("up", "app.focus_previous", "Field above", show=False, tooltip="To the field above"),
        Binding("down", "app.focus_next", "Field below", show=False, tooltip="To the field below"),
    ]

    def __init__(self, make: Callable[[], Finder]) -> None:
        """``make`` gives a finder for one look around."""
        super().__init__()
        self._make = make
        self._finder = make()
        self._options = Options()
        self._asked = False

    def compose(self) -> ComposeResult:
        """What is found, the questions, the ways on."""
        with VerticalScroll(classes="dialog wide", id="first", can_focus=False) as box:
            box.border_title = "First run"
            yield Static(id="here", markup=False)
            yield Vertical(id="asked")
            yield Static(id="wrong", markup=False)
            with Horizontal(classes="buttons"):
                yield KeyButton("Open the plan (^o)", id="open", variant="primary", compact=True)
                yield KeyButton("Look again (F5)", id="again", compact=True)
                yield KeyButton("Demo (F2)", id="demo", compact=True)
        yield Footer(show_command_palette=False, compact=True)

    def on_mount(self) -> None:
        """Looks around."""
        self.query_one(".buttons").display = False
        self.set_interval(_EVERY_S, self._draw)
        self._look()

    def _look(self) -> None:
        # A daemon: a folder on a disk that hangs must not hold up anything, nor the end of the app.
        threading.Thread(target=self._finder.look, name="tuner-find", daemon=True).start()
        self._draw()

    def _draw(self) -> None:
        found = self._finder.found()
        self.query_one("#here", Static).update(_found_text(found))
        if self._asked or not (found.over or found.cut):
            return
        self._asked = True
        self._options = options(found)
        if self._options.settled:
            self.action_open()
            return
        self._ask()

    @work(exclusive=True, group="ask")
    async def _ask(self) -> None:
        asked, known = self.query_one("#asked", Vertical), self._options
        python = [Option(i.path, f"{i.version}  {i.path}") for i in known.interpreters]
        model = [Option(m.path, _model_words(m), m.path) for m in known.models]
        rows = [
            *_field("python", "SGLang", python, "/path/to/env/bin/python (empty: plan only)"),
            *_field("model", "Model", model, "/path/to/the/model/folder"),
        ]
        async with self.batch():
            await asked.remove_children()
            await asked.mount(*rows)
        self.query_one(".buttons").display = True
        first = "#demo" if known.nothing else "#model-path" if not known.models else "#model"
        self.query_one(first).focus()

    @on(Choice.Changed)
    def _chosen(self, event: Choice.Changed) -> None:
        row = self.query_one(f"#{event.choice.id}-row")
        row.display = event.value == _OTHER
        if row.display:
            row.query_one(Input).focus()

    @on(Choice.Opened)
    @work
    async def _opened(self, event: Choice.Opened) -> None:
        await choose_for(self.app, event.choice)

    @on(Input.Submitted)
    def _entered(self) -> None:
        self.action_open()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        {"open": self.action_open, "again": self.action_again, "demo": self.action_demo}[event.button.id or ""]()

    def action_again(self) -> None:
        """Once more from the start."""
        self._finder = self._make()
        self._asked = False
        self.query_one(".buttons").display = False
        self.query_one("#asked").remove_children()
        self._say("")
        self._look()

    def action_demo(self) -> None:
        """The demo."""
        self.dismiss(FirstRun(demo=True))

    def action_open(self) -> None:
        """Plans with what is chosen, once there is something."""
        known = self._options
        if not self._asked:
            return
        if known.server is not None:
            words = f"SGLang runs on port {known.server.port} (process {known.server.pid}): its flags are here."
            self.dismiss(FirstRun(recipe=known.server.recipe, words=words))
            return
        if known.settled:
            self._begin(known.interpreters[0], known.models[0])
            return
        try:
            python, model = self._python(), self._model()
        except NotHere as error:
            self._say(str(error))
            return
        self._begin(python, model)

    def _begin(self, python: FoundInterpreter | None, model: FoundModel) -> None:
        gpus = self._options.gpus
        recipe = first_recipe(python.path if python else "", model.path, model.name, model.weights_gib, gpus)
        with_what = f" with SGLang {python.version}" if python else ", to plan only: no interpreter is named"
        self.dismiss(FirstRun(recipe=recipe, words=f"{model.name}{with_what}."))

    def _python(self) -> FoundInterpreter | None:
        chosen, text = self._answer("python")
        if chosen is not None or not text:
            return next((i for i in self._options.interpreters if i.path == chosen), None)
        return self._finder.interpreter_at(text)

    def _model(self) -> FoundModel:
        chosen, text = self._answer("model")
        model = next((m for m in self._options.models if m.path == chosen), None)
        if model is not None:
            return model
        if not text:
            self.query_one("#model-path", Input).focus()
            raise NotHere("Say which model: the folder that holds its config.json and weights.")
        return self._finder.model_at(text)

    def _answer(self, name: Literal["python", "model"]) -> tuple[str | None, str]:
        """The option chosen, or what is written where none is."""
        for choice in self.query(f"#{name}").results(Choice):
            if choice.value != _OTHER:
                return choice.value, ""
        return None, self.query_one(f"#{name}-path", Input).value.strip()

    def _say(self, words: str) -> None:
        text = Content.assemble(("✗ ", "bold $error"), (plain(words), "$error")) if words else Content("")
        self.query_one("#wrong", Static).update(text)


def _field(name: str, label: str, listed: list[Option], hint: str) -> list[Widget]:
    """A choice among what was found, with a way to write another; where nothing was found, only that."""
    path = Horizontal(
        Label(f"  {'' if listed else label:<{_LABEL}}"),
        Input(placeholder=hint, id=f"{name}-path", compact=True),
        classes="field",
        id=f"{name}-row",
    )
    if not listed:
        return [path]
    path.display = False
    choice = Choice(label, (*listed, Option(_OTHER, "another …", "write its path")), label_width=_LABEL, id=name)
    choice.value = listed[0].key
    return [choice, path]


def _found_text(found: Found) -> Content:
    """One line a kind of thing: what there is, or that there is none."""
    done = found.over or found.cut
    gpus = [f"{plain(g.name or 'a card')}, {_free(g.free_mib)} free" for g in found.gpus]
    # Those whose flags can be taken first: one that cannot is nothing to begin with.
    usable = sorted(found.servers, key=lambda server: server.recipe is None)
    servers = [_server_words(server) for server in usable]
    problem = usable[0].problem if usable else ""
    pythons = [f"{i.version} in {i.path}" for i in found.interpreters]
    models = [_model_words(m) for m in found.models]
    row = partial(_row, done=done)
    lines = [
        row("GPU", gpus, "none can be read: NVIDIA's driver tells of none"),
        row("Server", servers, "none runs", problem=plain(problem)),
        row("SGLang", pythons, "no environment that has it"),
        row("Model", models, "no folder with a config.json and weights"),
    ]
    if not done:
        where = f"looking … {found.folders} folders · {clip(plain(found.at), _SHOWN_CELLS)}"
        lines.append(Content.assemble(("◐ ", "bold $primary"), (where, "$foreground 60%")))
    else:
        short = " The time for it ran out: F5 looks again, or write the path." if found.cut else ""
        if not (gpus or servers or pythons or models):
            short = " Nothing of SGLang is here: F2 shows the tuner on a stand-in server."
        lines.append(Content.assemble((f"  {found.folders} folders looked into.{short}", "$foreground 60%")))
    return Content("\n").join(lines)


def _row(label: str, found: list[str], none: str, *, done: bool, problem: str = "") -> Content:
    """``problem``: why the first one found is of no use here; it stands below."""
    if found:
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        mark = ("! ", "bold $warning") if problem else ("✓ ", "$success")
        head = Content.assemble(
            mark, (f"{label:<{_LABEL}}", "bold"), clip(found[0], _SHOWN_CELLS), (more, "$foreground 60%")
        )
        why = [
            Content.assemble((f"{'':<{_LABEL + 2}}{part}", "$foreground 60%")) for part in wrapped(problem, _WHY_CELLS)
        ]
        return Content("\n").join([head, *(why if problem else [])])
    sign, style = ("– ", "$warning") if done else ("○ ", "$foreground 40%")
    return Content.assemble((sign, style), (f"{label:<{_LABEL}}", "bold"), (none if done else "…", "$foreground 60%"))


def _model_words(model: FoundModel) -> str:
    kind = "hybrid" if model.hybrid else "no states"
    return f"{plain(model.name)} · {format_gib(model.weights_gib)} · {kind}"


def _free(mib: int | None) -> str:
    return "?" if mib is None else format_gib(mib / 1024)


def _server_words(server: FoundServer) -> str:
    if server.recipe is None:
        # Without its flags the port is a guess.
        return f"process {server.pid} of SGLang, flags unknown"
    return f"on port {server.port}, process {server.pid}"
