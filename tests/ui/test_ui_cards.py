"""Several cards on the Live screen and the strip: seen, told apart, and drawn right at any size."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ui_live import serve
from textual.geometry import Region
from textual.pilot import Pilot
from uifakes import FakeSession
from uiscreen import Opened, screen_text, until

from tuner.metrics.model import GpuInstance, GpuProcess, GpuReading
from tuner.server.holders import Holder
from tuner.text import width
from tuner.ui.app import TunerApp
from tuner.ui.ascii import to_ascii
from tuner.ui.card_lines import card_lines, holder_words, names_line
from tuner.ui.screens.live import Facts
from tuner.ui.widgets.live_strip import LiveStrip, figures


def cards(count: int, *, processes: int = 2) -> tuple[GpuReading, ...]:
    """Cards of one kind that differ in load; odd ones have longer lines, so that some wrap and some do not."""
    return tuple(
        GpuReading(
            index=at, name="NVIDIA GeForce RTX 5090", total_mib=32_607, used_mib=27_900 - 3_000 * at,
            utilisation=98 - at, power_w=509.0 - 60 * at, power_limit_w=575.0, temperature_c=54, clock_mhz=2600,
            throttled=("power limit",) if at % 2 else (),
            processes=tuple(
                GpuProcess(pid=2**30 + 10 * at + number, memory_mib=100 * (number + 1), name="python serve")
                for number in range(processes)
            ),
        )
        for at in range(count)
    )  # fmt: skip


def beside(session: FakeSession, monkeypatch: pytest.MonkeyPatch, gpus: Sequence[GpuReading]) -> None:
    serve(session)
    look = session.look
    monkeypatch.setattr(session, "look", lambda **kw: msgspec.structs.replace(look(**kw), gpus=tuple(gpus)))


async def live(app: TunerApp, pilot: Pilot[None]) -> None:
    await pilot.press("7")
    await until(pilot, lambda: "Binds now" in screen_text(app))


def readings_pane(app: TunerApp) -> str:
    """All that can be scrolled to, not the charts, which move with the time."""
    box = app.screen.query_one("#facts")
    shown = screen_text(app, Region(box.region.x, box.region.y, box.region.width, box.region.height))
    return f"{shown}\n{box.virtual_size.height} rows"


SIZES = [(80, 24), (120, 30), (118, 29), (102, 33)]


@pytest.mark.parametrize("count", [1, 6])
async def test_after_a_resize_the_live_screen_is_that_of_an_app_opened_at_that_size(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    beside(session, monkeypatch, cards(count))
    fresh = {}
    for size in SIZES:
        async with opened(size=size) as (app, pilot):
            await live(app, pilot)
            await app.workers.wait_for_complete()
            await pilot.pause()
            fresh[size] = readings_pane(app)
    async with opened(size=SIZES[0]) as (app, pilot):
        await live(app, pilot)
        await app.workers.wait_for_complete()
        for size in [*SIZES[1:], *SIZES[:2]]:
            await pilot.resize_terminal(*size)
            await until(pilot, lambda size=size: app.size == size)  # type: ignore[misc]
            looked = app.look
            # What looks after it change is drawn line by line.
            await until(pilot, lambda looked=looked: app.look is not looked)  # type: ignore[misc]
            await pilot.pause()
            assert readings_pane(app) == fresh[size], size


async def test_eight_cards_are_seen_on_the_smallest_terminal_without_scrolling(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside(session, monkeypatch, cards(8))
    async with opened(size=(80, 24)) as (app, pilot):
        await live(app, pilot)
        await until(pilot, lambda: "GPU 7 " in screen_text(app))
        text = screen_text(app)
        assert all(f"GPU {at} " in text for at in range(8))
        assert "27.2/31.8 GiB ·  98 % busy · 509 W · 54 °C" in text
        assert "held back" in text
        assert "KV pool" in text


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)])
async def test_the_strip_says_which_of_several_cards_it_shows_and_parts_its_columns(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch, size: tuple[int, int]
) -> None:
    beside(
        session, monkeypatch, [msgspec.structs.replace(one, total_mib=146_766, used_mib=145_500) for one in cards(8)]
    )
    async with opened(size=size) as (app, pilot):
        await until(pilot, lambda: "VRAM" in screen_text(app))
        strip = screen_text(app, app.screen.query_one(LiveStrip).region)
        assert "GPU 0 142.1/143.3" in strip
        assert " KV " in strip


def test_the_short_form_of_several_cards_begins_with_which_one(session: FakeSession) -> None:
    serve(session)
    look = msgspec.structs.replace(session.look(), gpus=cards(2))
    assert (figures(look)[0].short, figures(look)[0].words) == ("GPU 0 27.2/31.8", "GPU 0 27.2/31.8 GiB 86 %")


SOME = st.one_of(st.none(), st.integers(0, 200_000))
CARDS = st.lists(
    st.builds(
        GpuReading, index=st.integers(0, 15),
        name=st.one_of(st.none(), st.sampled_from(["NVIDIA H200", "模型 card", ""])),
        total_mib=SOME, used_mib=SOME, utilisation=st.one_of(st.none(), st.integers(0, 100)),
        power_w=st.one_of(st.none(), st.floats(0, 1500)), temperature_c=st.one_of(st.none(), st.integers(0, 120)),
        clock_mhz=st.one_of(st.none(), st.integers(0, 4000)),
        throttled=st.one_of(st.none(), st.just(()), st.just(("power limit", "near its highest temperature"))),
    ), max_size=9,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(gpus=CARDS, cells=st.integers(30, 200))
def test_a_line_a_card_whatever_the_driver_tells_and_none_too_long(gpus: list[GpuReading], cells: int) -> None:
    lines = card_lines(gpus, cells)
    assert len(lines) == len(gpus)
    for gpu, line in zip(gpus, lines, strict=True):
        assert line.plain.startswith(f"GPU {gpu.index} ")
        assert width(line.plain) <= cells
        assert width(to_ascii(line.plain)) == width(line.plain)


def test_columns_stay_where_they_are_when_a_card_is_held_back_or_draws_more() -> None:
    calm = cards(2)
    strained = tuple(
        msgspec.structs.replace(one, throttled=("too hot",), power_w=99.0, utilisation=100) for one in calm
    )
    for cells in (68, 75, 110):
        at = [[line.plain.index(" W") for line in card_lines(gpus, cells)] for gpus in (calm, strained)]
        assert len({*at[0], *at[1]}) == 1


def test_a_wide_terminal_tells_clock_and_name_and_why_a_card_is_held_back() -> None:
    first, second = (line.plain for line in card_lines(cards(2), 150))
    assert first.endswith("· 54 °C · 2600 MHz · NVIDIA GeForce RTX 5090")
    assert second.endswith("· NVIDIA GeForce RTX 5090 · held back: power limit")
    assert "MHz" not in card_lines(cards(2), 75)[0].plain


def test_names_are_told_once_or_by_card() -> None:
    assert names_line(cards(8)) == "8 × NVIDIA GeForce RTX 5090"
    mixed = [*cards(2), GpuReading(index=2, name="NVIDIA A40"), GpuReading(index=3)]
    assert names_line(mixed) == "GPU 0–1 NVIDIA GeForce RTX 5090 · GPU 2 NVIDIA A40 · GPU 3 not told"


def test_the_largest_holders_come_first_and_the_rest_is_counted() -> None:
    sizes = (100, None, 5000, 200, 2048, 300)
    card = GpuReading(index=0, processes=tuple(GpuProcess(pid=n, memory_mib=mib) for n, mib in enumerate(sizes)))
    known = {2: Holder("sglang::scheduler", True), 4: Holder("python train.py", False), 5: Holder("", None)}
    assert holder_words(card, known, 60) == [
        "4.88 GiB this server · process 2 sglang::scheduler",
        "2.00 GiB other · process 4 python train.py",
        "0.29 GiB process 5, which cannot be seen from here",
        "and 3 more with 0.29 GiB",
    ]


async def test_holders_are_marked_on_the_live_screen(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = msgspec.structs.replace(cards(1)[0], processes=(GpuProcess(pid=os.getpid(), memory_mib=2048),))
    beside(session, monkeypatch, [card])
    async with opened(size=(120, 40)) as (app, pilot):
        await live(app, pilot)
        # The fake server's process is not one of this test's.
        await until(pilot, lambda: f"2.00 GiB other · process {os.getpid()} " in screen_text(app))


def test_a_part_of_a_card_is_told_below_several(session: FakeSession) -> None:
    serve(session)
    part = GpuInstance(name="MIG 1g.18gb", used_mib=1024, total_mib=18_432)
    gpus = (msgspec.structs.replace(cards(1)[0], instances=(part,)), cards(2)[1])
    shown = Facts()
    shown._look = msgspec.structs.replace(session.look(), gpus=gpus)
    assert any("MIG 1g.18gb 1.00 GiB of 18.00 GiB" in line.plain for line in shown.lines(76))
