"""The failures that are provoked on a GPU machine (tests/real), rehearsed on the stand-in: each is named rightly.

A change rehearses them in four groups, which share the cores; one by one, and on a real server: tests/real/failures.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from commands import User

SCRIPT = Path(__file__).parents[1] / "real" / "failures.py"
GROUPS = [
    ("fraction too low", "fraction too high", "ratio near zero", "unified memory with fp8 KV"),
    ("wrong interpreter", "missing model", "bad flag"),
    ("second server", "SIGKILL of the scheduler"),
    ("metrics off", "API key set"),
]


@pytest.mark.parametrize("failures", GROUPS, ids=" and ".join)
def test_provoked_failures_are_called_what_they_are(failures: tuple[str, ...], user: User, tmp_path: Path) -> None:
    out = tmp_path / "told.json"
    only = [word for failure in failures for word in ("--only", failure)]
    words = ("--sim", "--port", str(user.port), "--set", 'tuner.simulator={"speed": 0}', *only, "--out", str(out))
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *words],
        env=user.environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    told = json.loads(out.read_text(encoding="utf-8"))
    assert [(name, right) for name, *_, right in told] == [(failure, "yes") for failure in failures]
    assert user.servers() == []
