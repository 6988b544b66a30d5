"""A handle on disk never makes the tuner touch a process that is not its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import psutil
import pytest

from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.server.family import boot_id, family, main_process, since_boot_s
from tuner.server.handles import HandleStore
from tuner.server.model import ServerHandle


@pytest.fixture
def stranger() -> Iterator[psutil.Process]:
    """A process of somebody else, leader of its own session."""
    code = "print(flush=True); input()"
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    yield psutil.Process(process.pid)
    process.kill()
    process.wait()


def handle_on(process: psutil.Process, **changes: Any) -> ServerHandle:
    """A forged handle that names the process with its right creation time."""
    return ServerHandle(
        **{
            "pid": process.pid,
            "create_time": process.create_time(),
            "since_boot_s": since_boot_s(process),
            "start_id": "of-another-start",
            "boot_id": boot_id(),
            "host": "127.0.0.1",
            "port": 30000,
            "log_path": "",
            "started_at": time.time(),
            "simulated": False,
            "recipe": Recipe(),
            **changes,
        }
    )


def test_a_process_without_the_mark_of_the_start_is_not_ours(stranger: psutil.Process) -> None:
    forged = handle_on(stranger)
    assert main_process(forged) is None
    assert family(forged) == []


def test_nothing_of_an_earlier_boot_is_ours(stranger: psutil.Process) -> None:
    assert family(handle_on(stranger, start_id="", boot_id="another boot")) == []


def test_members_of_a_session_older_than_the_start_are_not_ours(stranger: psutil.Process) -> None:
    later = handle_on(stranger, since_boot_s=since_boot_s(stranger) + 60, start_id="")
    assert family(later) == []


@pytest.mark.parametrize("whose", ["all", "the first", "ours", "our parent's"])
def test_a_handle_that_names_an_impossible_process_is_no_handle(
    home: Home, stranger: psutil.Process, whose: str
) -> None:
    pid = {"all": 0, "the first": 1, "ours": os.getpid(), "our parent's": os.getppid()}[whose]
    store = HandleStore(home)
    store.write(handle_on(stranger, pid=pid))
    assert store.all() == []


def test_a_file_that_is_named_like_no_port_is_passed_over(home: Home, stranger: psutil.Process) -> None:
    store = HandleStore(home)
    encoded = msgspec.json.encode(handle_on(stranger))
    for name in ("²", "030000", "99999999", "40000"):
        (home.servers / f"{name}.json").write_bytes(encoded)
    assert store.all() == []


def test_a_key_in_a_comment_of_the_recipe_is_not_kept_with_the_handle(home: Home, stranger: psutil.Process) -> None:
    text = '# api_key = "sk-very-secret-key-of-mine"\n[server]\n'
    HandleStore(home).write(handle_on(stranger, recipe=Recipe(source_text=text)))
    assert "very-secret" not in (home.servers / "30000.json").read_text(encoding="utf-8")
