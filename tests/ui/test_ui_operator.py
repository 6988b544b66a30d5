"""What an operator meets in a whole session: refusals, other tuners, servers that die, advice, presets, settings."""

from __future__ import annotations

import threading
from pathlib import Path

import msgspec
import pytest
from textual.widgets import OptionList
from uifakes import DEMO, FakeSession, busy
from uiscreen import Opened, screen_text, told, until

from tuner.checks.model import CheckResult, Verdict
from tuner.findings import Finding, FindingId, Severity
from tuner.planner.accuracy import Accuracy
from tuner.recipe.model import Recipe
from tuner.rounds.model import Round, RoundState
from tuner.server.model import StopOutcome
from tuner.serverlog.model import Phase
from tuner.session.events import CheckEnded, PhaseChanged, RoundClosed, RoundOpened, ServerStopped
from tuner.ui.ascii import only_ascii, to_ascii
from tuner.ui.bench import Bench
from tuner.ui.progress import CHECKS, ENDING, Progress, StepState, Work, advance, begin, finish
from tuner.ui.remedies import Case, remedy_of
from tuner.ui.screens.details import DetailsScreen
from tuner.ui.screens.dialog import ConfirmScreen
from tuner.ui.screens.numbers import NumbersScreen
from tuner.ui.screens.working import WorkingScreen
from tuner.ui.widgets.slider import Slider
from tuner.ui.wording import basis, between, took, worst_error

RATIO = "mamba_full_memory_ratio"
CONFLICT = Finding(
    id=FindingId.FLAG_CONFLICT, severity=Severity.FATAL, title="Two flags contradict each other.",
    remedy="Remove one.", evidence=("--a and --b",),
)  # fmt: skip
TAKEN = msgspec.structs.replace(CONFLICT, id=FindingId.PORT_IN_USE, title="The port is taken.")
OUT_OF_MEMORY = Finding(
    id=FindingId.OOM_WHILE_SERVING, severity=Severity.FATAL, title="Out of memory.", remedy="Lower mem_fraction_static."
)
OFF = Accuracy(
    slots_predicted=81, slots_actual=80, tokens_predicted=220_000, tokens_actual=220_044, tokens_percent=0.02,
    requests_predicted=3, requests_actual=3, ready_free_predicted=4.6, ready_free_actual=4.7,
)  # fmt: skip
EXACT = msgspec.structs.replace(OFF, slots_actual=81, tokens_actual=220_000, tokens_percent=0.0)


def ran(session: FakeSession, recipe: Recipe = DEMO, fail_in: str | None = None) -> Round:
    session.fail_in = fail_in
    round_ = session.run_round(recipe, publish=lambda _: None, cancel=threading.Event())
    session.fail_in = None
    return round_


# refusals


async def test_a_refused_start_says_what_was_refused_and_is_forced_after_a_clear_question(
    session: FakeSession, opened: Opened
) -> None:
    session.refuse = (CONFLICT,)
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: "Not started: refused beforehand. f starts it anyway." in screen_text(app))
        text = screen_text(app)
        assert text.count("Two flags contradict each other.") == 1
        assert "launching" not in text
        await pilot.press("f")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await until(pilot, lambda: "The start is as good as sure to fail." in screen_text(app))
        await pilot.press("enter")  # the focus is on Cancel
        await until(pilot, lambda: not isinstance(app.screen, ConfirmScreen))
        assert session.forced == [False]
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, WorkingScreen))
        await pilot.press("f")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: session.history.count() == 2 and not app.runner.busy)
        assert session.forced == [False, True]


