"""What an operator does on the Tune screen."""

from __future__ import annotations

import pytest
from textual.events import MouseScrollUp
from textual.pilot import Pilot
from uifakes import DEMO, DENSE, FakeSession
from uiscreen import Opened, screen_text, until

from tuner.ui.app import TunerApp
from tuner.ui.widgets.choice import Choice
from tuner.ui.widgets.pool_numbers import PoolNumbers
from tuner.ui.widgets.slider import Slider

RATIO = "mamba_full_memory_ratio"


def slider(app: TunerApp, name: str) -> Slider:
    return app.screen.query_one(f"#{name}", Slider)


def kv_tokens(app: TunerApp) -> int:
    plan = app.screen.query_one(PoolNumbers).plan
    assert plan is not None
    return plan.kv_tokens


async def drag(pilot: Pilot[None], widget: Slider, start: int, end: int) -> None:
    await pilot.mouse_down(widget, offset=(start, 0))
    for x in range(start, end, 1 if end > start else -1):
        await pilot.hover(widget, offset=(x, 0))
    await pilot.hover(widget, offset=(end, 0))
    await pilot.mouse_up(widget, offset=(end, 0))


async def test_dragging_the_ratio_slider_down_with_the_mouse_gives_more_kv_tokens(opened: Opened) -> None:
    async with opened() as (app, pilot):
        knob = slider(app, RATIO)
        before = kv_tokens(app)
        start = knob.label_width + 2 + knob._cell(0.9)
        await drag(pilot, knob, start, start - 8)
        await pilot.pause()
        assert app.bench.draft.flags[RATIO] < 0.5
        assert kv_tokens(app) > before
        assert f"{kv_tokens(app):,}" in screen_text(app)
        # Let go: moving on must not turn the knob further.
        held = app.bench.draft.flags[RATIO]
        await pilot.hover(knob, offset=(knob.label_width + 3, 0))
        assert app.bench.draft.flags[RATIO] == held


async def test_the_preview_moves_while_the_mouse_button_is_still_down(opened: Opened) -> None:
    async with opened() as (app, pilot):
        knob = slider(app, RATIO)
        start = knob.label_width + 2 + knob._cell(0.9)
        await pilot.mouse_down(knob, offset=(start, 0))
        seen = []
        for x in (start - 4, start - 8):
            await pilot.hover(knob, offset=(x, 0))
            await pilot.pause()
            seen.append(kv_tokens(app))
        assert seen[0] < seen[1]
        await pilot.mouse_up(knob)


@pytest.mark.parametrize(
    ("keys", "ratio"),
    [
        (["right"], 0.95),
        (["left", "left"], 0.80),
        (["shift+right"], 1.10),
        (["pagedown"], 0.70),
        (["home"], 0.05),
        (["end"], 3.0),
        (["enter", "1", ".", "2", "5", "enter"], 1.25),
        (["0", ".", "4", "enter"], 0.40),
        (["enter", "9", "9", "enter"], 3.0),
        (["enter", "1", "escape"], 0.90),
        (["right", "right", "backspace"], 0.90),
        (["enter", "1", "2", "backspace", "enter"], 1.0),
    ],
)
async def test_every_key_of_a_slider(opened: Opened, keys: list[str], ratio: float) -> None:
    async with opened() as (app, pilot):
        slider(app, RATIO).focus()
        await pilot.press(*keys)
        await pilot.pause()
        assert app.bench.draft.flags[RATIO] == pytest.approx(ratio)
        assert app.current_mode == "tune"


async def test_the_wheel_turns_a_slider_one_step(opened: Opened) -> None:
    async with opened() as (app, pilot):
        knob = slider(app, "mem_fraction_static")
        await pilot._post_mouse_events([MouseScrollUp], knob, offset=(25, 0), button=0)
        await pilot.pause()
        assert app.bench.draft.flags["mem_fraction_static"] == pytest.approx(0.87)


async def test_undo_takes_a_whole_turn_of_one_knob_back_and_redo_makes_it_again(opened: Opened) -> None:
    async with opened() as (app, pilot):
        slider(app, RATIO).focus()
        await pilot.press("left", "left", "left")
        slider(app, "mem_fraction_static").focus()
        await pilot.press("right")
        await pilot.press("ctrl+z")
        assert app.bench.draft.flags["mem_fraction_static"] == 0.86
        assert app.bench.draft.flags[RATIO] == 0.75
        await pilot.press("ctrl+z")
        assert app.bench.draft.flags[RATIO] == 0.9
        await pilot.press("ctrl+y")
        assert app.bench.draft.flags[RATIO] == 0.75


