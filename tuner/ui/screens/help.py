"""The keys of the screen one is on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

from tuner.text import clip


class KeyLine(msgspec.Struct, frozen=True):
    """One line of the help."""

    keys: str
    what: str
    more: str
    #: What the key is called in the settings file; empty when it cannot be changed.
    name: str = ""


def key_groups(screen: Screen[object]) -> dict[str, list[KeyLine]]:
    """Keys that work now, by where they belong: the widget in focus, the screen, everywhere."""
    groups: dict[str, dict[str, KeyLine]] = {"Here": {}, "This screen": {}, "Everywhere": {}}
    for active in screen.active_bindings.values():
        binding = active.binding
        if not binding.tooltip or binding.system or not active.enabled:
            continue
        where = "Everywhere" if active.node is screen.app else "This screen" if active.node is screen else "Here"
        key = binding.key_display or screen.app.get_key_display(binding)
        known = groups[where].get(binding.action)
        keys = f"{known.keys}, {key}" if known else key
        groups[where][binding.action] = KeyLine(keys, binding.description, binding.tooltip, binding.id or "")
    return {name: list(lines.values()) for name, lines in groups.items() if lines}


class HelpScreen(ModalScreen[None]):
    """Lists keys; any of them, or a click, closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,f1,enter,q", "dismiss", "Close", tooltip="Back to the screen"),
        Binding("G", "guide", "Guide", tooltip="The page of the guide on this screen"),
    ]

    def __init__(self, title: str, purpose: str, groups: Mapping[str, list[KeyLine]], settings: str) -> None:
        super().__init__()
        self._settings = settings
        self._title = title
        self._purpose = purpose
        self._groups = groups

    def compose(self) -> ComposeResult:
        """Groups of keys."""
        with VerticalScroll(classes="dialog wide", id="keys") as box:
            box.border_title = f"Keys: {self._title}"
            box.border_subtitle = "G opens the guide's page on this screen · Esc closes"
            yield Static(self._text(), markup=False)

    def on_mount(self) -> None:
        """Ready to scroll."""
        self.query_one("#keys").focus()

    def action_guide(self) -> None:
        """In place of the keys, the page on the screen below them."""
        from tuner.ui.screens.guide import GuideScreen, page_of  # read by few

        self.app.switch_screen(GuideScreen(page_of(self.app.screen_stack[-2])))

    def _text(self) -> Content:
        lines: list[Content] = [Content.assemble((self._purpose, "$foreground 80%"))] if self._purpose else []
        for name, group in self._groups.items():
            lines.append(Content.assemble((f"\n{name}" if lines else name, "bold $primary")))
            lines += [_line(line) for line in group]
        lines.append(Content.assemble(("\nMouse", "bold $primary")))
        lines.append(Content("  Drag a slider, turn the wheel on it, click values, rounds, names of screens and keys."))
        names = [line.name for group in self._groups.values() for line in group if line.name]
        if names:
            lines.append(Content.assemble(("\nOther keys", "bold $primary")))
            lines.append(Content(f'  In {self._settings}, under [keys], as "{names[0]}" = "f5". Names here:'))
            lines.append(Content.assemble((f"  {', '.join(names)}", "$foreground 60%")))
        return Content("\n").join(lines)


def _line(line: KeyLine) -> Content:
    return Content.assemble(
        (f"  {clip(line.keys, 14):<14} ", "bold"),
        f"{line.what:<13} ",
        (line.more if line.more != line.what else "", "$foreground 60%"),
    )
