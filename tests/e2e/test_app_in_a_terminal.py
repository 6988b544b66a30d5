"""The app in a real terminal: mouse, keys, and what is left when it is killed."""

from __future__ import annotations

import re
import signal
import sys

import pytest
from commands import User
from terminal import Terminal

#: The terminal's escape key; a pause lets the app tell it from the start of a sequence.
ESCAPE = "\x1b"


class Operator:
    """A user in front of the demo."""

    def __init__(self, user: User) -> None:
        words = ("demo", "--port", str(user.port))
        self.terminal = Terminal([sys.executable, "-m", "tuner", *words], user.environment, cwd=str(user.home))

    def escape(self) -> None:
        self.terminal.type(ESCAPE)
        self.terminal.pump(0.6)

    def wait_for_first_round(self) -> None:
        self.terminal.wait_for("r1 verified")
        self.escape()
        self.terminal.wait_for(lambda text: "r1 runs" in text and "r1 verified" not in text)

    def drag_ratio(self, cells: int) -> None:
        """Takes the knob of the ratio slider and moves it by ``cells``."""
        column, row = self.terminal.find("State:KV ratio")
        knob = self.terminal.lines[row - 1].index("●", column) + 1
        self.terminal.drag((knob, row), (knob + cells, row))
        self.terminal.pump(0.2)


def tokens_shown(text: str) -> int:
    """KV tokens of the preview; 0 while it is not drawn."""
    shown = re.search(r"KV tokens +([\d,]+)", text)
    return int(shown[1].replace(",", "")) if shown else 0


def test_drag_restart_compare_export_and_run_the_export(user: User) -> None:
    operator = Operator(user)
    terminal = operator.terminal
    try:
        operator.wait_for_first_round()
        before = tokens_shown(terminal.wait_for(lambda text: tokens_shown(text) > 0))
        operator.drag_ratio(-6)
        terminal.wait_for(lambda text: tokens_shown(text) > before)
        predicted = tokens_shown(terminal.text)
        terminal.type("R")
        terminal.wait_for("Restart r1")
        assert "mamba_full_memory_ratio" in terminal.text
        terminal.type("y")
        terminal.wait_for("r2 verified")
        operator.escape()
        terminal.type("3")
        terminal.wait_for("r1 → r2")
        terminal.type("e")
        terminal.wait_for("Export r2")
        terminal.type("\r")
        terminal.wait_for(lambda text: "Export r2" not in text)
        exported = next(user.home.glob("r2*.toml"))
        terminal.type("q")
        assert terminal.wait() == 0
    finally:
        terminal.close()
    second = user.json("show", "r2")
    assert second["boot"]["kv_tokens"] == predicted
    again = user.json("run", exported.name)
    assert again["recipe"]["flags"] == second["recipe"]["flags"]
    assert again["boot"]["kv_tokens"] == predicted
    assert again["state"] == "verified"


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGHUP, signal.SIGTERM])
def test_a_killed_app_leaves_the_server_and_the_next_one_takes_it_over(user: User, sign: signal.Signals) -> None:
    first = Operator(user)
    try:
        first.wait_for_first_round()
        (server,) = user.servers()
        first.terminal.kill(sign)
        assert first.terminal.wait() is not None
    finally:
        first.terminal.close()
    assert user.servers() == [server]
    app = Terminal([sys.executable, "-m", "tuner"], user.environment, cwd=str(user.home))
    try:
        app.wait_for("r1 runs")
        assert user.servers() == [server]
        app.type("q")
        assert app.wait() == 0
    finally:
        app.close()
    user.run("stop")
    assert user.servers() == []
