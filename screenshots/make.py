"""Makes the pictures of the README from the app itself, on the stand-in server: ``python screenshots/make.py``.

The stand-in runs in a home of its own and is stopped at the end; every picture shows its mark.
"""

from __future__ import annotations

import asyncio
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import resvg_py
from recording import Frame, recording
from textual.pilot import Pilot

from tuner.metrics.model import GpuReading
from tuner.paths import Home, find_preset
from tuner.recipe import load
from tuner.recipe.model import Recipe
from tuner.session.finding_here import Finder, Found, FoundInterpreter, FoundModel
from tuner.session.session import Session
from tuner.ui.app import TunerApp
from tuner.ui.widgets.slider import Slider

HERE = Path(__file__).parent
WIDE, SMALL = (120, 36), (80, 24)
LIMIT_S = 60.0


def keep(app: TunerApp, name: str) -> None:
    """Writes the screen as PNG. Textual's SVG asks for a font that is not here; DejaVu has the block characters."""
    svg = app.export_screenshot().replace("Fira Code", "DejaVu Sans Mono")
    (HERE / f"{name}.png").write_bytes(bytes(resvg_py.svg_to_bytes(svg_string=svg)))


class Film:
    """Collects the screens of the recording."""

    def __init__(self, app: TunerApp) -> None:
        self._app = app
        self._frames: list[Frame] = []

    def take(self, seconds: float) -> None:
        """The screen as it is now, to be seen so long."""
        self._frames.append(Frame(self._app.export_screenshot(), seconds))

    def keep(self, name: str) -> None:
        """Writes the recording."""
        (HERE / f"{name}.svg").write_text(recording(self._frames))


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    """Lets the app work until something is true; ends the script when it never comes."""
    for _ in range(int(LIMIT_S / 0.1)):
        if true():
            return
        await pilot.pause(0.1)
    raise SystemExit("What the pictures wait for never came.")


def recipe() -> Recipe:
    """The demo, on a port nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    return load(find_preset("demo", Home.find())).with_flags({"port": port})


async def drag_ratio(pilot: Pilot[None], cells: int, film: Film) -> None:
    """Takes the ratio slider's knob and moves it, without letting go; each cell is a picture."""
    slider = pilot.app.screen.query_one("#mamba_full_memory_ratio", Slider)
    line = slider.render().plain
    start = line.index("●")
    await pilot.mouse_down(slider, offset=(start, 0))
    for step in range(1, abs(cells) + 1):
        await pilot.hover(slider, offset=(start + (step if cells > 0 else -step), 0))
        await pilot.pause(0.1)
        film.take(0.4)


async def tour(session: Session, first: Recipe) -> None:
    """One walk through the app at the comfortable size."""
    app = TunerApp(session, first, demo=True)
    async with app.run_test(size=WIDE) as pilot:
        await until(pilot, lambda: session.history.count() == 1 and session.history.get(1).state == "verified")
        await pilot.press("escape")
        await until(pilot, lambda: app.inputs is not None and app.inputs.calibrated_by == "r1")
        await pilot.press("5")
        await pilot.pause(1.0)
        await pilot.press("down", "down")
        await pilot.pause(1.0)
        keep(app, "doctor")
        await pilot.press("1")
        await pilot.pause(1.0)
        film = Film(app)
        film.take(1.5)
        await drag_ratio(pilot, -6, film)
        await pilot.pause(1.5)
        keep(app, "tune-drag")
        film.take(1.5)
        slider = app.screen.query_one("#mamba_full_memory_ratio", Slider)
        await pilot.mouse_up(slider, offset=(slider.render().plain.index("●"), 0))
        await pilot.press("R")
        await pilot.pause(0.5)
        keep(app, "restart")
        film.take(2.5)
        await pilot.press("y")
        for _ in range(7):
            await pilot.pause(0.5)
            film.take(0.5)
        keep(app, "starting")
        await until(pilot, lambda: session.history.count() == 2 and session.history.get(2).state == "verified")
        await pilot.pause(0.5)
        film.take(2.0)
        await pilot.press("escape", "3")
        await pilot.pause(1.0)
        keep(app, "compare")
        film.take(4.0)
        film.keep("tour")
        await pilot.press("2")
        await pilot.pause(1.0)
        keep(app, "rounds")
        await pilot.press("4")
        await pilot.pause(1.0)
        keep(app, "log")
        await pilot.press("6")
        await pilot.pause(2.0)
        keep(app, "presets")
        await pilot.press("1", "T")
        await pilot.pause(1.0)
        keep(app, "tune-light")


async def small(session: Session, first: Recipe) -> None:
    """The Tune screen on the smallest terminal."""
    app = TunerApp(session, first, demo=True)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: app.inputs is not None and app.inputs.calibrated_by == "r2")
        await pilot.pause(1.5)
        keep(app, "tune-80x24")


class Machine(Finder):
    """Tells of a machine with two models, so that the picture does not tell of the one it is made on."""

    def look(self) -> None:
        """Nothing to look at."""

    def found(self) -> Found:
        """A card, an environment, two models."""
        return Found(
            gpus=(GpuReading(index=0, name="NVIDIA RTX 4090D", total_mib=49140, free_mib=47958),),
            interpreters=(FoundInterpreter(path="/opt/sglang/.venv/bin/python", version="0.5.17"),),
            models=(
                FoundModel(path="/models/Qwen3.8-27B-FP8", name="Qwen3.8-27B-FP8", hybrid=True, weights_gib=27.5,
                           changed_at=2.0),
                FoundModel(path="/models/Qwen3-8B", name="Qwen3-8B", hybrid=False, weights_gib=15.3, changed_at=1.0),
            ),
            folders=14,
            over=True,
        )  # fmt: skip


async def first_run(session: Session) -> None:
    """What opens where there is neither a server nor a history."""
    session.finder = lambda: Machine(home=Path.home(), environ={}, cards=list)  # type: ignore[method-assign]
    app = TunerApp(session, Recipe(), first=True)
    async with app.run_test(size=SMALL) as pilot:
        await until(pilot, lambda: bool(app.screen.query("#model")))
        await pilot.pause(1.0)
        keep(app, "first-run")


def main() -> None:
    os.environ["COLORTERM"] = "truecolor"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TUNER_HOME"] = folder
        session = Session(Home.find())
        try:
            first = recipe()
            asyncio.run(first_run(session))
            asyncio.run(tour(session, first))
            asyncio.run(small(session, first))
        finally:
            session.stop(publish=lambda event: None)
            session.close()


if __name__ == "__main__":
    main()
