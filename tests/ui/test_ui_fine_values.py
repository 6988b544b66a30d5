"""A slider shows what is set, to its last digit, and turning it loses none."""

from __future__ import annotations

import pytest
from textual.events import MouseScrollDown
from uifakes import DEMO, FakeSession
from uiscreen import Opened, screen_text, styled, told, until

from tuner.ui.app import TunerApp
from tuner.ui.knobs import SliderKnob, knobs_for, slider_flags
from tuner.ui.widgets.slider import Slider

FRACTION, RATIO, CHUNK = "mem_fraction_static", "mamba_full_memory_ratio", "chunked_prefill_size"


def slider(app: TunerApp, name: str) -> Slider:
    return app.screen.query_one(f"#{name}", Slider)


def line(app: TunerApp, name: str) -> str:
    return screen_text(app, slider(app, name).region)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        (FRACTION, 0.983, "0.983"),
        (FRACTION, 0.98, "0.98"),
        (FRACTION, 0.9, "0.90"),
        (FRACTION, 0.95625, "0.95625"),
        (RATIO, 0.452, "0.452"),
        (RATIO, 0.0005, "0.0005"),
        (CHUNK, 4096, "4,096 tok"),
    ],
)
async def test_a_value_is_shown_as_it_is_set(
    opened: Opened, size: tuple[int, int], name: str, value: float, shown: str
) -> None:
    async with opened(size=size, recipe=DEMO.with_flags({name: value})) as (app, _):
        assert line(app, name).endswith(f" {shown}")


@pytest.mark.parametrize(
    ("keys", "fraction"),
    [
        (["left"], 0.973),
        (["left", "right"], 0.983),
        (["shift+left"], 0.933),
        (["right"], 0.99),
        (["enter", *"0.956", "enter"], 0.956),
        (["enter", *"0.95", "enter"], 0.95),
        (["0", *".9564", "enter"], 0.956),
        (["home"], 0.5),
    ],
)
async def test_a_turn_of_the_fraction_keeps_its_third_digit(opened: Opened, keys: list[str], fraction: float) -> None:
    async with opened(recipe=DEMO.with_flags({FRACTION: 0.983})) as (app, pilot):
        slider(app, FRACTION).focus()
        await pilot.press(*keys)
        await pilot.pause()
        assert app.bench.draft.flags[FRACTION] == fraction


