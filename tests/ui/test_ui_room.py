"""Room is used: nothing is said twice, no line is left empty for nothing, and long texts are set in."""

from __future__ import annotations

import threading

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.content import Content
from textual.widgets import OptionList
from uifakes import DEMO, FakeSession
from uiscreen import Opened, screen_text, until

from tuner.advice import Advice, Lever, Proposal
from tuner.rounds.model import RoundState
from tuner.text import width
from tuner.ui.round_text import round_text
from tuner.ui.screens.doctor import DoctorScreen
from tuner.ui.screens.presets import PresetsScreen
from tuner.ui.widgets.set_in import set_in

TITLE = "Move memory from states to KV: ratio 0.9 to 0.3"
RATIO = Proposal(
    id="smaller-ratio", lever=Lever.RATIO, title=TITLE, flags={"mamba_full_memory_ratio": 0.3}, reason="More KV.",
    evidence=(), gives_up="42 slots", risk="", effects=(),
)  # fmt: skip
LOWER = f"{TITLE[:1].lower()}{TITLE[1:]}"


@pytest.mark.parametrize(
    ("sentence", "shown"),
    [
        (f"{TITLE}.", "No need is stated, no work was seen yet: see below."),
        (f"Needed: 3 requests at once. One change serves it: {LOWER}.", "One change serves it: see below."),
        ("Good enough, stop.", "Good enough, stop."),
    ],
)
async def test_the_outlook_does_not_repeat_the_proposal_below_it(
    session: FakeSession, opened: Opened, sentence: str, shown: str
) -> None:
    session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    session.advice = Advice(enough=False, sentence=sentence, proposals=(RATIO,))
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: TITLE in screen_text(app))
        listed = screen_text(app, app.screen.query_one(OptionList).region)
        assert shown in listed and listed.lower().count(TITLE.lower()) == 1


@pytest.mark.parametrize(("key", "screen"), [("5", DoctorScreen), ("6", PresetsScreen)])
async def test_on_a_wide_terminal_what_is_chosen_stands_beside_the_list(
    session: FakeSession, opened: Opened, key: str, screen: type[DoctorScreen | PresetsScreen]
) -> None:
    session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    detail = "#case" if screen is DoctorScreen else "#preset"
    async with opened(size=(160, 45)) as (app, pilot):
        await pilot.press(key)
        await until(pilot, lambda: isinstance(app.screen, screen) and app.screen.query_one(OptionList).option_count > 0)
        await pilot.pause()
        left, right = app.screen.query_one(OptionList).region, app.screen.query_one(detail).region
        assert left.right <= right.x and left.y == right.y and right.height > 35
        await pilot.resize_terminal(100, 30)
        await until(pilot, lambda: app.screen.size.width == 100)
        await pilot.pause()
        left, right = app.screen.query_one(OptionList).region, app.screen.query_one(detail).region
        assert left.bottom <= right.y and left.x == right.x


async def test_a_late_fatal_finding_is_what_the_cursor_stands_on_until_it_is_moved(
    session: FakeSession, opened: Opened
) -> None:
    session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: isinstance(app.screen, DoctorScreen) and bool(app.screen.shown))
        await pilot.press("1")
        session.fail_in = "sizing pools"
        session.server = None
        session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
        app.history_version += 1
        await pilot.press("5")
        await until(pilot, lambda: "in r2" in screen_text(app))
        listing = app.screen.query_one(OptionList)
        assert listing.highlighted == 0
        await pilot.press("down")
        await until(pilot, lambda: listing.highlighted == 1)
        app.history_version += 1
        await pilot.pause(0.1)
        assert listing.highlighted == 1


async def test_one_line_is_held_for_what_binds_and_no_more(session: FakeSession, opened: Opened) -> None:
    session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("7")
        await until(pilot, lambda: "KV pool" in screen_text(app))
        lines = screen_text(app).splitlines()
        binds = next(i for i, line in enumerate(lines) if "Binds now" in line)
        assert "KV pool" in lines[binds + 2]


@given(
    text=st.text(alphabet="ab 模型é", min_size=3, max_size=120),
    by=st.integers(0, 3),
    cells=st.integers(16, 60),
)
@settings(max_examples=60, deadline=None)
def test_a_paragraph_stays_within_its_cells_with_what_follows_set_in(text: str, by: int, cells: int) -> None:
    head, *rest = set_in(Content("!" * by + text), cells, by).plain.split("\n")
    assert head.startswith("!" * by)
    assert all(line.startswith(" " * by) for line in rest)
    assert all(width(line.rstrip()) <= cells for line in (head, *rest))
    assert "".join("".join((head, *rest)).split()) == "".join(("!" * by + text).split())


def test_evidence_and_reasons_of_a_failed_round_are_set_in_and_come_first(session: FakeSession) -> None:
    session.fail_in = "sizing pools"
    failed = session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    finding = msgspec.structs.replace(failed.findings[0], evidence=("RuntimeError: " + "so it went on " * 12,))
    failed = msgspec.structs.replace(failed, findings=(finding,), state=RoundState.FAILED)
    lines = round_text(failed, 60, full=True, good="r1").plain.split("\n")
    told = next(i for i, line in enumerate(lines) if line.startswith("    RuntimeError"))
    assert lines[told + 1].startswith("    so it") or lines[told + 1].startswith("    went")
    assert max(width(line) for line in lines[told : told + 3]) <= 60
    back = next(i for i, line in enumerate(lines) if "r1 is the last good round" in line)
    pools = next(i for i, line in enumerate(lines) if line.startswith("KV tokens"))
    assert told < back < pools
