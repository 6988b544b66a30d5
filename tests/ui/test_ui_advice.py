"""What to try next, on the Doctor screen: ranked, explained, previewed, and one key away from the Tune screen."""

from __future__ import annotations

import threading

import pytest
from textual.widgets import OptionList
from uifakes import DEMO, FakeSession
from uiscreen import Opened, screen_text, told, until

from tuner.advice import Advice, DerivedNeed, Effect, Lever, Proposal
from tuner.planner.model import CannotPlan
from tuner.rounds.model import Round
from tuner.ui.remedies import Next, Outlook
from tuner.ui.screens.doctor import DoctorScreen

RATIO = Proposal(
    id="smaller-ratio", lever=Lever.RATIO, title="Move memory from states to KV: ratio 0.9 to 0.3",
    flags={"mamba_full_memory_ratio": 0.3},
    reason="22 of 81 state slots serve 3 requests; the rest is worth more as KV.",
    evidence=("at most 12 slots used by requests, 40 held by cached prefixes",), gives_up="42 slots",
    risk="A cached conversation [of agent 甲] is computed again.",
    effects=(Effect(name="kv_tokens", old=220_000, new=320_000, change="+100,000"),),
)  # fmt: skip
POLICY = Proposal(
    id="longest-prefix-first", lever=Lever.POLICY, title="Run the waiting request with the longest cached prefix first",
    flags={"schedule_policy": "fcfs"}, reason="It runs before its prefix is evicted.", evidence=(),
    gives_up="the order", risk="", effects=(),
)  # fmt: skip
ADVICE = Advice(
    enough=False,
    sentence="Seen at work: 3 requests at once, 68,431 tokens the longest. That is served; more to gain: ratio.",
    proposals=(RATIO, POLICY),
    derived_need=DerivedNeed(
        input_tokens=68_431, agents=3, warm_prefixes=6, sentence="Derived, not stated: 2,760 looks."
    ),
    notes=("A first token takes 25 s: physics, no flag mends it.",),
)


@pytest.fixture
def advised(session: FakeSession) -> FakeSession:
    """One round that runs, and two proposals after it."""
    session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    session.advice = ADVICE
    return session


def place(screen: object, kind: type[Next] | type[Outlook]) -> int:
    """Where the first entry of a kind stands in the list."""
    assert isinstance(screen, DoctorScreen)
    return next(i for i, entry in enumerate(screen.shown) if isinstance(entry, kind))


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (160, 45)], ids=str)
async def test_proposals_follow_the_findings_best_first_with_what_they_gain(
    advised: FakeSession, opened: Opened, size: tuple[int, int]
) -> None:
    async with opened(size=size) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: "Seen at work" in screen_text(app))
        await until(pilot, lambda: "+100,000 KV" in screen_text(app))
        lines = screen_text(app).splitlines()
        heading = next(i for i, line in enumerate(lines) if "Seen at work" in line)
        listed = [line[:50] for line in lines[heading:]]
        first = next(i for i, line in enumerate(listed) if line.split()[:1] == ["1"])
        assert "Move memory from states to KV" in listed[first]
        assert next(i for i, line in enumerate(listed) if line.split()[:1] == ["2"]) > first
        assert all(len(line) <= size[0] for line in lines)


async def test_a_proposal_says_what_it_gives_why_and_at_what_price(advised: FakeSession, opened: Opened) -> None:
    async with opened(size=(120, 45)) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: "+100,000 KV" in screen_text(app))
        app.screen.query_one(OptionList).highlighted = place(app.screen, Next)
        await until(pilot, lambda: "Price" in screen_text(app))
        text = screen_text(app)
        assert "smaller-ratio · ratio · after r1" in text
        assert text.index("What that would give") < text.index("Why") < text.index("Price")
        assert "mamba_full_memory_ratio" in text and "A cached conversation [of agent 甲] is computed again." in text


@pytest.mark.parametrize("key", ["a", "enter"])
async def test_one_key_puts_a_proposal_on_the_tune_screen_and_once_is_enough(
    advised: FakeSession, opened: Opened, key: str
) -> None:
    async with opened(size=(120, 36)) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: "+100,000 KV" in screen_text(app))
        app.screen.query_one(OptionList).highlighted = place(app.screen, Next)
        await until(pilot, lambda: "a Apply" in screen_text(app))
        await pilot.press(key)
        await until(pilot, lambda: app.bench.draft.flags["mamba_full_memory_ratio"] == 0.3)
        app.screen.query_one(OptionList).highlighted = place(app.screen, Next)
        await until(pilot, lambda: "It is on the Tune screen." in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: "It is on the Tune screen already." in told(app))
        await pilot.press("ctrl+z")
        await until(pilot, lambda: app.bench.draft.flags["mamba_full_memory_ratio"] == 0.9)


async def test_the_outlook_tells_what_it_stands_on_and_what_no_flag_mends(advised: FakeSession, opened: Opened) -> None:
    async with opened(size=(80, 30)) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: "+100,000 KV" in screen_text(app))
        app.screen.query_one(OptionList).highlighted = place(app.screen, Outlook)
        await until(pilot, lambda: "2 proposals after r1, best first" in screen_text(app))
        text = screen_text(app)
        assert "Derived, not stated: 2,760 looks." in text and "physics, no flag mends it" in text
        await until(pilot, lambda: "a Apply" not in screen_text(app))


async def test_good_enough_is_said_and_nothing_is_proposed(advised: FakeSession, opened: Opened) -> None:
    advised.advice = Advice(enough=True, sentence="Good enough, stop: the need is met.")
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: "✓ r1    Good enough, stop: the need is met." in screen_text(app))


async def test_before_the_first_round_there_is_no_advice_but_the_findings_are_there(
    session: FakeSession, opened: Opened
) -> None:
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: bool(app.screen.query_one(OptionList).option_count))
        assert isinstance(app.screen, DoctorScreen)
        await pilot.pause()
        assert app.screen.outlook is None and "Good enough" not in screen_text(app)


async def test_advice_that_cannot_be_given_says_why(
    advised: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(round_: Round) -> Advice:
        raise CannotPlan("How much VRAM is free is not known here.")

    monkeypatch.setattr(advised, "advise", cannot)
    async with opened(size=(120, 24)) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: "No advice after r1: How much VRAM is free is not known here." in screen_text(app))
