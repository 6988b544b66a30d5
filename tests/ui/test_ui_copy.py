"""The copy key: what is under the eye goes to the terminal's clipboard, without secrets."""

from __future__ import annotations

import shlex
import threading
from pathlib import Path

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ui_live import serve
from uifakes import DEMO, FLAGS, FakeSession
from uiscreen import Opened, screen_text, told, until

from tuner.findings import Finding, FindingId, Severity
from tuner.recipe.files import read_text
from tuner.recipe.model import Recipe, TunerSettings
from tuner.ui.copying import clean, finding_text, launch_command, log_lines
from tuner.ui.screens.details import DetailsScreen
from tuner.ui.widgets.log_view import LogView


async def test_the_servers_address_is_copied_where_nothing_is_chosen_and_a_sentence_says_what_and_how(
    session: FakeSession, opened: Opened
) -> None:
    serve(session)
    async with opened() as (app, pilot):
        await until(pilot, lambda: "port 30000" in screen_text(app))
        for screen in ("1", "7", "6"):
            app.copy_to_clipboard("")
            await pilot.press(screen, "y")
            await until(pilot, lambda: app.clipboard == "http://127.0.0.1:30000")
        assert "Copied the server's address. If it does not paste, allow OSC 52 (clipboard) in the terminal." in told(
            app
        )


async def test_while_nothing_runs_nothing_is_copied_and_that_is_said(session: FakeSession, opened: Opened) -> None:
    async with opened() as (app, pilot):
        await pilot.press("y")
        await until(pilot, lambda: "Nothing to copy here: no server runs." in told(app))
        assert app.clipboard == ""


async def test_a_rounds_launch_command_is_copied_from_the_list_and_from_its_page(
    session: FakeSession, opened: Opened
) -> None:
    session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    async with opened() as (app, pilot):
        await pilot.press("2")
        await until(pilot, lambda: "r1" in screen_text(app) and app.chosen == 1)
        await app.workers.wait_for_complete()
        await pilot.press("y")
        await until(pilot, lambda: "Copied the launch command of r1." in told(app))
        copied = app.clipboard
        assert copied.startswith("python3 -m tuner.sim --model-path /models/Qwen3.8-27B-FP8 ")
        app.copy_to_clipboard("")
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, DetailsScreen))
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard == copied)


async def test_the_chosen_finding_is_copied_with_its_evidence(session: FakeSession, opened: Opened) -> None:
    session.fail_in = "sizing pools"
    session.run_round(DEMO, publish=lambda _: None, cancel=threading.Event())
    async with opened() as (app, pilot):
        await pilot.press("5")
        await until(pilot, lambda: "No room is left for the pools." in screen_text(app))
        await pilot.press("home", "y")
        await until(pilot, lambda: "Copied the finding with its evidence." in told(app))
        assert app.clipboard.split("\n") == [
            "No room is left for the pools. (no-room-at-sizing)",
            "  RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
            "Raise mem_fraction_static.",
        ]


async def test_the_lines_in_sight_or_the_one_found_are_copied_from_the_log(
    session: FakeSession, opened: Opened, tmp_path: Path
) -> None:
    serve(session)
    log = tmp_path / "server.log"
    log.write_text("".join(f"line {number} of the log\n" for number in range(200)) + "not ended")
    assert session.server is not None
    handle = msgspec.structs.replace(session.server.handle, log_path=str(log))
    session.server = msgspec.structs.replace(session.server, handle=handle)
    async with opened(size=(80, 24)) as (app, pilot):
        await pilot.press("4")
        await until(pilot, lambda: "line 199 of the log" in screen_text(app))
        await pilot.press("y")
        height = app.screen.query_one(LogView).size.height
        await until(pilot, lambda: f"Copied {height} lines of the log." in told(app))
        assert app.clipboard.startswith(f"line {200 - height + 1} of the log\n")
        assert app.clipboard.endswith("line 199 of the log\nnot ended")
        await pilot.press("/", *"line 77", "enter")
        await until(pilot, lambda: "hit 1/1" in screen_text(app))
        await pilot.press("y")
        await until(pilot, lambda: app.clipboard == "line 77 of the log")


async def test_the_key_is_in_help_and_palette_and_can_be_another(session: FakeSession, opened: Opened) -> None:
    serve(session)
    (session.home.config / "app.toml").write_text('[keys]\ncopy = "f8"\n')
    async with opened(size=(120, 60)) as (app, pilot):
        await until(pilot, lambda: "port 30000" in screen_text(app))
        await pilot.press("question_mark")
        await until(pilot, lambda: any("f8" in line and "Copy" in line for line in screen_text(app).splitlines()))
        await pilot.press("escape", "f8")
        await until(pilot, lambda: app.clipboard == "http://127.0.0.1:30000")
        await pilot.press("ctrl+p")
        await until(pilot, lambda: "Search" in screen_text(app))
        await pilot.press(*"copy the")
        await until(pilot, lambda: "the launch command of the round, else the address · key f8" in screen_text(app))


def test_nothing_copied_holds_a_secret_or_an_escape_sequence() -> None:
    finding = Finding(
        id=FindingId.GPU_BUSY, severity=Severity.WARNING, title="模型 runs\x1b[2J.",
        evidence=("process 9: serve --api-k\x1b[0mey sk-verysecret1",), remedy="Stop it.",
    )  # fmt: skip
    copied = finding_text(finding).text
    assert copied == "模型 runs. (gpu-busy)\n  process 9: serve --api-key ***\nStop it."
    assert "sk-" not in log_lines(["token=sk-verysecret1"], hit=False).text
    recipe = Recipe(
        flags={**FLAGS, "api_key": "${THE_KEY}", "chat_template": "a b's.jinja"}, python="~/env/bin/python",
        environment={"HF_TOKEN": "${MY_TOKEN}", "CUDA_VISIBLE_DEVICES": "0,1"},
        tuner=TunerSettings(launcher="numactl --cpunodebind=0"),
    )  # fmt: skip
    command = launch_command(recipe, "r1").text
    assert 'HF_TOKEN="${MY_TOKEN}" ' in command
    assert " numactl --cpunodebind=0 ~/env/bin/python -m sglang.launch_server --model-path " in command
    assert "CUDA_VISIBLE_DEVICES=0,1 " in command
    assert '"${THE_KEY}"' in command
    assert "a b's.jinja" in shlex.split(command)


def test_a_copied_command_is_read_back_as_the_same_flags() -> None:
    recipe = Recipe(flags=FLAGS, python="/opt/env/bin/python", environment={"CUDA_VISIBLE_DEVICES": "1"})
    back = read_text(launch_command(recipe, "r1").text).recipe
    assert (back.flags, back.python, back.environment) == (recipe.flags, recipe.python, recipe.environment)


@settings(max_examples=60, deadline=None)
@given(st.text())
def test_what_is_copied_can_be_encoded_and_pasted(text: str) -> None:
    copied = clean(text)
    copied.encode()
    assert "\x1b" not in copied
