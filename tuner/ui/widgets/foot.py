"""The line of keys at the bottom."""

from __future__ import annotations

from collections.abc import Collection

from textual.app import ComposeResult
from textual.widgets import Footer
from textual.widgets._footer import FooterKey


class Foot(Footer):
    """The keys of a screen; on a narrow terminal those that can be spared give way to the ones that everyone needs."""

    def __init__(self, spare: Collection[str] = (), hidden: Collection[str] = ()) -> None:
        """``spare``: actions whose keys a narrow terminal does not show here; ``hidden``: those that none shows."""
        super().__init__(show_command_palette=False, compact=True)
        self._spare = spare
        self._hidden = hidden

    def compose(self) -> ComposeResult:
        """Textual's without the hidden ones, the spare ones marked."""
        # Each key watches whether the line is compact, and Textual forgets those that are gone only when that is set.
        self.mutate_reactive(Footer.compact)
        for shown in super().compose():
            if isinstance(shown, FooterKey) and shown.action.removeprefix("app.") in self._hidden:
                continue
            if isinstance(shown, FooterKey) and shown.action in self._spare:
                shown.add_class("-spare")
            yield shown
