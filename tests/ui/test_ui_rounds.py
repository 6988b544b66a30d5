"""What an operator does with rounds: start, watch, abort, list, compare, note, export, judge."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import msgspec
import pytest
from textual.widgets import Input
from uifakes import DEMO, FakeSession
from uiscreen import Opened, screen_text, told, until

from tuner.recipe.model import Recipe, RecipeError
from tuner.rounds.model import FIRST_ANSWERS, Round, RoundState
from tuner.session.deaths import refusal
from tuner.ui.app import TunerApp
from tuner.ui.screens.dialog import ConfirmScreen
from tuner.ui.screens.export import Written
from tuner.ui.screens.rounds import RoundList
from tuner.ui.screens.working import WorkingScreen
from tuner.ui.widgets.log_view import LogView
from tuner.ui.widgets.slider import Slider

RATIO = "mamba_full_memory_ratio"


def ran(session: FakeSession, recipe: Recipe = DEMO, note: str = "", fail_in: str | None = None) -> Round:
    session.fail_in = fail_in
    round_ = session.run_round(recipe, publish=lambda _: None, cancel=threading.Event(), note=note)
    session.fail_in = None
    return round_


async def test_the_demo_starts_its_first_round_by_itself_and_shows_the_checks_pass(
    session: FakeSession, opened: Opened
) -> None:
    async with opened(demo=True) as (app, pilot):
        await until(pilot, lambda: app.progress is not None and app.progress.ended)
        await pilot.pause()
        text = screen_text(app)
        assert "All 4 checks passed." in text
        assert "prefix reuse" in text
        assert session.history.get(1).state is RoundState.VERIFIED


async def test_a_restart_that_compiles_after_ready_is_told_with_all_its_time(
    session: FakeSession, opened: Opened
) -> None:
    ran(session)
    session.history.save(msgspec.structs.replace(session.history.get(1), phase_seconds={FIRST_ANSWERS: 80.0}))
    async with opened(size=(120, 40)) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1" and app.baseline.name == "r1")
        app.screen.query_one(f"#{RATIO}", Slider).focus()
        await pilot.press("left", "R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.pause()
        assert "to be ready before (r1), its first answers 1 min 20 s" in " ".join(screen_text(app).split())


async def test_the_restart_dialog_shows_only_the_changed_flags_and_what_they_will_give(
    session: FakeSession, opened: Opened
) -> None:
    ran(session)
    async with opened(size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1" and app.baseline.name == "r1")
        app.screen.query_one(f"#{RATIO}", Slider).focus()
        await pilot.press("left", "R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.pause()
        text = screen_text(app)
        assert "1 flag changed" in text
        assert RATIO in text
        assert "0.9 → 0.85" in text
        assert "max_running_requests" not in text
        assert "Predicted" in text
        assert f"{session.history.get(1).boot.kv_tokens:,} →" in text  # type: ignore[union-attr]
        assert "It took 32 s to be ready before (r1)." in text
        assert "3 requests are in flight: they get up to 60 s to finish" in text
        await pilot.press("escape")
        await pilot.pause()
        assert session.history.count() == 1


async def test_confirming_runs_the_round_with_the_draft_and_the_knobs_then_stand_as_running(
    session: FakeSession, opened: Opened
) -> None:
    ran(session)
    async with opened() as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        app.screen.query_one(f"#{RATIO}", Slider).focus()
        await pilot.press("left", "ctrl+r")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("enter")
        await until(pilot, lambda: app.running_name == "r2")
        assert session.asked[-1].flags[RATIO] == pytest.approx(0.85)
        assert app.bench.changes() == ()
        assert app.bench.base.flags[RATIO] == pytest.approx(0.85)


async def test_a_start_that_will_fail_asks_with_the_focus_on_cancel(session: FakeSession, opened: Opened) -> None:
    async with opened() as (app, pilot):
        app.screen.query_one("#mem_fraction_static", Slider).focus()
        await pilot.press("home", "R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.pause()
        assert "Start anyway" in screen_text(app)
        await pilot.press("enter")
        await pilot.pause()
        assert session.history.count() == 0


async def test_a_start_shows_its_phases_can_be_left_and_found_again_and_aborted(
    session: FakeSession, opened: Opened
) -> None:
    session.gate.clear()
    async with opened() as (app, pilot):
        await pilot.press("R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: app.progress is not None and app.progress.current == "launching")
        await pilot.pause()
        text = screen_text(app)
        assert "loading weights" in text
        assert "[rank0] 42%" in text
        await pilot.press("escape")
        await pilot.pause()
        assert "Starting r1 · launching · p shows it" in screen_text(app)
        await pilot.press("p")
        await until(pilot, lambda: isinstance(app.screen, WorkingScreen))
        await pilot.press("x")
        await until(pilot, lambda: app.progress is not None and app.progress.ended)
        await pilot.pause()
        assert session.history.get(1).state is RoundState.ABORTED
        assert "aborted in launching" in screen_text(app)


async def test_a_failed_start_says_the_phase_the_reason_and_what_to_do(session: FakeSession, opened: Opened) -> None:
    session.fail_in = "sizing pools"
    async with opened(demo=True) as (app, pilot):
        await until(pilot, lambda: app.progress is not None and app.progress.ended)
        await pilot.pause()
        text = screen_text(app)
        assert "The server did not come up." in text
        assert "failed in sizing pools: Not enough memory for the pools" in text
        assert "Raise mem_fraction_static." in text


async def test_the_rounds_list_has_one_line_a_round_failed_ones_with_their_reason(
    session: FakeSession, opened: Opened
) -> None:
    ran(session, note="first")
    ran(session, DEMO.with_flags({RATIO: 0.3}), note="更多的 KV [/bold] 池")
    ran(session, DEMO.with_flags({"mem_fraction_static": 0.55}), fail_in="sizing pools")
    async with opened() as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "r1 sim" in screen_text(app))
        lines = {line[4:6]: line for line in screen_text(app).splitlines() if " sim " in line}
        assert "ratio 0.9→0.3" in lines["r2"]
        assert "更多的 KV [/bold] 池" in lines["r2"]
        assert "4/4 ✓" in lines["r2"]
        assert "failed in sizing pools: Not enough memory" in lines["r3"]
        assert "first round" in lines["r1"]


async def test_ten_thousand_rounds_are_paged(session: FakeSession, opened: Opened) -> None:
    template = ran(session)
    for _ in range(120):
        session.history.open_round(template)
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "of 121" in screen_text(app))
        listing = app.screen.query_one(RoundList)
        assert listing.option_count <= listing.size.height
        await pilot.press("end")
        await until(pilot, lambda: "r1 sim" in screen_text(app))
        await pilot.press("home")
        await until(pilot, lambda: "r121 sim" in screen_text(app))
        for _ in range(listing.option_count):
            await pilot.press("down")
        await until(pilot, lambda: "r121 sim" not in screen_text(app))


async def test_marking_two_rounds_and_comparing_them_puts_the_changes_first(
    session: FakeSession, opened: Opened
) -> None:
    ran(session)
    ran(session, DEMO.with_flags({"schedule_policy": "fcfs"}))
    ran(session, DEMO.with_flags({RATIO: 0.3}))
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "r1 sim" in screen_text(app))
        await pilot.press("space", "down", "down", "space", "c")
        await until(pilot, lambda: app.current_mode == "compare" and "r3 → r1" in screen_text(app))
        assert app.marked == (3, 1)
        await pilot.press("w")
        await until(pilot, lambda: "r1 → r3" in screen_text(app))
        text = screen_text(app)
        assert text.index(RATIO) < text.index("Pools")
        assert "schedule_policy" not in text
        await pilot.press("left")
        await until(pilot, lambda: "r1 → r2" in screen_text(app))
        assert "schedule_policy" in screen_text(app)


async def test_without_marks_the_newest_round_is_compared_with_the_one_before(
    session: FakeSession, opened: Opened
) -> None:
    ran(session)
    ran(session, DEMO.with_flags({RATIO: 0.3}))
    async with opened() as (app, pilot):
        await pilot.press("3")
        await until(pilot, lambda: "r1 → r2" in screen_text(app))


async def test_a_note_with_wide_characters_is_kept_and_shown(session: FakeSession, opened: Opened) -> None:
    ran(session)
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "r1 sim" in screen_text(app))
        await pilot.press("n")
        await until(pilot, lambda: bool(app.screen.query("#note")))
        app.screen.query_one("#note", Input).value = "状态槽够用了 [b]"
        await pilot.press("enter")
        await until(pilot, lambda: session.history.get(1).note == "状态槽够用了 [b]")
        await until(pilot, lambda: "状态槽够" in screen_text(app))


async def test_exporting_writes_the_file_and_asks_before_it_replaces_one(
    session: FakeSession, opened: Opened, tmp_path: Path
) -> None:
    ran(session)
    target = tmp_path / "r1.toml"
    async with opened() as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        await pilot.press("e")
        await until(pilot, lambda: bool(app.screen.query("#path")))
        app.screen.query_one("#path", Input).value = str(target)
        await pilot.press("enter")
        await until(pilot, target.exists)
        assert target.read_text() == "# toml of r1\n"
        target.write_text("mine")
        await until(pilot, lambda: not app.screen.query("#path"))
        await pilot.press("e")
        await until(pilot, lambda: bool(app.screen.query("#path")))
        app.screen.query_one("#path", Input).value = str(target)
        await pilot.press("enter")
        await until(pilot, lambda: "Enter again replaces it" in screen_text(app))
        assert target.read_text() == "mine"
        await pilot.press("enter")
        await until(pilot, lambda: target.read_text() != "mine")


def test_what_to_do_with_an_exported_file_can_be_pasted_whatever_its_name() -> None:
    assert Written("/tmp/a b/状态.sh", "sh").next == "bash '/tmp/a b/状态.sh' starts it."
    assert Written("/srv/r1.toml", "toml").next == "tuner run /srv/r1.toml starts it."


async def test_what_cannot_be_exported_is_said_and_the_app_goes_on(
    session: FakeSession, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(session)
    monkeypatch.chdir(tmp_path)

    def cannot(number: int, fmt: str) -> str:
        raise RecipeError(f"old_flag of r{number} is not a flag of SGLang.")

    async with opened() as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        await pilot.press("e")
        await until(pilot, lambda: bool(app.screen.query("#path")))
        app.screen.query_one("#path", Input).value = "~nobody-of-that-name/r1.toml"
        await pilot.press("enter")
        await until(pilot, lambda: "cannot be written: No such file" in " ".join(screen_text(app).split()))
        monkeypatch.setattr(session, "export", cannot)
        await pilot.press("escape")
        await until(pilot, lambda: not app.screen.query("#path"))
        await pilot.press("e")
        await until(pilot, lambda: bool(app.screen.query("#path")))
        app.screen.query_one("#path", Input).value = str(tmp_path / "r1.sh")
        await pilot.press("enter")
        await until(pilot, lambda: "old_flag of r1 is not a flag of SGLang." in screen_text(app))
        assert not (tmp_path / "r1.sh").exists()


async def test_a_round_is_exported_in_any_format_under_a_name_that_fits(
    session: FakeSession, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ran(session)
    async with opened(size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        await pilot.press("e")
        await until(pilot, lambda: bool(app.screen.query("#path")))
        assert "a systemd service that keeps this server up" in screen_text(app)
        await pilot.press("end", "up", "up", "up")
        await until(pilot, lambda: app.screen.query_one("#path", Input).value == "r1-sglang.service")
        app.screen.query_one("#path", Input).focus()
        await pilot.press("enter")
        written = tmp_path / "r1-sglang.service"
        await until(pilot, written.exists)
        await until(pilot, lambda: written.read_text() == "# systemd of r1\n")


async def test_work_asked_for_while_a_start_is_prepared_is_not_lost_and_can_still_be_aborted(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran(session)
    session.gate.clear()
    asked, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        asked.set()
        go_on.wait()

    monkeypatch.setattr("tuner.ui.workflow.last_like", slow)
    async with opened() as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        app.workflow.begin_round()
        await until(pilot, asked.is_set)
        monkeypatch.setattr(session, "verify", lambda publish, cancel: cancel.wait() and None)
        await pilot.press("v")
        await until(pilot, lambda: app.runner.busy)
        go_on.set()
        await until(pilot, lambda: "Not begun: checking the running server is still under way" in told(app))
        assert session.history.count() == 1
        await pilot.press("x")
        await until(pilot, lambda: not app.runner.busy)
        session.gate.set()


async def test_keep_and_reject_mark_a_round_and_take_the_mark_away(session: FakeSession, opened: Opened) -> None:
    ran(session)
    async with opened() as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        for key, verdict in (("k", "keep"), ("x", "reject"), ("x", "")):
            await pilot.press(key)
            await until(pilot, lambda verdict=verdict: session.history.get(1).verdict == verdict)  # type: ignore[misc]


async def test_going_back_to_the_last_good_round_puts_its_flags_on_the_bench(
    session: FakeSession, opened: Opened
) -> None:
    ran(session)
    ran(session, DEMO.with_flags({RATIO: 0.3, "disable_radix_cache": True}))
    async with opened() as (app, pilot):
        await until(pilot, lambda: app.running_name == "r2")
        await pilot.press("2")
        await until(pilot, lambda: "r1 sim" in screen_text(app))
        await pilot.press("down")
        await until(pilot, lambda: "r1 verified" in screen_text(app))
        await pilot.press("u")
        await until(pilot, lambda: app.current_mode == "tune")
        assert app.bench.draft.flags == DEMO.flags
        assert {c.name for c in app.bench.changes()} == {RATIO, "disable_radix_cache"}


async def test_stopping_asks_first_and_leaves_the_knobs_where_they_are(session: FakeSession, opened: Opened) -> None:
    ran(session)
    async with opened() as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        await pilot.press("s")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: session.stopped == 1 and app.running_name == "")
        assert app.bench.draft.flags == DEMO.flags


async def test_verifying_shows_each_check(session: FakeSession, opened: Opened) -> None:
    ran(session)
    async with opened() as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        await pilot.press("v")
        await until(pilot, lambda: app.progress is not None and app.progress.ended)
        await pilot.pause()
        assert "thought, then answered" in screen_text(app)


async def test_the_log_follows_the_file_finds_words_and_never_reads_markup(
    session: FakeSession, opened: Opened, tmp_path: Path
) -> None:
    round_ = ran(session)
    log = Path(round_.log_path)
    log.write_bytes(
        b"[rank0]: error\n[/bold] \x1b[31mred\x1b[0m\nLoading: 10%\rLoading: 55%\rLoading: 100%\n" + "权重\n".encode()
    )
    async with opened(size=(80, 24)) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        await pilot.press("4")
        await until(pilot, lambda: "[rank0]: error" in screen_text(app))
        text = screen_text(app)
        assert "[/bold] red" in text
        assert "Loading: 100%" in text
        assert "Loading: 55%" not in text
        assert "权重" in text
        with log.open("a") as file:
            file.write("The server is fired up and ready to roll!\nGraphs: 3/10\rGraphs: 7/10")
        await until(pilot, lambda: "ready to roll" in screen_text(app) and "Graphs: 7/10" in screen_text(app))
        await pilot.press("slash", *"roll", "enter")
        await until(pilot, lambda: "hit 1/1" in screen_text(app))
        await pilot.press("f")
        assert app.screen.query_one(LogView).following


async def test_what_is_found_far_along_a_line_of_the_log_is_brought_into_sight(
    session: FakeSession, opened: Opened
) -> None:
    far = f"{'状态池 ' * 40}needle{'.' * 300}"
    Path(ran(session).log_path).write_text(f"{far}\nneedle at the start\n", encoding="utf-8")
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("4")
        await until(pilot, lambda: "needle at the start" in screen_text(app))
        await pilot.press("slash", *"needle.", "enter")
        await until(pilot, lambda: "hit 1/1" in screen_text(app) and "needle....." in screen_text(app))
        assert "at the start" not in screen_text(app)
        await pilot.press("slash", *["backspace"] * 7, *"start", "enter")
        await until(pilot, lambda: "needle at the start" in screen_text(app))


FOUR = (80, 24)


async def test_rounds_are_found_by_the_words_of_the_command_line(session: FakeSession, opened: Opened) -> None:
    ran(session, note="first try")
    ran(session, DEMO.with_flags({RATIO: 0.3}), note="longer inputs")
    ran(session, DEMO.with_flags({"mem_fraction_static": 0.55}), fail_in="sizing pools")
    session.history.set_tags(2, ["winner"])
    session.history.set_verdict(1, "reject")
    async with opened(size=FOUR) as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "r1 sim" in screen_text(app))
        assert "#winner" in screen_text(app) and "reject" in screen_text(app)
        await pilot.press("slash")
        for words, numbers in (
            ("failed", {"r3"}),
            ("#winner", {"r2"}),
            ("rejected", {"r1"}),
            ("longer", {"r2"}),
            (f"{RATIO}=0.3", {"r2"}),
            ("real", set()),
            ("front", {"r2"}),
        ):
            app.screen.query_one("#wanted", Input).value = words
            await until(pilot, lambda numbers=numbers: names_shown(app) == numbers)  # type: ignore[misc]
        await pilot.press("escape")
        await until(pilot, lambda: names_shown(app) == {"r1", "r2", "r3"})


def names_shown(app: TunerApp) -> set[str]:
    return {line[4:6] for line in screen_text(app).splitlines() if line[7:10] == "sim"}


async def test_a_flag_value_that_cannot_be_is_told_and_the_list_stays(session: FakeSession, opened: Opened) -> None:
    ran(session)
    async with opened() as (app, pilot):
        await pilot.press("2", "slash")
        app.screen.query_one("#wanted", Input).value = "mem_fraction_static=much"
        await until(pilot, lambda: "it takes a number above 0" in screen_text(app))
        assert names_shown(app) == {"r1"}


async def test_tags_are_written_in_the_app_and_a_word_that_is_none_is_told(
    session: FakeSession, opened: Opened
) -> None:
    ran(session)
    session.history.set_tags(1, ["old"])
    async with opened(size=FOUR) as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "r1 verified" in screen_text(app))
        await pilot.press("t")
        await until(pilot, lambda: "In use: old" in screen_text(app))
        app.screen.query_one("#tags", Input).value = "x" * 41
        await pilot.press("enter")
        await until(pilot, lambda: "one word of up to 40 letters" in screen_text(app))
        app.screen.query_one("#tags", Input).value = "#winner 长输入"
        await pilot.press("enter")
        await until(pilot, lambda: session.history.get(1).tags == ("winner", "长输入"))


async def test_one_damaged_round_is_listed_as_such_and_everything_else_works(
    session: FakeSession, opened: Opened
) -> None:
    for ratio in (0.9, 0.5, 0.3):
        ran(session, DEMO.with_flags({RATIO: ratio}), note="known")
    with sqlite3.connect(session.history.path) as connection:
        connection.execute("UPDATE rounds SET body = substr(body, 1, 99) WHERE number = 2")
    async with opened() as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "damaged: its record is cut short" in screen_text(app))
        await pilot.press("down")
        await until(pilot, lambda: "Still known: verified" in screen_text(app))
        assert "note: known" in screen_text(app)
        await pilot.press("escape", "space", "down", "space", "up", "up", "space", "c")
        await until(pilot, lambda: "r2 cannot be read from the history and is left out." in screen_text(app))
        assert "r1 to r3" in screen_text(app)


async def test_three_marked_rounds_become_a_table_with_charts(session: FakeSession, opened: Opened) -> None:
    for ratio in (0.9, 0.5, 0.3, 0.2):
        ran(session, DEMO.with_flags({RATIO: ratio}))
    async with opened(size=FOUR) as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "r1 sim" in screen_text(app))
        await pilot.press("space", "down", "space", "down", "space", "down", "space", "c")
        await until(pilot, lambda: "4 rounds" in screen_text(app))
        assert "← 0 more · 1 more →" in screen_text(app) and "r1 " not in screen_text(app).splitlines()[7]
        await pilot.press("right")
        await until(pilot, lambda: "← 1 more · 0 more →" in screen_text(app))
        await pilot.press("g")
        await until(pilot, lambda: "█" in screen_text(app) and "KV tokens" in screen_text(app))
        await pilot.press("right")
        await until(pilot, lambda: "state slots" in screen_text(app))


async def test_after_a_round_that_failed_the_last_good_one_is_one_click_away(
    session: FakeSession, opened: Opened
) -> None:
    ran(session, note="the good one")
    async with opened(size=FOUR) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        app.change({RATIO: 0.3})
        session.fail_in = "capturing graphs"
        await pilot.press("R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: "Go back to r1 (b)" in screen_text(app))
        session.fail_in = None
        await pilot.click("#back")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await until(pilot, lambda: "Note: the good one" in screen_text(app))
        await pilot.press("y")
        await until(pilot, lambda: app.progress is not None and app.progress.good)
        assert session.history.get(3).recipe.flags == session.history.get(1).recipe.flags
        assert app.bench.draft.flags[RATIO] == DEMO.flags[RATIO]


async def test_what_died_twice_alike_is_started_all_the_same_after_seeing_what_died(
    session: FakeSession, opened: Opened
) -> None:
    deaths = (ran(session, fail_in="capturing graphs"), ran(session, fail_in="capturing graphs"))
    session.refuse = (refusal(deaths, ("torch.OutOfMemoryError: CUDA out of memory [/bold]",)),)
    async with opened(size=FOUR) as (app, pilot):
        await pilot.press("R")
        await until(pilot, lambda: isinstance(app.screen, ConfirmScreen))
        await pilot.press("y")
        await until(pilot, lambda: "it died twice in the same way" in screen_text(app))
        await until(pilot, lambda: "Start anyway (f)" in screen_text(app))
        await pilot.click("#force")
        await until(pilot, lambda: "torch.OutOfMemoryError: CUDA out of memory [/bold]" in screen_text(app))
        assert "This recipe died 2 times in a row" in screen_text(app)
        await pilot.press("y")
        await until(pilot, lambda: session.forced == [False, False, False, True])
