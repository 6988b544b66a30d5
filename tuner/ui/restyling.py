"""An app that changes its colours in turns, so that nothing else waits long for its own.

Textual's ``App.refresh_css`` reads all style rules anew, gives them to every widget and lays the screen out, in one go:
on the Tune screen that holds the event loop for 60 to 110 ms, and once more for each screen that is opened after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

from textual import work
from textual.app import App
from textual.css.stylesheet import Stylesheet
from textual.screen import Screen

#: Widgets that get their new styles in one turn: some 8 ms.
_WIDGETS_A_TURN = 10
#: Seconds in which whatever waits has its turn. More than 0: a timer that is due comes only after a real pause.
PAUSE_S = 0.001


class RestylingApp(App[None]):
    """Takes another theme step by step: the screen in sight first, with nothing painted in between, then the others."""

    #: The theme that the style rules were read for, once they have been read again.
    _read_for = ""

    def refresh_css(self, animate: bool = True) -> None:
        """Gives the styles anew, in turns. For another theme, which is when Textual asks for no animation, all of them.

        Else it is for a screen that is opened before its turn has come.
        """
        if not self.screen_stack:
            super().refresh_css(animate)
        elif animate:
            unseen = ExitStack()
            unseen.enter_context(self.batch_update())
            self.call_next(self._restyle_opened, unseen)
        else:
            self.call_next(self._restyle)

    async def _restyle(self) -> None:
        await asyncio.sleep(PAUSE_S)
        with self.batch_update():
            self.stylesheet = await self._read_styles()
            self.stylesheet.update_nodes([self])
            await self._give_styles(self.screen_stack)
            self.screen.refresh()
        self._restyle_others()

    async def _restyle_opened(self, unseen: ExitStack) -> None:
        with unseen:
            await self._give_styles(self.screen_stack)

    @work(group="restyle", exclusive=True)
    async def _restyle_others(self) -> None:
        # Textual has no public word for them; what it keeps elsewhere is restyled when it is opened.
        stacks: dict[str, list[Screen[Any]]] = getattr(self, "_screen_stacks", {})
        for stack in list(stacks.values()):
            await self._give_styles(stack)

    async def _read_styles(self) -> Stylesheet:
        """All rules for the theme of now: one source a turn, and what has been read is not read again.

        A screen that is opened meanwhile may bring a source. Of two rules the later wins, so they stay in order.
        """
        self._read_for = self.theme
        sheet = Stylesheet(variables=self.get_css_variables())
        while missing := dict(self.stylesheet.source.items() - sheet.source.items()):
            for place in [place for place in self.stylesheet.source if place in missing]:
                css, is_default_css, tie_breaker, scope = missing[place]
                sheet.add_source(css, place, is_default_css, tie_breaker, scope)
                sheet.parse()
                await asyncio.sleep(PAUSE_S)
        return sheet

    async def _give_styles(self, screens: Iterable[Screen[Any]]) -> None:
        for screen in screens:
            if screen._css_update_count == self._count_of_styles:
                continue
            nodes = list(screen.walk_children(with_self=True))
            for start in range(0, len(nodes), _WIDGETS_A_TURN):
                await asyncio.sleep(PAUSE_S)
                self.stylesheet.update_nodes(
                    node for node in nodes[start : start + _WIDGETS_A_TURN] if node.is_attached
                )
            if self._count_of_styles is not None:
                screen._css_update_count = self._count_of_styles

    @property
    def _count_of_styles(self) -> int | None:
        """What Textual notes at a screen that has the styles of now; None while these are about to change again."""
        count: int | None = getattr(self, "_css_update_count", None)
        return count if self._read_for in ("", self.theme) else None
