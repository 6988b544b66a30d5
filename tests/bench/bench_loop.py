"""Whether anything an operator does holds up the app's event loop: ``python tests/bench/bench_loop.py``.

The real app, under pilot, on a history of 10,000 rounds and a log of 1 GB that keeps growing; a stand-in server
runs. A heartbeat in the loop, every 5 ms, notes how late it comes; the latest of each interaction counts. Each run is a
process of its own, so that the first opening of a screen, with its imports, is in it. Limit: 50 ms.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from textual.pilot import Pilot

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "rounds"))
from test_history import draft, finished

from tuner.paths import Home, find_preset
from tuner.recipe import load
from tuner.recipe.model import Recipe
from tuner.rounds.history import History
from tuner.session.session import Session
from tuner.ui.app import TunerApp
from tuner.ui.garbage import only_in_turns
from tuner.ui.widgets.slider import Slider

ROUNDS = 10_000
LOG_BYTES = 1 << 30
LIMIT_MS = 50.0
BEAT_S = 0.005
RATIO = "#mamba_full_memory_ratio"
LINE = (
    "[2026-11-29 15:51:{second:02d} TP0] Decode batch, #running-req: 3, #full token: {count}, full token usage: 0.41, "
    "mamba num: 12, mamba usage: 0.15, cuda graph: True, gen throughput (token/s): 151.50, #queue-req: 0\n"
)


class Heart:
    """Beats in the loop. Since ``clear``: the longest it was held up, and the most that its thread computed then.

    The first counts what other processes of the machine took from it, too; the second no waiting for a disk.
    """

    def __init__(self) -> None:
        self.late_ms = self.computed_ms = 0.0

    def clear(self) -> None:
        self.late_ms = self.computed_ms = 0.0

    async def beat(self) -> None:
        while True:
            began, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(BEAT_S)
            self.late_ms = max(self.late_ms, (time.perf_counter() - began - BEAT_S) * 1000)
            self.computed_ms = max(self.computed_ms, (time.thread_time() - cpu) * 1000)


def fill(home: Home, log: Path) -> None:
    """Ten thousand rounds; the newest has the long log."""
    with History(home.database) as history:
        for number in range(1, ROUNDS + 1):
            opened = history.open_round(draft(f"round {number} 备注", mem_fraction_static=0.5 + number % 40 / 100))
            history.save(finished(msgspec.structs.replace(opened, log_path=str(log), reason="why " * 50)))


def write_log(log: Path) -> None:
    block = "".join(LINE.format(second=n % 60, count=n) for n in range(5000)).encode()
    with log.open("wb") as file:
        for _ in range(LOG_BYTES // len(block) + 1):
            file.write(block)


def grow(log: Path, over: threading.Event) -> None:
    """A busy server: 500 lines a second."""
    block = "".join(LINE.format(second=n % 60, count=n) for n in range(50)).encode()
    with log.open("ab", buffering=0) as file:
        while not over.wait(0.1):
            file.write(block)


async def until(pilot: Pilot[None], true: Callable[[], bool]) -> None:
    for _ in range(2000):
        if true():
            return
        await pilot.pause(0.01)
    raise SystemExit("What the measurement waits for never came.")


async def drag(pilot: Pilot[None]) -> None:
    """The knob from one end of the track to the other and back."""
    slider = pilot.app.screen.query_one(RATIO, Slider)
    start = slider.label_width + 2
    await pilot.mouse_down(slider, offset=(start + 8, 0))
    for x in [*range(8, slider.track_width), *range(slider.track_width - 1, 0, -1)]:
        await pilot.hover(slider, offset=(start + x, 0))
    await pilot.mouse_up(slider, offset=(start + 1, 0))


def keys(*names: str, times: int = 1, settle: float = 0.6) -> Callable[[Pilot[None]], Awaitable[None]]:
    """Presses, and lets what follows from it come."""

    async def pressed(pilot: Pilot[None]) -> None:
        for _ in range(times):
            await pilot.press(*names)
        await pilot.pause(settle)

    return pressed


def typed(text: str) -> Callable[[Pilot[None]], Awaitable[None]]:
    return keys(*text, "enter", settle=1.0)


async def resized(pilot: Pilot[None]) -> None:
    for size in ((80, 24), (200, 50), (120, 36)):
        await pilot.resize_terminal(*size)
        await pilot.pause(0.3)


def on_screen(opens: str, act: Callable[[Pilot[None]], Awaitable[None]]) -> Callable[[Pilot[None]], Awaitable[None]]:
    """The same on the screen that these keys open."""

    async def there(pilot: Pilot[None]) -> None:
        await keys(*opens, settle=0.6)(pilot)
        await act(pilot)

    return there


INTERACTIONS: tuple[tuple[str, Callable[[Pilot[None]], Awaitable[None]]], ...] = (
    ("at rest, 3 s", keys(settle=3.0)),
    ("drag the ratio slider", drag),
    ("turn it by keys", keys("right", times=30)),
    ("turn it coarsely, to its ends", keys("shift+left", "home", "end", times=5)),
    ("undo and redo", keys("ctrl+z", "ctrl+y", times=10)),
    ("reset all knobs", keys("b")),
    ("a choice's list", keys("down", "enter", "down", "escape")),
    ("where each number comes from", keys("t")),
    ("close it", keys("escape")),
    ("help", keys("question_mark", "pagedown", "escape")),
    ("command palette", keys("ctrl+p", *"resta", settle=1.0)),
    ("close the palette", keys("escape")),
    ("restart dialog", keys("R")),
    ("close the dialog", keys("escape")),
    ("rounds, opened", keys("2", settle=1.5)),
    ("rounds, scrolled", keys("down", times=40)),
    ("rounds, by pages", keys("pagedown", times=20)),
    ("rounds, to the oldest", keys("end", settle=1.5)),
    ("rounds, to the newest", keys("home", settle=1.5)),
    ("rounds, details", keys("enter", settle=1.0)),
    ("rounds, details closed", keys("escape")),
    ("rounds, two marked", keys("space", "down", "space")),
    ("rounds, note dialog", keys("n")),
    ("rounds, note dialog closed", keys("escape")),
    ("rounds, export dialog", keys("e", settle=1.0)),
    ("rounds, export dialog closed", keys("escape")),
    ("compare, opened", keys("3", settle=1.5)),
    ("compare, scrolled", keys("pagedown", "pageup", "end", "home", times=3)),
    ("compare, other rounds", keys("left", "left", "shift+left", "w", settle=1.5)),
    ("compare, chart", keys("g", settle=1.5)),
    ("compare, chart closed", keys("g", settle=1.0)),
    ("log of 1 GB, opened", keys("4", settle=2.0)),
    ("log, following, 3 s", keys(settle=3.0)),
    ("log, by pages", keys("pageup", times=30)),
    ("log, to its ends", keys("home", "end", "home", settle=1.0)),
    ("log, search opened", keys("slash")),
    ("log, searched", typed("token usage")),
    ("log, hit to hit", keys("full_stop", times=20)),
    ("log, search closed", keys("escape")),
    ("log, followed again", keys("f", settle=2.0)),
    ("log, polls shown", keys("h", settle=2.0)),
    ("doctor, opened", keys("5", settle=2.0)),
    ("doctor, through the findings", keys("down", "space", times=5)),
    ("presets, opened", keys("6", settle=2.0)),
    ("presets, through the list", keys("down", times=3, settle=1.5)),
    ("back to tune", keys("1", settle=1.0)),
    ("all screens, fast", keys(*"23456", "1", times=3, settle=1.0)),
    ("light and dark", keys("T", "T", settle=1.0)),
    ("the other screens in the light", keys("T", *"1234567", "1", settle=0.6)),
    ("dark again, with a dialog open", keys("R", "T", "escape", settle=0.6)),
    ("other sizes of the terminal", resized),
    ("other sizes, rounds listed", on_screen("2", resized)),
    ("other sizes, two compared", on_screen("3", resized)),
    ("other sizes, log", on_screen("4", resized)),
    ("other sizes, live", on_screen("7", resized)),
)


async def walk(session: Session, recipe: Recipe) -> dict[str, tuple[float, float]]:
    """Every interaction once; of each the worst delay and the most computed in one, milliseconds."""
    app, heart = TunerApp(session, recipe), Heart()
    only_in_turns()
    worst: dict[str, tuple[float, float]] = {}
    async with app.run_test(size=(120, 36)) as pilot:
        beating = asyncio.create_task(heart.beat())
        await until(pilot, lambda: app.inputs is not None and app.running_name != "")
        await pilot.pause(1.0)
        app.screen.query_one(RATIO, Slider).focus()
        for name, act in INTERACTIONS:
            # The log shown is the long one, the round's under the cursor of the list.
            if name.startswith("log of"):
                app.chosen = ROUNDS
            heart.clear()
            await act(pilot)
            worst[name] = heart.late_ms, heart.computed_ms
        beating.cancel()
    return worst


def one_run(folder: str, port: int) -> None:
    """In a process of its own: prints the worst delays as JSON."""
    home = Home.at(Path(folder))
    session, over = Session(home), threading.Event()
    grower = threading.Thread(target=grow, args=(Path(folder) / "long.log", over))
    grower.start()
    try:
        print(json.dumps(asyncio.run(walk(session, load(find_preset("demo", home)).with_flags({"port": port})))))
    finally:
        over.set()
        grower.join()
        session.close()


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=3, help="the best of so many counts: the machine may be shared")
    options.add_argument("--one", nargs=2, metavar=("FOLDER", "PORT"), help=argparse.SUPPRESS)
    asked = options.parse_args()
    if asked.one:
        one_run(asked.one[0], int(asked.one[1]))
        return 0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "TUNER_HOME": folder, "COLORTERM": "truecolor"}
        tuner = [sys.executable, "-m", "tuner"]
        log = Path(folder) / "long.log"
        write_log(log)
        fill(Home.at(Path(folder)), log)
        subprocess.run(
            [*tuner, "run", "demo", "--set", f"port={port}"], env=environment, check=True, capture_output=True
        )
        try:
            runs = []
            for _ in range(asked.runs):
                command = [sys.executable, __file__, "--one", folder, str(port)]
                done = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
        finally:
            subprocess.run([*tuner, "stop"], env=environment, check=True, capture_output=True)
        print(f"{ROUNDS:,} rounds, a log of {log.stat().st_size / 2**30:.2f} GiB; limit {LIMIT_MS:g} ms")
    missed = 0
    for name in sorted(runs[0], key=lambda name: -min(run[name][0] for run in runs)):
        late, computed = (min(run[name][part] for run in runs) for part in (0, 1))
        missed += late > LIMIT_MS
        every = [round(run[name][0]) for run in runs]
        told = f"{name:<32}{late:7.1f} ms late, {computed:6.1f} ms computed  all {every}"
        print(f"{told}{'  MISSED' if late > LIMIT_MS else ''}")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
