"""What the plan and the running round have found, with evidence and remedies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from tuner.findings import Finding
from tuner.ui.widgets.findings_list import findings_text


class FindingsScreen(ModalScreen[None]):
    """Groups of findings to scroll through."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,enter,i", "dismiss", "Close", tooltip="Back")]

    def __init__(self, groups: Sequence[tuple[str, Sequence[Finding]]]) -> None:
        super().__init__()
        self._groups = groups

    def compose(self) -> ComposeResult:
        """One paragraph a finding."""
        with VerticalScroll(classes="dialog wide", id="findings") as box:
            box.border_title = "Findings"
            box.border_subtitle = "Esc closes"
            yield Static(self._text(), markup=False)

    def on_mount(self) -> None:
        """Ready to scroll."""
        self.query_one("#findings").focus()

    def _text(self) -> Content:
        parts: list[Content] = []
        for title, findings in self._groups:
            if findings:
                parts.append(Content.assemble((title, "bold $primary")))
                parts.append(findings_text(findings, evidence=True))
                parts.append(Content(""))
        if not parts:
            return Content.assemble(("Nothing found: no advice on this plan or this server.", "$foreground 70%"))
        return Content("\n").join(parts[:-1])
