"""Every command of the README's tour works, in order, as written."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

from commands import User

ROOT = Path(__file__).parents[2]


def tour() -> list[str]:
    """The commands under ``<!-- tour -->``, in order."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"<!-- tour -->\s*```\w*\n(.*?)```", text, re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


def test_the_tour_runs_as_written(user: User) -> None:
    shutil.copytree(ROOT / "presets", user.home / "presets")
    shutil.copy(ROOT / "tests" / "data" / "measured" / "27b-48g-r15-full.log", user.home / "server.log")
    commands = tour()
    assert len(commands) >= 10
    for line in commands:
        words = shlex.split(line)
        assert words[0] == "tuner"
        user.run(*words[1:])
        if words[1] == "import":
            # What the README asks the reader to edit: here the stand-in takes the interpreter's place.
            recipe = user.home / "my.toml"
            text = recipe.read_text(encoding="utf-8")
            edited = re.sub(r"(?m)^port = \d+", f'port = {user.port}\npython = "simulator"', text)
            assert edited != text
            recipe.write_text(edited, encoding="utf-8")
    assert user.servers() == []
