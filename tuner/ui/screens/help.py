"""The keys of the screen one is on."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import ClassVar

import msgspec
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import Screen

from tuner.text import clip, wrapped
from tuner.ui.screens.overlay import Overlay
from tuner.ui.widgets.sheet import Sheet

#: Cells before what a key does.
_KEYS, _NAME = 15, 14


class KeyLine(msgspec.Struct, frozen=True):
    """One line of the help."""

    keys: str
    what: str
    more: str
    #: What the key is called in the settings file; empty when it cannot be changed.
    name: str = ""


def key_groups(screen: Screen[object], without: Collection[str] = ()) -> dict[str, list[KeyLine]]:
    """Keys that work now but for the actions ``without``, by where they belong: widget in focus, screen, everywhere."""
    groups: dict[str, dict[str, KeyLine]] = {"Here": {}, "This screen": {}, "Everywhere": {}}
    for active in screen.active_bindings.values():
        binding = active.binding
        if not binding.tooltip or binding.system or not active.enabled:
            continue
        # A screen shows some keys of the app beside its own.
        if binding.action.removeprefix("app.") in without:
            continue
        where = "Everywhere" if active.node is screen.app else "This screen" if active.node is screen else "Here"
        key = binding.key_display or screen.app.get_key_display(binding)
        known = groups[where].get(binding.action)
        keys = f"{known.keys}, {key}" if known else key
        groups[where][binding.action] = KeyLine(keys, binding.description, binding.tooltip, binding.id or "")
    return {name: list(lines.values()) for name, lines in groups.items() if lines}


class HelpText(Sheet):
    """Groups of keys; a long line goes on below its words, not below its key."""

    def __init__(self, purpose: str, groups: Mapping[str, list[KeyLine]], settings: str) -> None:
        super().__init__()
        self._purpose = purpose
        self._groups = groups
        self._settings = settings

    def text(self, cells: int) -> Content:
        """All of it."""
        lines = [Content.assemble((part, "$foreground 80%")) for part in wrapped(self._purpose, cells) if part]
        for name, group in self._groups.items():
            lines.append(Content.assemble((f"\n{name}" if lines else name, "bold $primary")))
            lines += [part for line in group for part in _line(line, cells)]
        lines.append(Content.assemble(("\nMouse", "bold $primary")))
        lines += _indented(
            "Drag a slider, turn the wheel on it, click values, rounds, names of screens and keys.", cells, ""
        )
        names = [line.name for group in self._groups.values() for line in group if line.name]
        if names:
            lines.append(Content.assemble(("\nOther keys", "bold $primary")))
            lines += _indented(f'In {self._settings}, under [keys], as "{names[0]}" = "f5". Names here:', cells, "")
            lines += _indented(", ".join(names), cells, "$foreground 60%")
        return Content("\n").join(lines)


class HelpScreen(Overlay[None]):
    """Lists keys; any of them, or a click, closes it."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,f1,enter,q", "dismiss", "Close", tooltip="Back to the screen"),
        Binding("G", "guide", "Guide", tooltip="The page of the guide on this screen"),
    ]

    def __init__(self, title: str, purpose: str, groups: Mapping[str, list[KeyLine]], settings: str) -> None:
        super().__init__()
        self._title = title
        self._told = HelpText(purpose, groups, settings)

    def compose(self) -> ComposeResult:
        """Groups of keys."""
        with VerticalScroll(classes="dialog wide", id="keys") as box:
            box.border_title = f"Keys: {self._title}"
            box.border_subtitle = "G opens the guide's page on this screen · Esc closes"
            yield self._told

    def on_mount(self) -> None:
        """Ready to scroll."""
        self.query_one("#keys").focus()

    def action_guide(self) -> None:
        """In place of the keys, the page on the screen below them."""
        from tuner.ui.screens.guide import GuideScreen, page_of  # read by few

        self.app.switch_screen(GuideScreen(page_of(self.app.screen_stack[-2])))


def _line(line: KeyLine, cells: int) -> list[Content]:
    more = line.more if line.more != line.what else ""
    # A name that is longer than its column has one blank behind it.
    name = f"{line.what:<{_NAME - 1}} "
    first, *rest = wrapped(more, max(20, cells - 2 - _KEYS - len(name)))
    head = Content.assemble((f"  {clip(line.keys, _KEYS - 1):<{_KEYS}}", "bold"), name, (first, "$foreground 60%"))
    indent = " " * (2 + _KEYS + len(name))
    return [head, *(Content.assemble((f"{indent}{part}", "$foreground 60%")) for part in rest)]


def _indented(text: str, cells: int, style: str) -> list[Content]:
    return [Content.assemble((f"  {part}", style)) for part in wrapped(text, cells - 2)]
