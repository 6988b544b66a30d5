"""A user for each test; whatever server they leave behind is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import User


@pytest.fixture
def user(tmp_path: Path) -> Iterator[User]:
    somebody = User(tmp_path)
    yield somebody
    somebody.run("stop", status=None)
    for process in somebody.servers():
        process.kill()
