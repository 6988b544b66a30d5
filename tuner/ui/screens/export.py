"""Where and as what a round is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import msgspec
from textual import on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from tuner.rounds.errors import HistoryError
from tuner.session.export import write_file
from tuner.ui.screens.choose import ChooseScreen
from tuner.ui.widgets.choice import Choice, Option
from tuner.ui.widgets.key_button import KeyButton

#: As ``tuner.session.export.FORMATS``; the label is the file's name, behind that of the round.
FORMATS = (
    Option("toml", "config.toml", "the recipe, for tuner run and tuner import"),
    Option("settings", "settings.json", "the recipe in the layout of settings.json"),
    Option("yaml", "config.yaml", "the flags for sglang's own --config"),
    Option("sh", "start.sh", "starts this server without the tuner"),
    Option("systemd", "sglang.service", "a systemd service that keeps this server up"),
    Option("docker", "docker.sh", "runs this server in SGLang's image"),
    Option("md", "report.md", "a report to share, with charts as text"),
    Option("json", "round.json", "everything about the round"),
)


class Written(msgspec.Struct, frozen=True):
    """What was written where."""

    path: str
    fmt: str


class ExportScreen(ModalScreen[Written | None]):
    """Writes one round to one file; asks again before it replaces one."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", tooltip="Write nothing"),
        Binding("up", "app.focus_previous", "Field above", show=False, tooltip="To the format"),
        Binding("down", "app.focus_next", "Field below", show=False, tooltip="To the file, to the buttons"),
    ]

    def __init__(self, name: str, text_of: Callable[[str], str]) -> None:
        super().__init__()
        self._name = name
        self._text_of = text_of
        self._replace = ""

    def compose(self) -> ComposeResult:
        """Format, path, what happened."""
        with Vertical(classes="dialog") as box:
            box.border_title = f"Export {self._name}"
            choice = Choice("Format", FORMATS, label_width=8, id="format")
            choice.set_reactive(Choice.value, FORMATS[0].key)
            yield choice
            yield Label("File (↑ goes to the format: ← → change it, Enter lists all)", classes="hint")
            yield Input(value=self._path(FORMATS[0]), id="path", select_on_focus=False)
            yield Static("", id="said", markup=False)
            with Horizontal(classes="buttons"):
                yield KeyButton("Write (Enter)", id="write", variant="primary", compact=True)
                yield KeyButton("Cancel (Esc)", id="cancel", compact=True)

    def on_mount(self) -> None:
        """Ready to write; the format is one step up."""
        self._explain()
        self.query_one(Input).focus()

    @on(Choice.Changed)
    def _chosen(self, event: Choice.Changed) -> None:
        event.stop()
        option = next(o for o in FORMATS if o.key == event.value)
        folder = Path(self.query_one(Input).value).parent
        self.query_one(Input).value = str(folder / self._path(option))
        self._explain()

    @on(Choice.Opened)
    def _opened(self, event: Choice.Opened) -> None:
        event.stop()
        choice = event.choice

        def chosen(key: str | None) -> None:
            if key is not None:
                choice.take(key)

        self.app.push_screen(ChooseScreen("Format", FORMATS, choice.value), chosen)

    @on(Input.Submitted)
    def _submitted(self, event: Input.Submitted) -> None:
        event.stop()
        self._write(event.value.strip())

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "write":
            self._write(self.query_one(Input).value.strip())
        else:
            self.dismiss(None)

    def _write(self, path: str) -> None:
        if not path:
            self._say("Give a file name.", bad=True)
            return
        self._save(path, self.query_one(Choice).value, replace=path == self._replace)

    @work(thread=True, exclusive=True, group="export")
    def _save(self, path: str, fmt: str, *, replace: bool) -> None:
        target = Path(path).expanduser()
        try:
            if target.exists() and not replace:
                self._replace = path
                self.app.call_from_thread(self._say, f"{target} is there already: Enter again replaces it.", bad=True)
                return
            write_file(target, self._text_of(fmt), fmt)
        except HistoryError as error:
            self.app.call_from_thread(self._say, str(error), bad=True)
            return
        except OSError as error:
            self.app.call_from_thread(
                self._say, f"{target} cannot be written: {error.strerror or error}. Take another folder.", bad=True
            )
            return
        self.app.call_from_thread(self.dismiss, Written(str(target), fmt))

    def _explain(self) -> None:
        option = next(o for o in FORMATS if o.key == self.query_one(Choice).value)
        self._say(option.why, bad=False)

    def _say(self, text: str, *, bad: bool) -> None:
        self.query_one("#said", Static).update(Content.assemble((text, "bold $warning" if bad else "$foreground 60%")))

    def _path(self, option: Option) -> str:
        stem, _, ending = option.label.partition(".")
        return f"{self._name}-{stem}.{ending}"