async def test_what_is_in_the_way_cannot_be_forced(session: FakeSession, opened: Opened) -> None:
    session.refuse = (TAKEN,)
    async with opened() as (app, pilot):
        await pilot.press("R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: "The port is taken." in screen_text(app))
        assert "f starts it anyway" not in screen_text(app)
        await pilot.press("f")
        await pilot.pause()
        assert isinstance(app.screen, WorkingScreen)


async def test_a_start_that_is_sure_to_fail_is_asked_about_once_and_then_forced(
    session: FakeSession, opened: Opened
) -> None:
    session.calibrated_by = "r1"
    async with opened() as (app, pilot):
        app.screen.query_one("#mem_fraction_static", Slider).focus()
        await pilot.press("home", "R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await until(pilot, lambda: "Start what is as good as sure to fail?" in screen_text(app))
        await pilot.press("y")
        await until(pilot, lambda: session.forced == [True])
        await until(pilot, lambda: not app.runner.busy)


async def test_without_a_plan_a_start_is_asked_about_without_alarm(session: FakeSession, opened: Opened) -> None:
    session.cannot = "The model folder /models/x is not on this machine: give --model DIR."
    async with opened() as (app, pilot):
        await pilot.press("R")
        await until(pilot, lambda: "Start without a plan" in screen_text(app))
        assert "anyway" not in screen_text(app)


# other tuners, dying servers


async def test_a_round_that_another_tuner_is_starting_is_said_and_left_to_it(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.serve(msgspec.structs.replace(ran(session), state=RoundState.STARTING, runner_pid=4711))
    session.readings = None
    monkeypatch.setattr("tuner.ui.runner.run_by_another", lambda round_: True)
    async with opened() as (app, pilot):
        await until(pilot, lambda: "another tuner (4711) is starting r1" in screen_text(app))
        assert "does not answer" not in screen_text(app)
        await pilot.press("R")
        await until(pilot, lambda: "is in the middle of r1: wait for it" in told(app))
        assert not isinstance(app.screen, ConfirmScreen)


async def test_a_server_killed_from_outside_is_missed(session: FakeSession, opened: Opened) -> None:
    ran(session)
    async with opened() as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        session.server = None
        await until(pilot, lambda: "The server of r1 is gone" in told(app))


async def test_a_server_stopped_from_here_is_not_missed(session: FakeSession, opened: Opened) -> None:
    ran(session)
    async with opened() as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: app.running_name == "" and session.stopped == 1)
        await pilot.press("escape")
        await pilot.pause()
        assert "is gone" not in told(app)


async def test_a_model_without_a_plan_still_shows_the_pools_that_run(session: FakeSession, opened: Opened) -> None:
    round_ = ran(session)
    session.cannot = "This model is not known."
    async with opened(size=(80, 24)) as (app, pilot):
        assert round_.boot is not None
        shown = f"{round_.boot.kv_tokens:,}  in r1"
        await until(pilot, lambda: shown in screen_text(app))
        assert "✗ This model is not known." in screen_text(app)


# how a start went


def closed(progress: Progress, state: RoundState, phase: str, **more: object) -> Progress:
    round_ = Round(number=1, started_at=0.0, state=state, phase=phase, recipe=DEMO, **more)  # type: ignore[arg-type]
    return finish(advance(progress, RoundClosed(round_), 10.0), "", 11.0)


def test_a_start_that_dies_before_a_phase_is_told_still_marks_that_phase() -> None:
    progress = begin(Work.ROUND, stops_first=False, before={}, simulated=True)
    progress = advance(progress, PhaseChanged(phase=Phase.SIZING, elapsed_s=1.0, total_s=9.0), 9.0)
    states = {s.name: s.state for s in closed(progress, RoundState.FAILED, Phase.CAPTURING).steps}
    assert states[Phase.SIZING] is StepState.DONE
    assert states[Phase.CAPTURING] is StepState.FAILED


def test_the_stop_of_an_aborted_start_is_not_called_a_stop_of_the_old_server() -> None:
    progress = begin(Work.ROUND, stops_first=True, before={}, simulated=True)
    stopped = StopOutcome(stopped=True, seconds=0.5, how="SIGTERM")
    progress = advance(progress, ServerStopped(stopped), 1.0)
    progress = advance(progress, PhaseChanged(phase=Phase.LOADING, elapsed_s=1.0, total_s=2.0), 2.0)
    progress = advance(progress, ServerStopped(stopped), 3.0)
    assert [s.name for s in progress.steps if s.detail == "SIGTERM"] == [Phase.STOPPING, ENDING]


def test_a_check_that_cannot_tell_is_no_failure() -> None:
    progress = begin(Work.VERIFY, stops_first=False, before={}, simulated=True)
    result = CheckResult(name="thinking", verdict=Verdict.CANNOT_TELL, reason="no parser", seconds=1.0)
    assert advance(progress, CheckEnded(result), 1.0).checks[0].state is StepState.UNSURE


def test_only_refusals_of_the_plan_can_be_forced() -> None:
    progress = begin(Work.ROUND, stops_first=False, before={}, simulated=True)
    opened = advance(
        progress, RoundOpened(Round(number=1, started_at=0.0, state=RoundState.STARTING, recipe=DEMO)), 1.0
    )
    assert closed(opened, RoundState.REFUSED, "preflight", findings=(CONFLICT,)).forceable
    assert not closed(opened, RoundState.REFUSED, "preflight", findings=(CONFLICT, TAKEN)).forceable
    assert not closed(opened, RoundState.REFUSED, "preflight").forceable
    assert not closed(opened, RoundState.FAILED, Phase.SIZING, findings=(CONFLICT,)).forceable


@pytest.mark.parametrize(
    ("phase", "said"),
    [(CHECKS, "The server came up, and died while it was checked."), ("warming up", "The server did not come up.")],
)
async def test_why_a_start_failed_is_told_above_its_steps(
    phase: str, said: str, session: FakeSession, opened: Opened
) -> None:
    begun = begin(Work.ROUND, stops_first=False, before={}, simulated=False)
    begun = advance(begun, PhaseChanged(phase=Phase.LAUNCHING, elapsed_s=1.0, total_s=1.0), 1.0)
    async with opened(size=(80, 24)) as (app, pilot):
        app.progress = closed(begun, RoundState.FAILED, phase, reason="Out of memory.", findings=(OUT_OF_MEMORY,))
        await pilot.press("p")
        await until(pilot, lambda: said in screen_text(app))
        text = screen_text(app)
        assert text.index(said) < text.index(OUT_OF_MEMORY.remedy) < text.index("launching")


async def test_a_failed_start_says_its_reason_once_and_leads_to_the_doctor(
    session: FakeSession, opened: Opened
) -> None:
    session.fail_in = "sizing pools"
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: "The server did not come up." in screen_text(app))
        assert "warming up" not in screen_text(app)
        await pilot.press("i")
        await until(pilot, lambda: app.current_mode == "doctor")
        await until(pilot, lambda: "No room is left for the pools." in screen_text(app))


# advice


async def test_a_remedy_shows_what_it_would_give_and_goes_to_the_tune_screen_and_back(
    session: FakeSession, opened: Opened
) -> None:
    round_ = ran(session)
    advice = Finding(
        id=FindingId.RATIO_MISFIT, severity=Severity.NOTE, title="More slots than needed.",
        remedy="Pin 20 slots.", flags={"max_mamba_cache_size": 20}, evidence=("81 slots",),
    )  # fmt: skip
    session.serve(msgspec.structs.replace(round_, findings=(advice,)))
    async with opened(size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        await pilot.press("5")
        await until(pilot, lambda: "More slots than needed." in screen_text(app))
        listing = app.screen.query_one("#cases", OptionList)
        listing.highlighted = next(i for i, c in enumerate(app.screen.shown) if c.finding is advice)  # type: ignore[attr-defined]
        await pilot.pause()
        await pilot.press("space")
        await until(pilot, lambda: "What that would give" in screen_text(app))
        assert "State slots" in screen_text(app)
        await pilot.press("a")
        await pilot.pause()
        assert app.bench.draft.flags["max_mamba_cache_size"] == 20
        await pilot.press("escape")
        await until(pilot, lambda: app.current_mode == "tune")
        await pilot.press("ctrl+z")
        assert app.bench.draft.flags == DEMO.flags


def test_a_remedy_that_loses_the_need_that_the_recipe_states_says_so(session: FakeSession) -> None:
    wishes = msgspec.structs.replace(DEMO.tuner, need_input_tokens=100_000, need_agents=2)
    needy = msgspec.structs.replace(DEMO, tuner=wishes)
    bench, inputs = Bench.opened(needy), session.planning_inputs(needy)
    lower, other = (
        Case("plan", msgspec.structs.replace(OUT_OF_MEMORY, flags=flags))
        for flags in ({"mem_fraction_static": 0.75}, {RATIO: 0.8})
    )
    lost = remedy_of(lower, bench, inputs).lost
    assert lost.startswith("The need that the recipe states is then no longer met: the KV pool holds")
    assert remedy_of(other, bench, inputs).lost == ""
    assert remedy_of(lower, Bench.opened(DEMO), inputs).lost == ""


async def test_dragging_a_knob_marks_no_text(opened: Opened) -> None:
    async with opened() as (app, pilot):
        knob = app.screen.query_one(f"#{RATIO}", Slider)
        await pilot.mouse_down(knob, offset=(30, 0))
        await pilot.hover(knob, offset=(24, 0))
        await pilot.mouse_up(knob, offset=(24, 0))
        await pilot.pause()
        assert not app.screen.selections


def test_a_remedy_is_an_undo_of_its_own() -> None:
    bench = Bench.opened(DEMO).changed({RATIO: 0.8}).applied({RATIO: 0.3}).changed({RATIO: 0.2})
    assert [bench.undone().draft.flags[RATIO], bench.undone().undone().draft.flags[RATIO]] == [0.3, 0.8]


# presets


async def test_a_preset_is_looked_at_and_taken_to_the_tune_screen_by_enter(
    session: FakeSession, opened: Opened
) -> None:
    (session.home.presets / "broken.toml").write_text("[server\n")
    (session.home.presets / "mine.toml").write_text(
        '# My own.\n[server]\nmodel_path = "/m"\n[memory]\nmem_fraction_static = 0.7\n'
    )
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("6")
        await until(pilot, lambda: "qwen3-next-80b" in screen_text(app))
        listing = app.screen.query_one("#presets", OptionList)
        names = [p.name for p in app.screen.presets]  # type: ignore[attr-defined]
        listing.highlighted = names.index("broken")
        await until(pilot, lambda: "✗" in screen_text(app))
        await pilot.press("enter")
        await pilot.pause()
        assert app.current_mode == "presets"
        listing.highlighted = names.index("mine")
        await until(pilot, lambda: "My own." in screen_text(app) and "Here it would give" in screen_text(app))
        listing.focus()
        await pilot.press("enter")
        await until(pilot, lambda: app.current_mode == "tune")
        assert app.bench.draft.flags == {"model_path": "/m", "mem_fraction_static": 0.7}
        assert app.bench.draft.python == DEMO.python
        await pilot.press("ctrl+z")
        await pilot.pause()
        assert app.bench.draft.flags == DEMO.flags


def test_a_preset_over_a_running_server_stays_on_its_port() -> None:
    bench = Bench.opened(DEMO, "r1").loaded(Recipe(flags={"model_path": "/m", "port": 9}))
    assert bench.draft.port == DEMO.port
    assert bench.base.flags == DEMO.flags


# settings


async def test_keys_can_be_changed_in_the_settings_file(session: FakeSession, opened: Opened) -> None:
    (session.home.config / "app.toml").write_text('[keys]\nrestart = "f5"\nnonsense = "f6"\n')
    async with opened() as (app, pilot):
        await until(pilot, lambda: "no key is called nonsense" in told(app))
        await pilot.press("R")
        await pilot.pause()
        assert not isinstance(app.screen, ConfirmScreen)
        await pilot.press("f5")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))


