"""Auto in the app: asked by five fields, shown round by round, taken over by a key."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec
import pytest
from textual.widgets import Input
from uifakes import DEMO, FakeSession
from uiscreen import Opened, screen_text, told, until

from tuner.recipe.model import Recipe, TunerSettings
from tuner.session.auto.model import AutoOutcome, Ended, Goal
from tuner.session.events import AutoEnded, AutoNews, Event
from tuner.ui.screens.auto import AutoScreen, NeedScreen, read_goal
from tuner.ui.screens.working import WorkingScreen

Publish = Callable[[Event], None]


class AutoSession(FakeSession):
    """Makes two rounds for a need; ``ended`` is how it ends unless it is broken off."""

    ended = Ended.MET
    goals: list[Goal]

    def auto(
        self, recipe: Recipe, goal: Goal, *, publish: Publish, cancel: threading.Event, leave: threading.Event
    ) -> AutoOutcome:
        self.goals = [goal]
        need = f"Needed: {goal.need.agents} x {goal.need.input_tokens:,} tokens in flight together."
        publish(AutoNews(kind="need", text=need, of=goal.max_rounds))
        for number in (1, 2):
            publish(AutoNews(kind="plan", text=f"why number {number}", number=number, of=5))
            self.run_round(recipe, publish=publish, cancel=cancel)
            if cancel.is_set():
                publish(AutoNews(kind="back", text="r0 is started again."))
                return self._out(goal, Ended.ABORTED, publish)
            publish(AutoNews(kind="proof", text="3 requests of 90,000 tokens at once", number=number, of=5))
            met = number == 2 and self.ended is Ended.MET
            words = "3 of 3 ran together" if met else "2 of 3 requests were in flight together."
            publish(AutoNews(kind="proved" if met else "short", text=words, number=number, of=5))
        return self._out(goal, self.ended, publish)

    def _out(self, goal: Goal, ended: Ended, publish: Publish) -> AutoOutcome:
        reason = {
            Ended.MET: "All is well.", Ended.IMPOSSIBLE: "The card is too small.", Ended.ABORTED: "Auto was broken off."
        }[ended]  # fmt: skip
        winner = "r2" if ended is Ended.MET else None
        outcome = AutoOutcome(port=30000, ended=ended, reason=reason, goal=goal, winner=winner, serving="r2")
        publish(AutoEnded(outcome))
        return outcome


@pytest.fixture
def session(tmp_path) -> AutoSession:
    return AutoSession(tmp_path)


async def test_a_need_is_asked_and_its_rounds_are_shown_to_the_end(session: AutoSession, opened: Opened) -> None:
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("A")
        await until(pilot, lambda: isinstance(app.screen, NeedScreen))
        await pilot.press(*"120K", "enter")
        await until(pilot, lambda: isinstance(app.screen, AutoScreen) and app.auto is not None and app.auto.ended)
        await until(pilot, lambda: "The need is met by r2." in screen_text(app))
        assert session.goals[0].need.input_tokens == 120_000 and session.goals[0].need.agents == 3
        text = screen_text(app)
        assert "Round 2 of 5 at the most" in text and "why number 2" in text and "3 of 3 ran together" in text
        assert "Auto: All is well." in told(app)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, AutoScreen))


async def test_the_dialog_begins_with_the_need_that_the_recipe_states(session: AutoSession, opened: Opened) -> None:
    stated = TunerSettings(
        model_shape="qwen3.8-27b-fp8-text", need_input_tokens=100_000, need_agents=2, need_warm_prefixes=4,
        headroom_gib=3.5,
    )  # fmt: skip
    async with opened(size=(80, 24), recipe=msgspec.structs.replace(DEMO, tuner=stated)) as (app, pilot):
        await pilot.press("A")
        await until(pilot, lambda: isinstance(app.screen, NeedScreen))
        typed = [field.value for field in app.screen.query(Input)]
        assert typed == ["100K", "2", "4", "64", "3.5"]
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, AutoScreen) and app.auto is not None and app.auto.ended)
        need = session.goals[0].need
        assert (need.input_tokens, need.agents, need.warm_prefixes, need.headroom_gib) == (100_000, 2, 4, 3.5)


async def test_a_need_without_sense_stays_in_the_dialog_with_one_sentence(opened: Opened) -> None:
    async with opened() as (app, pilot):
        await pilot.press("A")
        await until(pilot, lambda: isinstance(app.screen, NeedScreen))
        app.screen.query_one("#need-agents", Input).value = "none"
        await pilot.press("enter")
        await until(pilot, lambda: "The number of agents is none: give 1 or more." in screen_text(app))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, NeedScreen))
        assert app.auto is None and not app.runner.busy


async def test_the_operator_takes_over_in_the_middle_of_a_round(session: AutoSession, opened: Opened) -> None:
    session.gate.clear()
    async with opened() as (app, pilot):
        await pilot.press("A")
        await until(pilot, lambda: isinstance(app.screen, NeedScreen))
        await pilot.press("enter")
        await until(pilot, lambda: "now" in screen_text(app) and "launching" in screen_text(app))
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, WorkingScreen))
        await pilot.press("escape")
        await pilot.press("A")
        await until(pilot, lambda: isinstance(app.screen, AutoScreen))
        await pilot.press("x")
        await until(pilot, lambda: "Taken over before the need was met." in screen_text(app))
        assert "r0 is started again." in screen_text(app)


async def test_what_cannot_be_is_said(session: AutoSession, opened: Opened) -> None:
    session.ended = Ended.IMPOSSIBLE
    async with opened() as (app, pilot):
        await pilot.press("A")
        await until(pilot, lambda: isinstance(app.screen, NeedScreen))
        await pilot.press("enter")
        await until(pilot, lambda: "Not met (impossible). The card is too small." in screen_text(app))
        assert "2 of 3 requests were in flight together." in screen_text(app)


@pytest.mark.parametrize(
    ("typed", "sentence"),
    [
        (("x", "3", "64", "2"), "x"),
        (("90K", "0", "64", "2"), "The number of agents is 0"),
        (("0", "1", "64", "2"), "at least one token"),
        (("90K", "1", "64", "2", "-1"), "conversations kept warm is -1"),
    ],
)
def test_wrong_fields_are_told(typed: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        read_goal(*typed)