async def test_a_choice_steps_by_arrows_and_opens_a_list_that_explains_its_options(opened: Opened) -> None:
    async with opened() as (app, pilot):
        app.screen.query_one("#mamba_ssm_dtype", Choice).focus()
        await pilot.press("left")
        assert app.bench.draft.flags["mamba_ssm_dtype"] == "float32"
        await pilot.press("enter")
        await pilot.pause()
        assert "half the bytes: twice the slots" in screen_text(app)
        await pilot.press("down", "enter")
        await until(pilot, lambda: app.bench.draft.flags["mamba_ssm_dtype"] == "bfloat16")


async def test_turning_speculation_on_sets_all_its_flags_and_off_removes_them(opened: Opened) -> None:
    async with opened() as (app, pilot):
        app.screen.query_one("#speculation", Choice).focus()
        before = kv_tokens(app)
        await pilot.press("right")
        await pilot.pause()
        assert app.bench.draft.flags["speculative_algorithm"] == "NEXTN"
        assert app.bench.draft.flags["speculative_num_draft_tokens"] == 2
        assert kv_tokens(app) < before
        await pilot.press("left")
        assert not any(name.startswith("speculative") for name in app.bench.draft.flags)


async def test_explicit_slots_get_a_knob_and_the_ratio_says_that_it_has_no_effect(opened: Opened) -> None:
    async with opened(recipe=DEMO.with_flags({"max_mamba_cache_size": 24})) as (app, pilot):
        slider(app, RATIO).focus()
        await pilot.pause()
        assert "No effect now: max_mamba_cache_size" in " ".join(screen_text(app).split())
        slider(app, "max_mamba_cache_size").focus()
        await pilot.press("d")
        assert "max_mamba_cache_size" not in app.bench.draft.flags


async def test_a_plain_transformer_has_no_knob_for_states(session: FakeSession, opened: Opened) -> None:
    session.shape = DENSE
    recipe = DEMO.with_flags({name: None for name in DEMO.flags if name.startswith("mamba")})
    async with opened(recipe=recipe) as (app, _):
        assert not app.screen.query(f"#{RATIO}")
        assert not app.screen.query("#speculation")
        assert "State slots" not in screen_text(app)


async def test_a_start_that_cannot_come_up_is_red_and_says_why(opened: Opened) -> None:
    async with opened() as (app, pilot):
        slider(app, "mem_fraction_static").focus()
        await pilot.press("home")
        await pilot.pause()
        plan = app.screen.query_one(PoolNumbers).plan
        text = screen_text(app)
        assert "✗" in text
        assert plan is None or not plan.fits


async def test_a_model_that_cannot_be_planned_says_so_in_one_sentence(session: FakeSession, opened: Opened) -> None:
    session.cannot = "The model folder /models/x is not on this machine: give --model DIR."
    async with opened(size=(80, 24)) as (app, _):
        assert "✗ The model folder /models/x is not" in screen_text(app)


async def test_where_a_start_would_fail_is_marked_on_the_track(opened: Opened) -> None:
    async with opened() as (app, pilot):
        await until(pilot, lambda: any(slider(app, "mem_fraction_static").bad))
        assert "╌" in screen_text(app)


async def test_changes_are_listed_and_b_takes_all_of_them_back(opened: Opened) -> None:
    async with opened() as (app, pilot):
        slider(app, RATIO).focus()
        await pilot.press("left")
        await pilot.pause()
        assert "ratio 0.9→0.85" in screen_text(app)
        await pilot.press("b")
        await pilot.pause()
        assert "No change yet" in screen_text(app)
        assert app.bench.draft.flags == DEMO.flags


async def test_an_unset_knob_says_auto_and_stands_where_the_server_would_put_it(opened: Opened) -> None:
    async with opened() as (app, pilot):
        knob = slider(app, "max_running_requests")
        knob.focus()
        await pilot.press("d")
        await pilot.pause()
        plan = app.screen.query_one(PoolNumbers).plan
        assert plan is not None
        assert "max_running_requests" not in app.bench.draft.flags
        assert knob.value is None
        assert knob.resting == plan.max_running_requests
        assert "auto" in next(line for line in screen_text(app).splitlines() if "Max requests" in line)
        await pilot.press("right")
        assert app.bench.draft.flags["max_running_requests"] == plan.max_running_requests + 1
