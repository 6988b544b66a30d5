"""Who holds memory of a card: told without secrets, and as ours only where that is so."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tuner.metrics.model import GpuProcess, GpuReading
from tuner.recipe.model import Recipe
from tuner.server.cards import card_findings
from tuner.server.holders import holders
from tuner.server.model import ServerHandle

_NO_PROCESS = 2**30


def comes_up(process: subprocess.Popen[bytes]) -> None:
    """Waits until it runs its own program: for a moment after its start it has no command line."""
    assert process.stdout is not None
    assert process.stdout.read(2) == b"up"


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "input('up')", "--api-key", "sk-verysecret1", "\x1b[31mred"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        comes_up(process)
        yield process
        process.kill()


def server(pid: int) -> ServerHandle:
    return ServerHandle(pid=pid, create_time=0.0, host="127.0.0.1", port=1, log_path="", started_at=0.0,
                        simulated=False, recipe=Recipe())  # fmt: skip


def test_a_process_without_a_name_is_told_by_its_command_line_without_secrets(
    child: subprocess.Popen[bytes],
) -> None:
    (told,) = holders([GpuProcess(pid=child.pid)], None).values()
    assert told.command.startswith(f"{Path(sys.executable).name} -c input('up')")
    assert told.command.endswith("--api-key *** red")
    assert told.ours is None


def test_children_of_the_server_are_its_own_and_others_are_not(child: subprocess.Popen[bytes]) -> None:
    process = GpuProcess(pid=child.pid)
    assert holders([process], server(os.getpid()))[child.pid].ours is True
    assert holders([GpuProcess(pid=os.getpid())], server(child.pid))[os.getpid()].ours is False


def test_of_a_server_known_by_its_address_alone_the_process_that_listens_is_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        handle = msgspec.structs.replace(server(0), port=listening.getsockname()[1])
        assert holders([GpuProcess(pid=os.getpid())], handle)[os.getpid()].ours is True
    assert holders([GpuProcess(pid=os.getpid())], handle)[os.getpid()].ours is None


@pytest.mark.parametrize("pid", [_NO_PROCESS, -1, 2**70])
def test_of_a_process_that_is_not_here_the_drivers_name_is_told_and_nothing_claimed(pid: int) -> None:
    (told,) = holders([GpuProcess(pid=pid, name="模型\x1b[2J --token=abcdefgh")], server(os.getpid())).values()
    assert (told.command, told.ours) == ("模型 --token=***", None)


def test_a_number_that_means_another_process_here_is_not_taken_for_it() -> None:
    """In a container the driver tells numbers of the host."""
    (told,) = holders([GpuProcess(pid=os.getpid(), name="sglang::scheduler_TP0")], server(os.getpid())).values()
    assert (told.command, told.ours) == ("sglang::scheduler_TP0", None)


def test_the_card_check_tells_no_secret_of_a_stranger(child: subprocess.Popen[bytes]) -> None:
    from tuner.metrics.model import GpuReading
    from tuner.server.cards import card_findings

    card = GpuReading(index=0, total_mib=49_140, used_mib=8000, free_mib=41_140,
                      processes=(GpuProcess(pid=child.pid, memory_mib=7000),))  # fmt: skip
    (found,) = card_findings(Recipe(), {}, [card], servers=())
    assert "--api-key ***" in found.evidence[0]
    assert "verysecret" not in " ".join(found.evidence)


def test_a_program_that_was_given_a_whole_script_is_told_on_one_line() -> None:
    script = "import sys\nif sys:\n\tinput('up')"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        comes_up(process)
        card = GpuReading(index=0, total_mib=48_000, free_mib=40_000, processes=(GpuProcess(pid=process.pid),))
        (told,) = holders(card.processes, None).values()
        (found,) = card_findings(Recipe(), {}, [card], servers=())
        process.kill()
    assert told.command.endswith("-c import sys if sys: input('up')")
    assert found.evidence[0].endswith("-c import sys if sys: input('up')")
