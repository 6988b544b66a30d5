"""The app inside tmux: what it draws there, a drag with the mouse, a pane that gets smaller, and leaving."""

from __future__ import annotations

import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ALONE = """
import sys
from pathlib import Path
sys.path.insert(0, {here!r})
from uifakes import DEMO, FakeSession
from tuner.ui.app import run_app
sys.exit(run_app(FakeSession(Path({home!r})), DEMO, demo=False))
"""
LIMIT_S = 30.0


class Pane:
    """One pane of a tmux server of its own, without anybody attached."""

    def __init__(self, socket: Path, command: list[str]) -> None:
        self._tmux = ["tmux", "-S", str(socket), "-f", "/dev/null"]
        self.run("new-session", "-d", "-x", "120", "-y", "36", *command)

    def run(self, *words: str) -> str:
        return subprocess.run([*self._tmux, *words], check=True, capture_output=True, text=True).stdout

    def screen(self) -> str:
        return self.run("capture-pane", "-p")

    def until(self, true: Callable[[str], bool]) -> str:
        end = time.monotonic() + LIMIT_S
        while not true(shown := self.screen()):
            assert time.monotonic() < end, shown
            time.sleep(0.05)
        return shown

    def mouse(self, button: int, x: int, y: int, *, down: bool = True) -> None:
        """A mouse event as a terminal sends it, cells counted from 0."""
        self.run("send-keys", "-l", f"\x1b[<{button};{x + 1};{y + 1}{'M' if down else 'm'}")

    def over(self) -> bool:
        return subprocess.run([*self._tmux, "has-session"], capture_output=True, check=False).returncode != 0


@pytest.fixture
def pane(tmp_path: Path) -> Iterator[Pane]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed")
    code = ALONE.format(here=str(Path(__file__).parent), home=str(tmp_path))
    opened = Pane(
        tmp_path / "tmux", ["env", "-u", "COLUMNS", "-u", "LINES", "COLORTERM=truecolor", sys.executable, "-c", code]
    )
    yield opened
    if not opened.over():
        opened.run("kill-server")


def test_in_tmux_the_ratio_is_dragged_with_the_mouse_and_the_pane_can_shrink(pane: Pane) -> None:
    lines = pane.until(lambda shown: "KV tokens" in shown and "^p commands" in shown).splitlines()
    y = next(i for i, line in enumerate(lines) if "State:KV ratio" in line)
    x = lines[y].index("●")
    pane.mouse(0, x, y)
    for step in range(1, 9):
        pane.mouse(32, x - step, y)
    pane.until(lambda shown: "R starts: ratio 0.9→" in shown and shown.splitlines()[y].find("●") == x - 8)
    pane.mouse(0, x - 8, y, down=False)
    pane.run("resize-window", "-x", "80", "-y", "24")
    words = ("KV tokens", "headroom", "R Restart", "R starts: ratio", " ^p ")
    pane.until(lambda shown: len(shown.splitlines()) == 24 and all(word in shown for word in words))
    pane.run("send-keys", "q")
    end = time.monotonic() + LIMIT_S
    while not pane.over():
        assert time.monotonic() < end
        time.sleep(0.05)
