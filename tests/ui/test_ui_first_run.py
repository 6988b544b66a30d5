"""What an operator sees who starts the tuner on a machine for the first time."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot
from textual.widgets import Button, Input
from uifakes import FLAGS, FakeSession
from uiscreen import screen_text, told, until

from tuner.metrics.model import GpuReading
from tuner.recipe.model import Recipe
from tuner.session.finding_here import Found, FoundInterpreter, FoundModel, FoundServer, NotHere
from tuner.ui.app import TunerApp
from tuner.ui.screens.first_run import FirstRunScreen, _found_text
from tuner.ui.widgets.choice import Choice

Begun = Callable[..., AbstractAsyncContextManager[tuple[TunerApp, Pilot[None]]]]
SIZES = [(80, 24), (120, 36), (200, 50)]
CARD = GpuReading(index=0, name="NVIDIA RTX 4090D", total_mib=49140, free_mib=48000)
PYTHON = FoundInterpreter(path="/opt/sglang/bin/python", version="0.5.17")
OLDER = FoundInterpreter(path="/home/me/old/.venv/bin/python", version="0.5.9")
HYBRID = FoundModel(path="/models/Qwen3.8-27B", name="Qwen3.8-27B", hybrid=True, weights_gib=27.5, changed_at=2.0)
DENSE = FoundModel(path="/models/试一试-8B", name="试一试-8B", hybrid=False, weights_gib=8.1, changed_at=1.0)


class FakeFinder:
    """Finds what it is told, at once or when ``gate`` opens."""

    def __init__(self, found: Found, gate: threading.Event) -> None:
        self._all = found
        self._gate = gate
        self._now = Found(at="/slow/disk", gpus=found.gpus)

    def look(self) -> None:
        self._gate.wait(30)
        self._now = self._all

    def found(self) -> Found:
        return self._now

    def interpreter_at(self, text: str) -> FoundInterpreter:
        if "nowhere" in text:
            raise NotHere(f"There is no interpreter {text}: give the path of a python.")
        return FoundInterpreter(path=text, version="0.5.16")

    def model_at(self, text: str) -> FoundModel:
        return FoundModel(path=text, name="mine", hybrid=True, weights_gib=10.0, changed_at=0.0)


@pytest.fixture
def gate() -> threading.Event:
    opened = threading.Event()
    opened.set()
    return opened


@pytest.fixture
def begun(session: FakeSession, gate: threading.Event, monkeypatch: pytest.MonkeyPatch) -> Begun:
    """The app as it opens where there is neither server nor history nor preset."""

    @asynccontextmanager
    async def _open(found: Found, size: tuple[int, int] = (80, 24)) -> AsyncIterator[tuple[TunerApp, Pilot[None]]]:
        monkeypatch.setattr(FakeSession, "finder", lambda self: FakeFinder(found, gate), raising=False)
        app = TunerApp(session, Recipe(), first=True, every_s=0.1)  # type: ignore[arg-type]
        async with app.run_test(size=size) as pilot:
            await until(pilot, lambda: app.look is not None)
            yield app, pilot

    return _open


def found(**parts: object) -> Found:
    return Found(**{"gpus": (CARD,), "over": True, **parts})  # type: ignore[arg-type]


async def on_the_bench(app: TunerApp, pilot: Pilot[None], model: str) -> None:
    await until(pilot, lambda: app.bench.draft.model_path == model and not isinstance(app.screen, FirstRunScreen))
    await until(pilot, lambda: app.inputs is not None and "KV tokens" in screen_text(app))


async def test_where_no_model_was_named_the_plans_place_says_where_one_is_found(
    begun: Begun, session: FakeSession
) -> None:
    session.cannot = "No model is named: set model_path in the recipe, or give --model DIR."
    async with begun(found()) as (app, pilot):
        await until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        await pilot.press("escape")
        await until(pilot, lambda: "No model is named yet: 6 lists" in screen_text(app))
        assert "--model" not in screen_text(app)


async def test_one_sglang_and_one_model_need_no_question_and_end_on_a_plan(begun: Begun, session: FakeSession) -> None:
    async with begun(found(interpreters=(PYTHON,), models=(HYBRID,))) as (app, pilot):
        await on_the_bench(app, pilot, HYBRID.path)
        assert app.bench.draft.python == PYTHON.path
        assert (session.home.presets / "qwen3.8-27b.toml").is_file()
        await until(pilot, lambda: "Kept as preset qwen3.8-27b" in told(app))


async def test_the_flags_of_a_running_server_are_taken_whole(begun: Begun) -> None:
    recipe = Recipe(flags={**FLAGS, "mem_fraction_static": 0.77}, python="/opt/sglang/bin/python")
    async with begun(found(servers=(FoundServer(pid=7, port=30000, recipe=recipe),))) as (app, pilot):
        await on_the_bench(app, pilot, str(FLAGS["model_path"]))
        assert app.bench.draft.flags["mem_fraction_static"] == 0.77
        await until(pilot, lambda: "process 7" in told(app))


async def test_a_server_whose_flags_cannot_be_read_is_no_good_news_and_the_whole_reason_is_told(begun: Begun) -> None:
    why = "It is titled sglang::scheduler_TP0 with a long name behind it: its flags cannot be read."
    servers = tuple(FoundServer(pid=pid, port=30000, problem=why) for pid in (1234567, 8, 9))
    async with begun(found(servers=servers)) as (app, pilot):
        await until(pilot, lambda: "! Server  process 1234567 of SGLang, flags unknown" in screen_text(app))
        text = " ".join(screen_text(app).replace("│", " ").split())
        assert "and 2 more" in text
        assert why in text
        assert "✓ Server" not in text


async def test_of_two_servers_the_one_whose_flags_can_be_taken_is_told_first(begun: Begun) -> None:
    readable = FoundServer(pid=7, port=31000, recipe=Recipe(flags=FLAGS, python="/opt/sglang/bin/python"))
    servers = (FoundServer(pid=8, port=30000, problem="It belongs to another user."), readable)
    async with begun(found(servers=servers)) as (app, pilot):
        await on_the_bench(app, pilot, str(FLAGS["model_path"]))
    assert "✓ Server  on port 31000, process 7 and 1 more" in _found_text(found(servers=servers)).plain


async def test_of_several_models_one_is_chosen_by_keys_alone(begun: Begun) -> None:
    async with begun(found(interpreters=(PYTHON, OLDER), models=(HYBRID, DENSE))) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query("#model")))
        await until(pilot, lambda: app.screen.query_one("#model", Choice).has_focus)
        assert "Qwen3.8-27B · 27.50 GiB · hybrid" in screen_text(app)
        await pilot.press("right", "ctrl+o")
        await on_the_bench(app, pilot, DENSE.path)


async def test_a_model_that_is_not_found_is_asked_for_where_the_eye_is(begun: Begun) -> None:
    async with begun(found(interpreters=(PYTHON,))) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query("#model-path")))
        await until(pilot, lambda: app.screen.query_one("#model-path", Input).has_focus)
        await pilot.press("enter")
        await until(pilot, lambda: "Say which model" in screen_text(app))
        await pilot.press(*"/d/mine", "enter")
        await on_the_bench(app, pilot, "/d/mine")


async def test_another_interpreter_than_the_ones_found_can_be_written(begun: Begun) -> None:
    async with begun(found(interpreters=(PYTHON,), models=(HYBRID, DENSE))) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query("#python")))
        await until(pilot, lambda: app.screen.query_one("#model", Choice).has_focus)
        await pilot.press("up", "end")
        await until(pilot, lambda: app.screen.query_one("#python-path", Input).has_focus)
        await pilot.press(*"/nowhere", "enter")
        await until(pilot, lambda: "There is no interpreter /nowhere" in screen_text(app))
        app.screen.query_one("#python-path", Input).value = "/e/bin/python"
        await pilot.press("enter")
        await on_the_bench(app, pilot, HYBRID.path)
        assert app.bench.draft.python == "/e/bin/python"


@pytest.mark.parametrize("size", SIZES, ids=str)
async def test_where_nothing_is_found_the_demo_is_one_key_away(
    begun: Begun, session: FakeSession, size: tuple[int, int]
) -> None:
    async with begun(Found(over=True), size) as (app, pilot):
        await until(pilot, lambda: "Nothing of SGLang is here" in " ".join(screen_text(app).split()))
        await until(pilot, lambda: app.screen.query_one("#demo", Button).has_focus)
        assert "[Demo (F2)]" in screen_text(app)
        await pilot.press("enter")
        await until(pilot, lambda: session.history.count() == 1)
        assert session.asked[0].simulated
        await until(pilot, lambda: not app.runner.busy)


async def test_while_it_looks_it_says_where_and_can_be_left(
    begun: Begun, session: FakeSession, gate: threading.Event
) -> None:
    gate.clear()
    async with begun(found(interpreters=(PYTHON,), models=(HYBRID,))) as (app, pilot):
        await until(pilot, lambda: "/slow/disk" in screen_text(app))
        assert "RTX 4090D" in screen_text(app)
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, FirstRunScreen))
        gate.set()
        assert list(session.home.presets.iterdir()) == []


async def test_looking_again_finds_what_has_come_since(begun: Begun, monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun(found(interpreters=(PYTHON,))) as (app, pilot):
        await until(pilot, lambda: bool(app.screen.query("#model-path")))
        now = found(interpreters=(PYTHON,), models=(HYBRID,))
        open_gate = threading.Event()
        open_gate.set()
        screen = app.screen
        assert isinstance(screen, FirstRunScreen)
        monkeypatch.setattr(screen, "_make", lambda: FakeFinder(now, open_gate))
        await pilot.press("f5")
        await on_the_bench(app, pilot, HYBRID.path)


async def test_a_preset_folder_that_cannot_be_written_is_one_sentence(begun: Begun, session: FakeSession) -> None:
    (session.home.config / "presets").write_text("a file in the way")
    async with begun(found(interpreters=(PYTHON,), models=(HYBRID,))) as (app, pilot):
        await until(pilot, lambda: "presets is not a folder" in told(app))


async def test_the_search_can_be_called_again_later(begun: Begun) -> None:
    async with begun(found(interpreters=(PYTHON,))) as (app, pilot):
        await until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(app.screen, FirstRunScreen))
        await pilot.press("f3")
        await until(pilot, lambda: isinstance(app.screen, FirstRunScreen))


def test_the_presets_folder_is_where_the_next_opening_looks(tmp_path: Path) -> None:
    from tuner.cli.screen import _left_off
    from tuner.paths import Home
    from tuner.session.session import Session

    session = Session(Home.at(tmp_path), environ={})
    try:
        assert _left_off(session) is None
        (session.home.presets / "mine.toml").write_text('[server]\nmodel_path = "/m/x"\n')
        recipe = _left_off(session)
        assert recipe is not None
        assert recipe.model_path == "/m/x"
    finally:
        session.close()
