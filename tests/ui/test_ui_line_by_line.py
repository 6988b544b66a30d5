"""A widget that sends only its changed lines stays right when its width changes."""

from __future__ import annotations

import pytest
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.geometry import Region
from uiscreen import screen_text

from tuner.text import wrapped
from tuner.ui.widgets.rows import Rows


class Said(Rows):
    """Sentences wrapped at the width; drawn as they are with ``whole``."""

    DEFAULT_CSS = "Said { height: auto; text-wrap: nowrap; text-overflow: clip; }"

    def __init__(self, sentences: list[str], *, whole: bool = False) -> None:
        super().__init__()
        self.sentences = sentences
        self.whole = whole

    def lines(self, cells: int) -> list[Content]:
        return [
            Content(part) for words in self.sentences for part in ([words] if self.whole else wrapped(words, cells))
        ]


class Page(App[None]):
    def __init__(self, said: Said) -> None:
        super().__init__()
        self.said = said

    def compose(self) -> ComposeResult:
        yield VerticalScroll(self.said)


def sentences(count: int) -> list[str]:
    return [f"{number} " + "word " * (3 + 7 * number % 11) + "end" for number in range(count)]


async def drawn(sizes: list[tuple[int, int]], changed: str, *, whole: bool = False) -> str:
    """The screen after all these sizes and a change of one line at the last."""
    said = Said(sentences(9), whole=whole)
    app = Page(said)
    async with app.run_test(size=sizes[0]) as pilot:
        for size in sizes[1:]:
            await pilot.resize_terminal(*size)
            said.redraw()
            await pilot.pause()
        said.sentences[4] = changed
        said.redraw()
        await pilot.pause()
        return screen_text(app, Region(0, 0, sizes[-1][0] - 2, sizes[-1][1]))


@pytest.mark.parametrize("before", [(80, 40), (30, 12), (21, 30), (60, 9)])
@pytest.mark.parametrize("now", [(40, 40), (24, 12), (33, 10)])
async def test_after_another_size_all_lines_are_those_of_the_new_one(
    before: tuple[int, int], now: tuple[int, int]
) -> None:
    assert await drawn([before, now], "4 other words end") == await drawn([now], "4 other words end")


async def test_a_line_that_is_too_long_is_cut_and_moves_none_below() -> None:
    lines = (await drawn([(30, 20)], "4 changed", whole=True)).split("\n")
    assert [line.split()[0] for line in lines if line] == [str(number) for number in range(9)]


async def test_a_line_less_lays_nothing_out() -> None:
    said = Said(sentences(9), whole=True)
    app = Page(said)
    async with app.run_test(size=(60, 20)) as pilot:
        said.sentences.pop()
        said.redraw()
        await pilot.pause()
        assert said.size.height == 9
        del said.sentences[3:]
        said.redraw()
        await pilot.pause()
        assert said.size.height == 3
