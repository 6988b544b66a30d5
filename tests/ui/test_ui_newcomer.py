"""What someone does who sees the app for the first time, on the smallest terminal, by what the screen shows alone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from textual.command import CommandPalette
from textual.pilot import Pilot
from uifakes import DEMO, HYBRID_27B, FakeSession
from uiscreen import Opened, screen_text, told, until

from tuner.recipe.model import Recipe
from tuner.rounds.model import Round, RoundState
from tuner.ui.app import TunerApp
from tuner.ui.knobs import knobs_for
from tuner.ui.modes import MODES
from tuner.ui.screens.tune import KnobHelp
from tuner.ui.widgets.slider import Slider

RATIO = "mamba_full_memory_ratio"
SMALL = (80, 24)


def ran(session: FakeSession, recipe: Recipe = DEMO, fail_in: str | None = None) -> Round:
    session.fail_in = fail_in
    round_ = session.run_round(recipe, publish=lambda _: None, cancel=threading.Event())
    session.fail_in = None
    return round_


class Newcomer:
    """Presses a key only where the screen says it."""

    def __init__(self, app: TunerApp, pilot: Pilot[None]) -> None:
        self.app = app
        self.pilot = pilot

    async def sees(self, words: str) -> str:
        await until(self.pilot, lambda: words in screen_text(self.app))
        return screen_text(self.app)

    async def follows(self, words: str, *keys: str) -> None:
        await self.sees(words)
        await self.pilot.press(*keys)

    def change_of(self, label: str) -> str:
        """What stands at the end of the line of a number on the Tune screen."""
        return next(line.split()[-1] for line in screen_text(self.app).splitlines() if f"▏ {label} " in line)


async def test_more_kv_without_losing_agents(session: FakeSession, opened: Opened) -> None:
    first = ran(session)
    async with opened(size=SMALL) as (app, pilot):
        one = Newcomer(app, pilot)
        await one.sees("r1 runs")
        await one.sees("lower is more KV tokens")
        await one.follows("← → turn it", *["left"] * 17)
        await until(pilot, lambda: one.change_of("Requests").startswith("−"))
        await one.sees("The state slots admit 1 request")
        await one.follows("R restarts r1: ratio", *["right"] * 5)
        await until(pilot, lambda: one.change_of("Requests") == "=" and one.change_of("KV tokens").startswith("+"))
        await one.follows("R Restart", "R")
        await one.follows("Restart (y)", "y")
        await one.sees("All 4 checks passed.")
        running = session.server.round if session.server is not None else None
        assert running is not None and running.boot is not None and first.boot is not None
        assert (running.boot.kv_tokens or 0) > (first.boot.kv_tokens or 0)
        assert running.boot.max_running_requests == first.boot.max_running_requests == 3


async def test_a_value_still_being_typed_is_what_the_restart_takes(session: FakeSession, opened: Opened) -> None:
    ran(session)
    async with opened(size=SMALL) as (app, pilot):
        one = Newcomer(app, pilot)
        await one.sees("r1 runs")
        await pilot.press(*"0.3")
        await one.sees("Enter takes it,")
        await one.follows("R Restart", "r")
        await one.sees("0.9 → 0.3")
        await one.follows("Cancel (Esc)", "escape")
        await pilot.press(*"0.7")
        await one.follows("Esc drops it.", "escape")
        assert app.bench.draft.flags[RATIO] == 0.3 and app.screen.query_one(f"#{RATIO}", Slider).typed is None


async def test_why_the_start_failed(session: FakeSession, opened: Opened) -> None:
    ran(session)
    session.fail_in = "sizing pools"
    async with opened(size=SMALL) as (app, pilot):
        one = Newcomer(app, pilot)
        await one.sees("r1 runs")
        await one.follows("R Restart", "R")
        await one.follows("Restart (y)", "y")
        await one.sees("✗ The server did not come up.")
        why, evidence = "No room is left for the pools. Raise mem_fraction_static.", "RuntimeError: Not enough memory."
        await one.sees(why)
        await one.sees(evidence)
        # Closed too soon, every screen says how to see it again.
        await one.follows("esc Close", "escape")
        await one.follows("no server runs · r2 failed, p shows why", "p")
        await one.sees(why)
        await one.follows("5 Doctor", "5")
        text = await one.sees(evidence)
        assert "✗ r2    No room is left for the pools." in text
        # Found anew the next day it is the first thing that the list of rounds says of it.
        await one.follows("2 Rounds", "2")
        text = await one.sees(why)
        assert "failed in sizing pools" in text


async def test_back_to_the_last_good(session: FakeSession, opened: Opened) -> None:
    good = ran(session)
    session.fail_in = "sizing pools"
    async with opened(size=SMALL) as (app, pilot):
        one = Newcomer(app, pilot)
        await one.sees("r1 runs")
        await one.follows("← → turn it", "left")
        await one.follows("R restarts r1: ratio", "R")
        await one.follows("Restart (y)", "y")
        await one.sees("r2 failed")
        await one.follows("esc Close", "escape")
        session.fail_in = None
        await one.sees("r2 failed with these flags: p")
        await one.follows("p shows why, and the way back.", "p")
        await one.follows("b Go back", "b")
        await one.sees("Start r1 again, as a new round?")
        await one.follows("Go back (y)", "y")
        await one.sees("All 4 checks passed.")
        assert session.asked[-1].flags == good.recipe.flags


async def test_back_to_the_last_good_another_day(session: FakeSession, opened: Opened) -> None:
    good = ran(session)
    ran(session, DEMO.with_flags({RATIO: 0.05}), fail_in="sizing pools")
    session.server = None
    async with opened(size=SMALL, recipe=DEMO.with_flags({RATIO: 0.05})) as (app, pilot):
        one = Newcomer(app, pilot)
        await one.sees("No server runs.")
        await one.follows("2 Rounds", "2")
        await one.follows("r1 is the last good round: on it, u takes its flags to Tune.", "down")
        await one.sees("r1 verified")
        await one.follows("u Use", "u")
        await one.follows("R starts: ratio 0.05→0.9", "R")
        await one.follows("Start (y)", "y")
        await one.sees("All 4 checks passed.")
        assert session.asked[-1].flags == good.recipe.flags


@pytest.mark.parametrize(("number", "name"), [("5", "sglang.service"), ("4", "start.sh")])
async def test_an_export_for_systemd_and_a_start_script(
    session: FakeSession, opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    ran(session)
    async with opened(size=SMALL) as (app, pilot):
        one = Newcomer(app, pilot)
        await one.sees("r1 runs")
        await one.follows("e Export", "e")
        await one.follows(f" {number}  {name}", number)
        await one.sees(f"r1-{name}")
        await one.follows("Write (Enter)", "enter")
        await until(pilot, (tmp_path / f"r1-{name}").exists)
        await until(pilot, lambda: f"r1 is written to {tmp_path / f'r1-{name}'}." in told(app))
        assert ("systemctl enable --now r1-sglang.service" if number == "5" else "bash ") in told(app)


async def test_a_preset_is_exported_for_systemd_as_well(
    opened: Opened, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with opened(size=SMALL) as (app, pilot):
        one = Newcomer(app, pilot)
        await one.follows("6 Presets", "6")
        await one.sees("demo  comes with the tuner")
        await one.follows("e Export", "e")
        await one.follows("5  sglang.service", "5")
        assert "report.md" not in screen_text(app)
        await one.follows("Write (Enter)", "enter")
        written = tmp_path / "demo-sglang.service"
        await until(pilot, written.exists)
        assert "ExecStart=" in written.read_text()


async def test_the_palette_knows_the_word_systemd(session: FakeSession, opened: Opened) -> None:
    ran(session)
    async with opened(size=SMALL) as (app, pilot):
        one = Newcomer(app, pilot)
        await one.sees("r1 runs")
        await one.follows("^p", "ctrl+p")
        await until(pilot, lambda: isinstance(app.screen, CommandPalette))
        await pilot.press(*"systemd")
        await one.sees("Export a systemd service")
        await pilot.press("enter")
        await until(pilot, lambda: not isinstance(app.screen, CommandPalette))
        await one.sees("r1-sglang.service")


async def test_the_key_for_the_log_is_on_every_screen(session: FakeSession, opened: Opened) -> None:
    ran(session)
    async with opened(size=SMALL) as (app, pilot):
        one = Newcomer(app, pilot)
        await one.sees("r1 runs")
        for mode in MODES:
            app.go(mode)
            await until(pilot, lambda mode=mode: app.current_mode == mode)
            await one.sees("4 Log")
        app.go("tune")
        await one.follows("4 Log", "4")
        await one.sees("Load weight begin. avail mem=46.83 GB")
        assert "/ Search" in await one.sees("f Follow")
        # And while a start is watched.
        session.gate.clear()
        await one.follows("R Restart", "R")
        await one.follows("Restart (y)", "y")
        await one.follows("4 Log", "4")
        await one.sees("[4 Log]")
        session.gate.set()
        await until(pilot, lambda: not app.runner.busy)
        assert session.history.last() is not None
        last = session.history.last()
        assert last is not None and last.state is RoundState.VERIFIED


HELD = {RATIO: 0.3, "mem_fraction_static": 0.85, "max_running_requests": 4, "chunked_prefill_size": 2048}


@pytest.mark.parametrize("more", [{}, {"max_mamba_cache_size": 22}], ids=["ratio", "slots"])
async def test_the_help_of_every_knob_is_whole_on_the_smallest_terminal_whatever_was_changed(
    session: FakeSession, opened: Opened, more: dict[str, int]
) -> None:
    ran(session, DEMO.with_flags(more))
    async with opened(size=SMALL, recipe=DEMO.with_flags(more)) as (app, pilot):
        await until(pilot, lambda: app.running_name == "r1")
        app.change(HELD)
        await until(pilot, lambda: "R restarts r1:" in screen_text(app) and " more" in screen_text(app))
        for knob in knobs_for(HYBRID_27B, app.bench.draft.flags):
            app.screen.query_one(f"#{knob.name}").focus()
            await pilot.pause()
            told_by = app.screen.query_one(KnobHelp)
            shown = " ".join(screen_text(app, told_by.region).split())
            assert shown == told_by.words
            assert told_by.words == knob.help or "No effect now" in told_by.words
