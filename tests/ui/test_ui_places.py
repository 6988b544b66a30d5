"""Getting around: keys, help, sizes, the mark of a stand-in, leaving."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from uifakes import DEMO, REAL, FakeSession
from uiscreen import Opened, screen_text, until

from tuner.metrics.model import Readings
from tuner.paths import HomeError
from tuner.recipe.model import Recipe
from tuner.rounds.errors import HistoryError
from tuner.rounds.history import History
from tuner.text import width
from tuner.ui.messages import InputsArrived
from tuner.ui.screens.help import HelpScreen

MARK = "SIMULATED — not a real SGLang"
ESSENTIAL = ("KV tokens", "State slots", "Requests", "Longest input", "Free at ready", "Binds", "Numbers", "headroom",
             "Mem fraction", "State:KV ratio", "Speculation", "Max requests", "TTFT", "ITL", "R Restart", "q Quit",
             "? help", "VRAM")  # fmt: skip


def serve(session: FakeSession) -> None:
    session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 50)])
async def test_no_size_clips_what_matters(session: FakeSession, opened: Opened, size: tuple[int, int]) -> None:
    serve(session)
    async with opened(size=size) as (app, pilot):
        await until(pilot, lambda: app.baseline.name == "r1")
        await pilot.pause()
        text = screen_text(app)
        for word in ESSENTIAL:
            assert word in text, word
        assert all(width(line) <= size[0] for line in text.splitlines())
        preview = app.screen.query_one("#preview")
        assert preview.max_scroll_y == 0
        assert app.screen.query_one("#knobs").max_scroll_y == 0


@pytest.mark.parametrize("size", [(80, 24), (200, 50)])
async def test_the_stand_in_is_marked_on_every_screen(
    session: FakeSession, opened: Opened, size: tuple[int, int]
) -> None:
    serve(session)
    serve(session)
    async with opened(size=size) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r2")
        for key in "1234":
            await pilot.press(key)
            await pilot.pause()
            await until(pilot, lambda: MARK in screen_text(app))


async def test_a_real_server_has_no_such_mark(session: FakeSession, opened: Opened) -> None:
    async with opened(recipe=REAL) as (app, pilot):
        for key in "1234":
            await pilot.press(key)
            await pilot.pause()
            assert "SIMULATED" not in screen_text(app)


async def test_help_lists_the_keys_of_the_screen_and_of_the_knob_in_focus(opened: Opened) -> None:
    async with opened() as (app, pilot):
        await pilot.press("question_mark")
        await until(pilot, lambda: isinstance(app.screen, HelpScreen))
        await pilot.pause()
        text = screen_text(app)
        assert "Keys: Tune" in text
        assert "A coarse step down" in text
        assert "Take the last change of a knob back" in text
        await pilot.press("end")
        await pilot.pause()
        await until(pilot, lambda: "What the server prints" in screen_text(app))
        await pilot.press("escape")
        await pilot.press("2", "question_mark")
        await until(pilot, lambda: "Keys: Rounds" in screen_text(app))
        assert "Mark rounds to compare" in screen_text(app)


async def test_every_key_with_a_tooltip_is_in_the_command_palette(opened: Opened) -> None:
    async with opened() as (app, _):
        commands = {c.title: c.help for c in app.get_system_commands(app.screen)}
        for title in ("Restart", "Stop", "Verify", "Note", "Export", "Keep", "Reject", "Rounds", "Log", "Undo", "Quit"):
            assert commands[title]


async def test_screens_open_by_a_click_on_their_names(opened: Opened) -> None:
    async with opened() as (app, pilot):
        bar = app.screen.query_one("NavBar")
        at = screen_text(app).splitlines()[0].index("Rounds")
        await pilot.click(bar, offset=(at, 0))
        await until(pilot, lambda: app.current_mode == "rounds")


async def test_keys_of_the_footer_work_by_click(session: FakeSession, opened: Opened) -> None:
    async with opened(size=(80, 24)) as (app, pilot):
        lines = screen_text(app).splitlines()
        await pilot.click(offset=(lines[23].index("R Restart") + 3, 23))
        await until(pilot, lambda: "Start the server" in screen_text(app))


async def test_a_server_started_earlier_is_adopted_and_the_knobs_start_there(
    session: FakeSession, opened: Opened
) -> None:
    session.run_round(DEMO.with_flags({"mem_fraction_static": 0.91}), publish=lambda _: None, cancel=threading.Event())
    async with opened(demo=True) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        assert app.bench.draft.flags["mem_fraction_static"] == 0.91
        assert session.history.count() == 1
        assert "r1 runs on port 30000" in screen_text(app)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
async def test_a_signal_ends_the_app_properly_and_leaves_the_server_up(
    session: FakeSession, opened: Opened, number: signal.Signals
) -> None:
    serve(session)
    async with opened() as (app, pilot):
        os.kill(os.getpid(), number)
        await until(pilot, lambda: app._exit)
        await asyncio.sleep(0)
    assert session.server is not None
    assert session.stopped == 0


async def test_quitting_while_a_start_is_under_way_asks_first(session: FakeSession, opened: Opened) -> None:
    session.gate.clear()
    async with opened(demo=True) as (app, pilot):
        await until(pilot, lambda: app.progress is not None and app.progress.current == "launching")
        await pilot.press("escape", "q")
        await until(pilot, lambda: "The work goes on without being watched" in screen_text(app))
        await pilot.press("escape")
        await pilot.pause()
        assert not app._exit
        session.gate.set()
        await until(pilot, lambda: not app.runner.busy)


async def test_a_server_that_stops_answering_is_said_at_once(session: FakeSession, opened: Opened) -> None:
    serve(session)
    async with opened() as (app, pilot):
        await until(pilot, lambda: "r1 runs" in screen_text(app))
        session.readings = Readings(at=1.0)
        await until(pilot, lambda: "r1 on port 30000 does not answer" in screen_text(app))
        assert "220,6" not in screen_text(app).split("VRAM")[-1]


async def test_a_history_that_cannot_be_read_is_one_sentence_on_the_screen(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened() as (app, pilot):

        def broken(**_: object) -> None:
            raise HistoryError("The disk that holds the history is full: free some space.")

        monkeypatch.setattr(session, "look", broken)
        await until(pilot, lambda: "The disk that holds the history is full" in screen_text(app))
        assert not app._exit


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HomeError("The folder for logs cannot be made: free it."), "The folder for logs cannot be made"),
        (PermissionError(13, "Permission denied", "/x/servers"), "/x/servers: Permission denied."),
    ],
)
async def test_a_poll_that_fails_is_said_and_polling_goes_on(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    async with opened() as (app, pilot):

        def broken(**_: object) -> None:
            raise error

        with monkeypatch.context() as patched:
            patched.setattr(session, "look", broken)
            await until(pilot, lambda: said in app.look_problem)
        await until(pilot, lambda: app.look_problem == "")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (HomeError("The cache cannot be written: free it."), "The cache cannot be written"),
        (PermissionError(13, "Permission denied", "/models/x"), "/models/x: Permission denied."),
    ],
)
async def test_inputs_that_cannot_be_read_are_one_sentence(
    session: FakeSession, opened: Opened, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def broken(recipe: Recipe) -> None:
        raise error

    monkeypatch.setattr(session, "planning_inputs", broken)
    async with opened() as (app, _):
        assert said in app.inputs_problem


async def test_of_two_gatherings_the_one_begun_later_holds_whichever_ends_last(
    session: FakeSession, opened: Opened
) -> None:
    async with opened() as (app, pilot):
        newest = msgspec.structs.replace(session.planning_inputs(DEMO), calibrated_by="r2")
        stale = msgspec.structs.replace(newest, calibrated_by="r1")
        app.post_message(InputsArrived(DEMO, newest, turn=9))
        await until(pilot, lambda: app.inputs is newest)
        app.post_message(InputsArrived(DEMO, stale, turn=8))
        await pilot.pause()
        assert app.inputs is newest


ALONE = """
import sys, threading
from pathlib import Path
sys.path.insert(0, {here!r})
from uifakes import DEMO, FakeSession
from tuner.ui.app import run_app
sys.exit(run_app(FakeSession(Path({home!r})), DEMO, demo=False))
"""


@pytest.mark.parametrize("how", ["output", "input", "terminal"])
def test_a_terminal_that_goes_away_ends_the_app(tmp_path: Path, how: str) -> None:
    """The output's reader is gone, the input has ended, or the whole terminal was hung up without a signal."""
    code = ALONE.format(here=str(Path(__file__).parent), home=str(tmp_path))
    ours, theirs = os.openpty()
    reading, writing = os.pipe()
    if how == "output":
        os.close(reading)
    out = writing if how == "output" else theirs
    keys = subprocess.DEVNULL if how == "input" else theirs
    process = subprocess.Popen([sys.executable, "-c", code], stdin=keys, stdout=out, stderr=out)
    os.close(theirs)
    os.close(writing)
    if how == "terminal":
        os.read(ours, 1)  # it draws
        os.close(ours)
    try:
        assert process.wait(timeout=30) == 1
    finally:
        process.kill()
        process.wait()
        if how != "terminal":
            os.close(ours)
        if how != "output":
            os.close(reading)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_terminal_that_stops_reading_does_not_hold_up_the_end(tmp_path: Path, number: signal.Signals) -> None:
    """Its buffer is full and it is not hung up: a stopped multiplexer, a frozen line."""
    code = ALONE.format(here=str(Path(__file__).parent), home=str(tmp_path))
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    )
    try:
        while select.select([], [theirs], [], 0)[1]:  # until it has filled what nobody reads
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(number)
        assert process.wait(timeout=30) == 1
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)
    history = History(tmp_path / "rounds.sqlite")
    assert history.count() == 0
    history.close()


def test_the_app_opens_in_a_browser_as_textual_serve_starts_it(tmp_path: Path) -> None:
    served = {"TEXTUAL_DRIVER": "textual.drivers.web_driver:WebDriver", "TEXTUAL_COLOR_SYSTEM": "truecolor",
              "COLUMNS": "100", "ROWS": "30", "TUNER_HOME": str(tmp_path), "HOME": str(tmp_path)}  # fmt: skip
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner"], env={**os.environ, **served}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        seen = b""
        while b"First run" not in seen:
            piece = os.read(process.stdout.fileno(), 65536)
            assert piece, seen[-500:]
            seen += piece
        assert seen.startswith(b"__GANGLION__")
    finally:
        process.kill()
        process.communicate()
