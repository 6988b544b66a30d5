"""The Doctor screen offers what ``tuner doctor`` offers: remedies that start, and for the others why they would not."""

from __future__ import annotations

import threading

import msgspec
import pytest
from textual.widgets import OptionList
from uifakes import DEMO, FakeSession
from uiscreen import Opened, screen_text, told, until

from tuner.advice import Lever, Proposal
from tuner.doctor import with_remedy
from tuner.findings import Finding, FindingId, Severity
from tuner.planner.model import PlanInputs
from tuner.ui.app import TunerApp
from tuner.ui.bench import Bench
from tuner.ui.remedies import Case, Next, flags_of, remedy_of

FRACTION, RATIO = "mem_fraction_static", "mamba_full_memory_ratio"
TOO_HIGH = DEMO.with_flags({FRACTION: 0.995})
DIED = Finding(
    id=FindingId.OOM_IN_CAPTURE, severity=Severity.FATAL, title="The card ran out of memory.",
    remedy="Lower mem_fraction_static a little.", flags={FRACTION: 0.975}, evidence=("20.48 MiB is free",),
)  # fmt: skip
BELOW_THE_WEIGHTS = msgspec.structs.replace(DIED, flags={FRACTION: 0.5})


def died(session: FakeSession, finding: Finding) -> None:
    """A start of ``TOO_HIGH`` that failed with a finding."""
    session.fail_in = "capturing graphs"
    round_ = session.run_round(TOO_HIGH, publish=lambda _: None, cancel=threading.Event())
    session.history.save(msgspec.structs.replace(round_, findings=(finding,)))


def inputs_of(session: FakeSession, **flags: object) -> PlanInputs:
    return session.planning_inputs(DEMO.with_flags(flags))


def put_cursor_on(app: TunerApp, finding: Finding) -> None:
    at = next(i for i, entry in enumerate(app.screen.shown) if isinstance(entry, Case) and entry.finding == finding)  # type: ignore[attr-defined]
    app.screen.query_one(OptionList).highlighted = at


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_the_fraction_offered_after_a_death_is_the_one_of_the_command_line_and_goes_on_the_bench_once(
    session: FakeSession, opened: Opened, size: tuple[int, int]
) -> None:
    died(session, DIED)
    told_by_command = with_remedy(DIED, session.planning_inputs(TOO_HIGH))
    offered = told_by_command.finding.flags[FRACTION]
    assert told_by_command.after is not None and offered < 0.975
    async with opened(size=size, recipe=TOO_HIGH) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: DIED.title in screen_text(app))
        put_cursor_on(app, DIED)
        await until(pilot, lambda: DIED.remedy in screen_text(app))
        while "Free at ready" not in screen_text(app):
            await pilot.press("space")
        text = screen_text(app)
        assert f"0.995 → {offered}" in text and f"{told_by_command.after.ready_free_gib:.2f}" in text
        await pilot.press("a")
        await until(pilot, lambda: app.bench.draft.flags[FRACTION] == offered)
        # Its own 0.975 is above that now, and nothing to go back to.
        put_cursor_on(app, DIED)
        await until(pilot, lambda: "a Apply" not in screen_text(app))
        await pilot.press("enter")
        await until(pilot, lambda: "It is on the Tune screen already." in told(app))
        assert app.bench.draft.flags[FRACTION] == offered
        await pilot.press("ctrl+z")
        await until(pilot, lambda: app.bench.draft.flags[FRACTION] == 0.995)


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=str)
async def test_a_remedy_that_would_not_start_says_why_and_cannot_be_applied(
    session: FakeSession, opened: Opened, size: tuple[int, int]
) -> None:
    died(session, BELOW_THE_WEIGHTS)
    why = f"With {FRACTION}=0.5 the start would not come up:"
    async with opened(size=size, recipe=TOO_HIGH) as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: DIED.title in screen_text(app))
        put_cursor_on(app, BELOW_THE_WEIGHTS)
        await until(pilot, lambda: f"✗ {why}" in screen_text(app))
        await until(pilot, lambda: "a Apply" not in screen_text(app))
        assert not app.screen.query_one("#apply").display
        await pilot.press("enter")
        await until(pilot, lambda: why in told(app))
        assert app.bench.draft.flags == TOO_HIGH.flags
        await pilot.press("y")
        await until(pilot, lambda: why in app.clipboard)


@pytest.mark.parametrize("fraction", [0.9, 0.97, 0.99, 0.995])
@pytest.mark.parametrize("to", [0.5, 0.86, 0.95, 0.975])
@pytest.mark.parametrize("found", ["plan", "r1"])
def test_screen_and_command_line_offer_the_same(session: FakeSession, fraction: float, to: float, found: str) -> None:
    draft = DEMO.with_flags({FRACTION: fraction})
    finding = msgspec.structs.replace(DIED, flags={FRACTION: to, "kv_cache_dtype": "fp8_e4m3"})
    case = Case(found, finding, draft.flags if found == "r1" else {})
    on_screen = remedy_of(case, Bench.opened(draft), inputs_of(session))
    told_by_command = with_remedy(finding, inputs_of(session, **{FRACTION: fraction}))
    assert on_screen.flags == told_by_command.finding.flags
    assert {name for name, _, _ in on_screen.changes} == set(on_screen.flags) <= {FRACTION}
    assert on_screen.then == told_by_command.after
    assert on_screen.problem == told_by_command.problem


@pytest.mark.parametrize(
    ("was", "to", "now", "offered"),
    [
        (0.995, 0.975, 0.8, {}),
        (0.995, 0.975, 0.985, {FRACTION: 0.86}),
        (0.7, 0.8, 0.85, {}),
        (0.7, 0.8, 0.75, {FRACTION: 0.8}),
    ],
)
def test_a_draft_that_went_further_than_a_remedy_is_not_led_back(
    session: FakeSession, was: float, to: float, now: float, offered: dict[str, float]
) -> None:
    finding = msgspec.structs.replace(DIED, flags={FRACTION: to})
    case = Case("r1", finding, {FRACTION: was})
    remedy = remedy_of(case, Bench.opened(DEMO.with_flags({FRACTION: now})), inputs_of(session))
    assert remedy.flags == offered and not remedy.problem


def test_a_proposal_stays_as_it_was_advised(session: FakeSession) -> None:
    proposal = Proposal(
        id="x", lever=Lever.RATIO, title="X", flags={FRACTION: 0.975, RATIO: 0.9}, reason="", evidence=(),
        gives_up="", risk="", effects=(),
    )  # fmt: skip
    entry = Next("r1", 1, proposal)
    remedy = remedy_of(entry, Bench.opened(TOO_HIGH), inputs_of(session))
    assert remedy.flags == flags_of(entry) == proposal.flags
    assert remedy.changes == ((FRACTION, 0.995, 0.975),)


def test_flags_that_cannot_be_read_are_a_reason_and_no_error(session: FakeSession) -> None:
    draft = DEMO.with_flags({"max_running_requests": "many"})
    remedy = remedy_of(Case("r1", DIED), Bench.opened(draft), inputs_of(session))
    assert "max_running_requests" in remedy.problem and not remedy.changes


def test_before_the_machine_is_known_the_flags_of_a_finding_are_offered_as_they_are() -> None:
    remedy = remedy_of(Case("r1", DIED), Bench.opened(TOO_HIGH), None)
    assert remedy.flags == DIED.flags and remedy.changes == ((FRACTION, 0.995, 0.975),)