@pytest.mark.parametrize(
    ("text", "said"), [("keys = 3", "is not used"), ("[", "is not used"), ('theme = "x"', "there is no theme 'x'")]
)
async def test_a_settings_file_that_cannot_be_used_is_one_sentence(
    session: FakeSession, opened: Opened, text: str, said: str
) -> None:
    (session.home.config / "app.toml").write_text(text)
    async with opened() as (app, pilot):
        await until(pilot, lambda: said in told(app))


async def test_light_and_dark_change_by_a_key(opened: Opened) -> None:
    async with opened() as (app, pilot):
        shades = [app.current_theme.dark]
        for _ in range(2):
            await pilot.press("T")
            shades.append(app.current_theme.dark)
        assert shades == [True, False, True]


async def test_a_terminal_without_unicode_gets_ascii_on_every_screen(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_ASCII", "1")
    ran(session)
    ran(session)
    session.history.set_note(2, "试一试")
    async with opened(size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r2")
        for key in ("1", "2", "3", "4", "5", "6", "question_mark"):
            await pilot.press(key)
            await pilot.pause()
            await pilot.pause(0.1)
            text = screen_text(app)
            assert text.isascii(), [c for c in text if not c.isascii()]
            assert "SIMULATED - not a real SGLang" in text or key == "question_mark"


@pytest.mark.parametrize(
    ("environ", "encoding", "ascii_only"),
    [
        ({}, "utf-8", False), ({}, "UTF8", False), ({}, "iso-8859-1", True), ({}, "ascii", True),
        ({"TUNER_ASCII": "1"}, "utf-8", True), ({"TUNER_ASCII": "0"}, "ascii", False),
    ],
)  # fmt: skip
def test_ascii_is_for_terminals_that_have_nothing_else_or_on_request(
    environ: dict[str, str], encoding: str, ascii_only: bool
) -> None:
    assert only_ascii(environ, encoding) is ascii_only


def test_ascii_keeps_the_columns() -> None:
    assert to_ascii("● 池 ━┃") == "O ?? =|"


# numbers


async def test_every_number_of_the_plan_tells_where_it_comes_from(session: FakeSession, opened: Opened) -> None:
    session.known = (("r7", OFF),)
    session.note = "r8 does not calibrate this plan. Its driver was another."
    async with opened(size=(120, 50)) as (app, pilot):
        assert "r8 does not calibrate this plan." in screen_text(app)
        assert "off 0.02 %, 1 slot (r7)" in screen_text(app)
        await pilot.press("t")
        await until(pilot, lambda: isinstance(app.screen, NumbersScreen))
        await until(pilot, lambda: "free before the weights" in screen_text(app))
        text = screen_text(app)
        assert "boot log" in text
        assert "r8 does not calibrate this plan." in text
        await pilot.press("end")
        await until(pilot, lambda: "KV tokens +0.020 %" in screen_text(app))


async def test_the_range_that_two_decimals_allow_stands_beside_the_number(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tuner.planner import plan as real

    monkeypatch.setattr(
        "tuner.ui.preview.make_plan",
        lambda inputs: msgspec.structs.replace(real(inputs), kv_tokens_low=220_000, kv_tokens_high=221_000),
    )
    async with opened(size=(120, 36)) as (app, _):
        assert "220,000 to 221,000" in screen_text(app)


def test_the_errors_of_the_last_plans_are_told_in_as_many_words_as_fit(session: FakeSession) -> None:
    from tuner.planner import plan

    made = plan(session.planning_inputs(DEMO))
    assert worst_error((("r2", EXACT),)) == "exact"
    assert worst_error((("r3", OFF), ("r2", EXACT))) == "off 0.02 %, 1 slot"
    assert basis(made, 80, (("r3", OFF),)) == "formula · last plans off 0.02 %, 1 slot (r3)"
    assert basis(made, 28, (("r3", OFF),)) == "formula · off 0.02 %, 1 slot"
    assert basis(made, 7, (("r3", OFF),)) == "formula"
    assert between(1000, 2000) == "1,000 to 2,000"
    assert between(5, 5) == between(None, 5) == ""
    assert took(0.0004) == "< 0.1 s"


# lists


async def test_the_rounds_list_fits_after_the_terminal_was_made_smaller_elsewhere(
    session: FakeSession, opened: Opened
) -> None:
    ran(session)
    async with opened(size=(160, 40)) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        await pilot.press("2")
        await until(pilot, lambda: "r1 sim" in screen_text(app))
        await pilot.press("1")
        await pilot.resize_terminal(80, 24)
        await pilot.press("2")
        await pilot.pause()
        await until(pilot, lambda: any("r1 sim" in x and "4/4" in x for x in screen_text(app).splitlines()))


async def test_a_click_on_a_round_shows_it_and_a_second_click_opens_it(session: FakeSession, opened: Opened) -> None:
    ran(session)
    ran(session)
    async with opened() as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "r1 sim" in screen_text(app))
        row = next(i for i, x in enumerate(screen_text(app).splitlines()) if "r1 sim" in x)
        await pilot.click(offset=(30, row))
        await until(pilot, lambda: "r1 verified" in screen_text(app))
        assert not isinstance(app.screen, DetailsScreen)
        await pilot.click(offset=(30, row))
        await until(pilot, lambda: isinstance(app.screen, DetailsScreen))


async def test_the_palette_tells_keys_and_leaves_out_moves_inside_a_widget(opened: Opened) -> None:
    async with opened() as (app, _):
        commands = {c.title: c.help for c in app.get_system_commands(app.screen)}
        assert commands["Export"].endswith("key e")
        assert "Knob below" not in commands
        assert {"Doctor", "Presets", "Light or dark", "Numbers", "Redo"} <= commands.keys()


async def test_help_names_each_key_once_and_says_how_to_change_it(opened: Opened) -> None:
    async with opened(size=(120, 60)) as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: "Keys: Tune" in screen_text(app))
        text = screen_text(app)
        assert "?, f1" in text
        assert "?, ?" not in text
        await pilot.press("end")
        await until(pilot, lambda: "[keys]" in screen_text(app))


async def test_two_rounds_compare_with_one_row_a_pool_and_the_plan_beside_it(
    session: FakeSession, opened: Opened
) -> None:
    ran(session)
    ran(session, DEMO.with_flags({RATIO: 0.3}))
    async with opened(size=(120, 36)) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r2")
        await pilot.press("3")
        await until(pilot, lambda: "r1 → r2" in screen_text(app))
        rows = [x for x in screen_text(app).splitlines() if "KV tokens" in x and "better" in x]
        assert len(rows) == 1
        assert "as planned" in rows[0]
        assert "(predicted)" not in screen_text(app)


async def test_readings_of_an_idle_server_make_no_chart(session: FakeSession, opened: Opened) -> None:
    idle = msgspec.structs.replace(busy(220_000, 81), kv_used_tokens=0)
    for number in (1, 2):
        ran(session)
        session.history.add_samples(number, [msgspec.structs.replace(idle, at=idle.at + i) for i in range(9)])
    async with opened(size=(120, 40)) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r2")
        await pilot.press("3")
        await until(pilot, lambda: "r1 → r2" in screen_text(app))
        assert not app.screen.query("PairChart")
        assert app.screen.query_one("PairBars").display


def test_a_home_without_settings_has_the_defaults(tmp_path: Path) -> None:
    from tuner.ui.settings import AppSettings, read_settings

    assert read_settings(tmp_path) == AppSettings()