async def test_the_wheel_keeps_the_third_digit_and_a_drag_takes_whole_steps(opened: Opened) -> None:
    async with opened(recipe=DEMO.with_flags({FRACTION: 0.923})) as (app, pilot):
        knob = slider(app, FRACTION)
        await pilot._post_mouse_events([MouseScrollDown], knob, offset=(25, 0), button=0)
        await pilot.pause()
        assert app.bench.draft.flags[FRACTION] == 0.913
        await pilot.click(knob, offset=(knob.label_width + 2 + knob.track_width // 2, 0))
        await pilot.pause()
        dragged = app.bench.draft.flags[FRACTION]
        assert dragged == round(dragged, 2) != 0.91


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_taking_hold_of_a_knob_where_it_stands_does_not_turn_it(opened: Opened, size: tuple[int, int]) -> None:
    async with opened(size=size, recipe=DEMO.with_flags({FRACTION: 0.983})) as (app, pilot):
        knob = slider(app, FRACTION)
        here = knob.label_width + 2 + knob._cell(0.983)
        for _ in range(2):
            await pilot.click(knob, offset=(here, 0))
        await pilot.mouse_down(knob, offset=(here, 0))
        await pilot.hover(knob, offset=(here, 0))
        await pilot.pause()
        assert app.bench.draft.flags[FRACTION] == 0.983 and not app.bench.changes()
        seen = []
        for x in (here - 1, here):
            await pilot.hover(knob, offset=(x, 0))
            await pilot.pause()
            seen.append(app.bench.draft.flags[FRACTION])
        # Dragged, it takes the steps of the track; back in its own cell it has its own value again.
        assert seen[0] == round(seen[0], 2) < 0.983 and seen[1] == 0.983
        await pilot.hover(knob, offset=(here - 1, 0))
        await pilot.mouse_up(knob, offset=(here - 1, 0))
        await pilot.pause()
        assert app.bench.draft.flags[FRACTION] == seen[0]
        # Another cell is meant as it is clicked.
        await pilot.click(knob, offset=(here - 3, 0))
        await pilot.pause()
        assert app.bench.draft.flags[FRACTION] < seen[0]


async def test_taking_hold_of_a_knob_that_is_not_set_leaves_it_unset(opened: Opened) -> None:
    async with opened(recipe=DEMO.with_flags({FRACTION: None})) as (app, pilot):
        knob = slider(app, FRACTION)
        here = knob.label_width + 2 + knob._cell(knob._at)
        await pilot.click(knob, offset=(here, 0))
        await pilot.pause()
        assert FRACTION not in app.bench.draft.flags
        await pilot.click(knob, offset=(here - 3, 0))
        await pilot.pause()
        assert app.bench.draft.flags[FRACTION] < knob.scale.high


async def test_a_typed_third_digit_of_the_ratio_is_taken_without_a_word(opened: Opened) -> None:
    async with opened() as (app, pilot):
        slider(app, RATIO).focus()
        await pilot.press("enter", *"0.452", "enter")
        await pilot.pause()
        assert app.bench.draft.flags[RATIO] == 0.452
        assert "took" not in told(app)
        assert "ratio 0.9→0.452" in screen_text(app)
        await pilot.press("enter", *"3.5", "enter")
        await pilot.pause()
        assert app.bench.draft.flags[RATIO] == 3.0
        assert "State:KV ratio: took 3.00, the nearest between 0.05 and 3.00." in told(app)


async def test_a_knob_that_is_not_set_turns_by_whole_steps_from_where_it_stands(opened: Opened) -> None:
    async with opened(recipe=DEMO.with_flags({FRACTION: None})) as (app, pilot):
        slider(app, FRACTION).focus()
        await pilot.press("left")
        await pilot.pause()
        turned = app.bench.draft.flags[FRACTION]
        assert turned == round(turned, 2)


async def test_the_mark_of_what_runs_stays_at_its_third_digit_while_the_knob_moves(
    session: FakeSession, opened: Opened
) -> None:
    async with opened(recipe=DEMO.with_flags({FRACTION: 0.753})) as (app, pilot):
        knob = slider(app, FRACTION)
        knob.focus()
        marked = knob._cell(0.753)
        await pilot.press("left", "left", "left", "left")
        await pilot.pause()
        track = line(app, FRACTION)[knob.label_width + 2 :]
        assert track[marked] == "┃"
        assert track.index("●") < marked
        await pilot.press("backspace")
        await pilot.pause()
        assert app.bench.draft.flags[FRACTION] == 0.753


@pytest.mark.parametrize(
    ("value", "bad", "red"),
    [
        # 0.99 would fail, 0.983 starts: the two lie in the same cell of the track.
        (0.983, (False, False, False, False, True), False),
        (0.99, (False, False, False, False, True), True),
        (0.983, (False, False, False, True, True), True),
        (0.51, (True, False, False, False, False), False),
        (0.5, (True, False, False, False, False), True),
        (0.6, (True, True, False, False, False), True),
        (0.7, (), False),
    ],
)
async def test_a_knob_is_red_only_where_its_own_value_fails(
    opened: Opened, value: float, bad: tuple[bool, ...], red: bool
) -> None:
    async with opened(recipe=DEMO.with_flags({FRACTION: value})) as (app, pilot):
        knob = slider(app, FRACTION)
        # What the screen itself tries along the track comes first.
        await until(pilot, lambda: bool(knob.bad))
        knob.bad = bad
        await pilot.pause()
        error = app.theme_variables["error"]
        colours = {
            style.color.name for text, style in styled(app, knob.region) if "●" in text and style and style.color
        }
        assert (error.lower() in colours) is red, (error, colours)


def test_flags_of_a_slider_have_three_digits_and_counts_have_none() -> None:
    knobs = {k.name: k for k in knobs_for(None, {RATIO: 0.9}) if isinstance(k, SliderKnob)}
    assert slider_flags(knobs[FRACTION], 0.9831) == {FRACTION: 0.983}
    assert slider_flags(knobs[CHUNK], 4096.0) == {CHUNK: 4096}
    assert slider_flags(knobs[FRACTION], None) == {FRACTION: None}
