"""The app on a real server: every screen written as SVG, with the readings of that machine.

    python tests/real/screens.py --home DIR --out DIR [--seconds 20]

Waits until a server of that home serves, lets the app look on for so long, and walks through its screens. To be run
beside story.py or restarts.py with the same ``--home``. Imports the tuner: set PYTHONPATH to where it is installed.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tuner.paths import Home
from tuner.session.session import Session
from tuner.ui.app import TunerApp

SIZE = (120, 40)
KEYS = {"tune": "1", "rounds": "2", "compare": "3", "log": "4", "doctor": "5", "presets": "6", "live": "7"}


async def walk(session: Session, out: Path, seconds: float) -> None:
    """Opens the app as a viewer, waits, and keeps each screen."""
    running = session.running()
    assert running is not None
    app = TunerApp(session, running.handle.recipe)
    async with app.run_test(size=SIZE) as pilot:
        await pilot.pause(seconds)
        await pilot.press("escape")
        for name, key in KEYS.items():
            await pilot.press(key)
            await pilot.pause(2.5)
            (out / f"{name}.svg").write_text(app.export_screenshot(), encoding="utf-8")


def serves(session: Session, round_: str | None) -> bool:
    """Whether a server of the home answers, that of ``round_`` if one is asked for."""
    running = session.running()
    if running is None or round_ not in (None, running.handle.round_name):
        return False
    try:
        with urllib.request.urlopen(f"{running.handle.url}/v1/models", timeout=5):
            return True
    except (urllib.error.URLError, TimeoutError):
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--home", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=20.0, help="let it look on for so long first")
    parser.add_argument("--round", metavar="rN", help="the server of this round, not just any")
    parser.add_argument(
        "--wait", type=float, default=900.0, help="give up when no server serves within so many seconds"
    )
    asked = parser.parse_args()
    os.environ["TUNER_HOME"] = str(asked.home)
    os.environ["COLORTERM"] = "truecolor"
    asked.out.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + asked.wait
    session = Session(Home.find())
    try:
        while time.monotonic() < end:
            if serves(session, asked.round):
                asyncio.run(walk(session, asked.out, asked.seconds))
                return 0
            time.sleep(1)
    finally:
        session.close()
    print("No server of that home served in time.")
    return 1


if __name__ == "__main__":
    sys.exit(main())
