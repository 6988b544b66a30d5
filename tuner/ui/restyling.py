"""An app that changes its colours in turns, so that nothing else waits long for its own.

Textual's ``App.refresh_css`` reads all style rules anew, gives them to every widget and lays the screen out, in one go:
on the Tune screen that holds the event loop for 60 to 110 ms, and once more for each screen that is opened after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from textual.app import App
from textual.screen import Screen

#: Widgets that get their new styles in one turn: some 8 ms.
_WIDGETS_A_TURN = 10
#: Seconds in which whatever waits has its turn. More than 0: a timer that is due comes only after a real pause.
PAUSE_S = 0.001


class RestylingApp(App[None]):
    """Takes another theme step by step: the screen in sight first, with nothing painted in between, then the others."""

    #: The theme that the style rules were read for.
    _read_for = ""

    def refresh_css(self, animate: bool = True) -> None:
        """Reads the styles anew. For another theme, which is when Textual asks for no animation, in turns."""
        if not self.screen_stack:
            super().refresh_css(animate)
        elif not animate:
            self.call_next(self._restyle)
        elif self._read_for != self.theme:
            super().refresh_css()
            self._read_for = self.theme
        else:
            # A screen that is opened before its turn has come; whoever opens it lays it out.
            for screen in self.screen_stack:
                self.stylesheet.update(screen)
                self._styled(screen)

    async def _restyle(self) -> None:
        await asyncio.sleep(PAUSE_S)
        with self.batch_update():
            self.stylesheet.set_variables(self.get_css_variables())
            self.stylesheet.reparse()
            self._read_for = self.theme
            self.stylesheet.update_nodes([self])
            await self._give_styles(self.screen_stack)
            self.screen.refresh(layout=True)
        self.run_worker(self._restyle_others(), group="restyle", exclusive=True)

    async def _restyle_others(self) -> None:
        # Textual has no public word for them; what it keeps elsewhere is restyled when it is opened.
        stacks: dict[str, list[Screen[Any]]] = getattr(self, "_screen_stacks", {})
        for mode, stack in list(stacks.items()):
            if mode != self.current_mode:
                await self._give_styles(stack)

    async def _give_styles(self, screens: Iterable[Screen[Any]]) -> None:
        for screen in screens:
            nodes = list(screen.walk_children(with_self=True))
            for start in range(0, len(nodes), _WIDGETS_A_TURN):
                await asyncio.sleep(PAUSE_S)
                self.stylesheet.update_nodes(nodes[start : start + _WIDGETS_A_TURN])
            self._styled(screen)

    def _styled(self, screen: Screen[Any]) -> None:
        """Notes that a screen has the styles of now, where Textual counts that as it does today."""
        known = getattr(self, "_css_update_count", None)
        if known is not None:
            screen._css_update_count = known
