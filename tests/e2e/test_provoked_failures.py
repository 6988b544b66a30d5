"""The failures that are provoked on a GPU machine (tests/real), rehearsed on the stand-in: each is named rightly.

A change rehearses them in four groups, which share the cores; one by one, and on a real server: tests/real/failures.py.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import User

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
    user.rehearse("failures.py", *only, "--out", str(out))
    told = json.loads(out.read_text(encoding="utf-8"))
    assert [(name, right) for name, *_, right in told] == [(failure, "yes") for failure in failures]
