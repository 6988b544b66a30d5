"""Where and as what a round or a preset is written."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shlex import quote
from typing import ClassVar

import msgspec
from textual import events, on, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, OptionList, Static
from textual.widgets.option_list import Option as Line

from tuner.place import expanded
from tuner.recipe.model import RecipeError
from tuner.rounds.errors import HistoryError
from tuner.session.export import RECIPE_FORMATS, write_file
from tuner.ui.widgets.choice import Option
from tuner.ui.widgets.key_button import KeyButton
from tuner.ui.widgets.row_list import RowList

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
#: What makes use of a file, by its format; {0} is its path, {1} its name.
_NEXT = {
    "toml": "tuner run {0} starts it.",
    "sh": "bash {0} starts it.",
    "docker": "bash {0} starts it.",
    "systemd": "As root: cp {0} /etc/systemd/system/ && systemctl enable --now {1}",
}


class Written(msgspec.Struct, frozen=True):
    """What was written where."""

    path: str
    fmt: str

    @property
    def next(self) -> str:
        """How it is put to use, in one sentence; empty where that needs none."""
        return _NEXT.get(self.fmt, "").format(quote(self.path), quote(Path(self.path).name))


class FormatList(RowList):
    """A click chooses a format; writing is another step."""

    async def _on_click(self, event: events.Click) -> None:
        """Only moves the cursor."""
        event.prevent_default()
        clicked = event.style.meta.get("option")
        if clicked is not None:
            self.highlighted = clicked


class ExportScreen(ModalScreen[Written | None]):
    """Writes one round, or one preset, to one file; asks again before it replaces one."""

    purpose = "Write it to a file."

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "dismiss(None)", "Cancel", tooltip="Write nothing"),
        Binding("up", "app.focus_previous", "Field above", show=False, tooltip="To the formats"),
        Binding("down", "app.focus_next", "Field below", show=False, tooltip="To the buttons"),
        *(
            Binding(str(number), f"format({number - 1})", option.label, show=False, tooltip=option.why.capitalize())
            for number, option in enumerate(FORMATS, 1)
        ),
    ]

    def __init__(self, name: str, text_of: Callable[[str], str], *, fmt: str = "toml", preset: bool = False) -> None:
        """``text_of`` gives the text of a format; a ``preset`` has nothing to report of."""
        super().__init__()
        self._name = name
        self._text_of = text_of
        self._formats = tuple(o for o in FORMATS if not preset or o.key in RECIPE_FORMATS)
        self._first = next(at for at, o in enumerate(self._formats) if o.key == fmt)
        self._replace = ""

    def compose(self) -> ComposeResult:
        """Formats, file, what happened."""
        with Vertical(classes="dialog") as box:
            box.border_title = Content(f"Export {self._name}")
            yield FormatList(
                *(self._line(number, option) for number, option in enumerate(self._formats, 1)), id="format"
            )
            yield Label(
                "File, in the folder where tuner was started unless it says another", classes="hint", id="where"
            )
            with Horizontal(classes="field"):
                yield Input(
                    value=self._path(self._formats[self._first]), id="path", compact=True, select_on_focus=False
                )
            yield Static("", id="said", markup=False)
            with Horizontal(classes="buttons"):
                yield KeyButton("Write (Enter)", id="write", variant="primary", compact=True)
                yield KeyButton("Cancel (Esc)", id="cancel", compact=True)

    def _line(self, number: int, option: Option) -> Line:
        return Line(
            Content.assemble(
                (f" {number} ", "bold $primary"), (f" {option.label:<16}", "bold"), (option.why, "$foreground 70%")
            ),
            id=option.key,
        )

    def on_mount(self) -> None:
        """Ready to choose, and to write."""
        listing = self.query_one(FormatList)
        listing.highlighted = self._first
        listing.focus()
        self._say(f"↑ ↓ or 1 to {len(self._formats)} choose, Tab goes to the name of the file.", bad=False)

    def action_format(self, at: int) -> None:
        """One of the formats."""
        if at < len(self._formats):
            self.query_one(FormatList).highlighted = at

    @on(OptionList.OptionHighlighted)
    def _chosen(self, event: OptionList.OptionHighlighted) -> None:
        event.stop()
        folder = Path(self.query_one(Input).value).parent
        self.query_one(Input).value = str(folder / self._path(self._formats[event.option_index]))

    @on(OptionList.OptionSelected)
    @on(Input.Submitted)
    def _entered(self, event: OptionList.OptionSelected | Input.Submitted) -> None:
        event.stop()
        self._write()

    @on(Button.Pressed)
    def _pressed(self, event: Button.Pressed) -> None:
        event.stop()
        if event.button.id == "write":
            self._write()
        else:
            self.dismiss(None)

    def _write(self) -> None:
        path, at = self.query_one(Input).value.strip(), self.query_one(FormatList).highlighted
        if not path or at is None:
            self._say("Give a file name.", bad=True)
            return
        self._save(path, self._formats[at].key, replace=path == self._replace)

    @work(thread=True, exclusive=True, group="export")
    def _save(self, path: str, fmt: str, *, replace: bool) -> None:
        target = expanded(path).absolute()
        try:
            if target.exists() and not replace:
                self._replace = path
                self.app.call_from_thread(self._say, f"{target} is there already: Enter again replaces it.", bad=True)
                return
            write_file(target, self._text_of(fmt), fmt)
        except (HistoryError, RecipeError) as error:
            self.app.call_from_thread(self._say, str(error), bad=True)
            return
        except OSError as error:
            self.app.call_from_thread(
                self._say, f"{target} cannot be written: {error.strerror or error}. Take another folder.", bad=True
            )
            return
        self.app.call_from_thread(self.dismiss, Written(str(target), fmt))

    def _say(self, text: str, *, bad: bool) -> None:
        self.query_one("#said", Static).update(Content.assemble((text, "bold $warning" if bad else "$foreground 60%")))

    def _path(self, option: Option) -> str:
        stem, _, ending = option.label.partition(".")
        return f"{self._name}-{stem}.{ending}"
