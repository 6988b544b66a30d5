"""Starting, finding again and stopping servers, with real processes."""

from __future__ import annotations

import os
import random
import signal
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from tuner.findings import FindingId, Severity
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.server import children
from tuner.server.family import alive, family, main_process
from tuner.server.handles import HandleStore
from tuner.server.model import LaunchSpec, ReadyState, StartRefused
from tuner.server.ports import port_free
from tuner.server.supervisor import Supervisor

Spec = Callable[..., LaunchSpec]


@contextmanager
def another_program(port: int) -> Iterator[subprocess.Popen[bytes]]:
    """A program of somebody else that listens on the port."""
    code = (
        "import socket,time; s=socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1);"
        f"s.bind(('127.0.0.1',{port})); s.listen(); print('up', flush=True); time.sleep(600)"
    )
    program = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    assert program.stdout is not None
    program.stdout.readline()
    try:
        yield program
    finally:
        program.kill()
        program.wait()
        program.stdout.close()


def test_a_server_starts_becomes_ready_and_stops_without_a_trace(
    supervisor: Supervisor, home: Home, fake_spec: Spec
) -> None:
    handle = supervisor.start(fake_spec())
    outcome = supervisor.wait_ready(handle)
    assert outcome.state is ReadyState.READY, outcome
    assert outcome.facts.mamba_slots == 57
    assert outcome.seconds > 0
    stopped = supervisor.stop(handle)
    assert stopped.stopped
    assert stopped.how == "SIGTERM"
    assert stopped.left_processes == ()
    assert stopped.port_free
    assert stopped.vram_missing_mib == {}
    assert stopped.exit_status == -signal.SIGTERM
    assert family(handle) == []
    assert HandleStore(home).all() == []
    assert supervisor.running() == []


def test_the_server_is_in_its_own_session_and_writes_to_a_file(supervisor: Supervisor, fake_spec: Spec) -> None:
    handle = supervisor.start(fake_spec())
    supervisor.wait_ready(handle)
    assert os.getsid(handle.pid) == handle.pid != os.getsid(0)
    log = Path(handle.log_path)
    assert "fired up" in log.read_text(encoding="utf-8")
    assert stat.S_IMODE(log.stat().st_mode) == 0o600
    for number in (0, 1, 2):
        target = Path(f"/proc/{handle.pid}/fd/{number}").readlink()
        assert str(target) == ("/dev/null" if number == 0 else handle.log_path)


def test_a_handle_holds_no_secret_and_is_private(supervisor: Supervisor, home: Home, fake_spec: Spec) -> None:
    spec = fake_spec(api_key="${MY_KEY}")
    spec = msgspec.structs.replace(spec, environment={**spec.environment, "MY_KEY": "sk-very-secret"})
    supervisor.start(spec)
    (file,) = home.servers.glob("*.json")
    assert "very-secret" not in file.read_text(encoding="utf-8")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_second_start_is_refused_while_the_first_still_loads(
    supervisor: Supervisor, home: Home, gpu: object, fake_spec: Spec, tmp_path: Path
) -> None:
    handle = supervisor.start(fake_spec("--load-until", str(tmp_path / "go")))
    assert port_free(handle.host, handle.port)
    with pytest.raises(StartRefused) as refusal:
        Supervisor(home, gpu).start(fake_spec())  # type: ignore[arg-type]
    assert [f.id for f in refusal.value.findings if f.severity is Severity.FATAL] == [FindingId.DOUBLE_START]
    assert str(handle.pid) in refusal.value.findings[0].title
    assert supervisor.running() == [handle]


def test_a_server_outlives_a_killed_tuner_and_is_found_by_the_next(
    supervisor: Supervisor, home: Home, port: int, tmp_path: Path
) -> None:
    fake = Path(__file__).with_name("fakes.py")
    code = f"""
import os, sys, signal
from pathlib import Path
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.server.model import LaunchSpec
from tuner.server.supervisor import Supervisor
from tuner.probes.gpu import SimCardProbe
home = Home.at(Path({str(home.state_root.parent)!r}))
spec = LaunchSpec(argv=(sys.executable, {str(fake)!r}, "--port", "{port}"), environment=dict(os.environ),
    host="127.0.0.1", port={port}, simulated=True, recipe=Recipe(python="simulator", flags={{"port": {port}}}))
supervisor = Supervisor(home, SimCardProbe(home.card({port})))
handle = supervisor.start(spec)
assert supervisor.wait_ready(handle).state == "ready"
os.kill(os.getpid(), signal.SIGKILL)
"""
    dead = subprocess.run([sys.executable, "-c", code], check=False, timeout=60, env={**os.environ})
    assert dead.returncode == -signal.SIGKILL
    (handle,) = supervisor.running(port)
    assert supervisor.main_lives(handle)
    assert supervisor.wait_ready(handle).state is ReadyState.READY
    assert supervisor.stop(handle).stopped
    assert family(handle) == []


@pytest.mark.parametrize("moment", ["before the handle", "before the word to go"])
def test_a_tuner_killed_in_the_middle_of_a_start_leaves_no_server_without_a_handle(
    home: Home, port: int, tmp_path: Path, moment: str, supervisor: Supervisor
) -> None:
    mark = tmp_path / "server-ran"
    write = "kill()" if moment == "before the handle" else "real(store, handle); kill()"
    code = f"""
import os, sys, signal
from pathlib import Path
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.server.handles import HandleStore
from tuner.server.model import LaunchSpec
from tuner.server.supervisor import Supervisor
from tuner.probes.gpu import SimCardProbe
home = Home.at(Path({str(home.state_root.parent)!r}))
real = HandleStore.write
def kill():
    os.kill(os.getpid(), signal.SIGKILL)
def write(store, handle):
    Path({str(tmp_path / "pid")!r}).write_text(str(handle.pid))
    {write}
HandleStore.write = write
spec = LaunchSpec(argv=("/bin/sh", "-c", "touch {mark}; exec sleep 600"), environment=dict(os.environ),
    host="127.0.0.1", port={port}, simulated=True, recipe=Recipe(python="simulator", flags={{"port": {port}}}))
Supervisor(home, SimCardProbe(home.card({port}))).start(spec)
"""
    dead = subprocess.run([sys.executable, "-c", code], check=False, timeout=60)
    assert dead.returncode == -signal.SIGKILL
    pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
    with_handle = psutil.Process(pid) if psutil.pid_exists(pid) else None
    if with_handle is not None:
        psutil.wait_procs([with_handle], timeout=10)
        assert not alive(with_handle)
    assert not mark.exists()
    assert supervisor.running(port) == []
    assert supervisor.start(_sleeper(port)).pid != pid


def _sleeper(port: int) -> LaunchSpec:
    return LaunchSpec(
        argv=("/bin/sleep", "600"),
        environment=dict(os.environ),
        host="127.0.0.1",
        port=port,
        simulated=True,
        recipe=Recipe(python="simulator", flags={"port": port}),
    )


def test_a_stop_ends_even_a_server_that_hears_nothing(supervisor: Supervisor, fake_spec: Spec) -> None:
    handle = supervisor.start(fake_spec("--deaf", "--orphan"))
    assert supervisor.wait_ready(handle).state is ReadyState.READY
    assert len(family(handle)) == 2
    outcome = supervisor.stop(handle)
    assert outcome.stopped
    assert "SIGKILL" in outcome.how
    assert family(handle) == []
    assert outcome.port_free


def test_orphans_of_a_dead_server_are_shown_and_stopped(
    supervisor: Supervisor, home: Home, fake_spec: Spec, tmp_path: Path
) -> None:
    handle = supervisor.start(fake_spec("--orphan", "--die-when", str(tmp_path / "die")))
    supervisor.wait_ready(handle)
    main = psutil.Process(handle.pid)
    (tmp_path / "die").touch()
    while alive(main):
        children.reap(handle.pid)
    assert supervisor.running() == [handle]
    assert not supervisor.main_lives(handle)
    with pytest.raises(StartRefused):
        supervisor.start(fake_spec())
    outcome = supervisor.stop(handle)
    assert outcome.stopped
    assert outcome.exit_status == 1
    assert family(handle) == []
    assert HandleStore(home).all() == []


def test_a_program_that_is_not_ours_is_never_touched(supervisor: Supervisor, fake_spec: Spec, port: int) -> None:
    with another_program(port) as stranger:
        with pytest.raises(StartRefused) as refusal:
            supervisor.start(fake_spec())
        (finding,) = refusal.value.findings
        assert finding.id is FindingId.PORT_IN_USE
        assert str(stranger.pid) in finding.evidence[0]
        assert stranger.poll() is None


def test_a_handle_whose_number_went_to_another_process_stops_nobody(
    supervisor: Supervisor, home: Home, fake_spec: Spec, port: int
) -> None:
    handle = supervisor.start(fake_spec())
    supervisor.wait_ready(handle)
    supervisor.stop(handle)
    with another_program(port) as stranger:
        reused = msgspec.structs.replace(handle, pid=stranger.pid, start_id="")
        HandleStore(home).write(reused)
        assert main_process(reused) is None
        outcome = supervisor.stop(reused)
        assert outcome.stopped
        assert outcome.how == "was not running"
        assert not outcome.port_free
        assert str(stranger.pid) in outcome.reason
        assert stranger.poll() is None
        assert supervisor.running() == []


def test_a_zombie_is_no_survivor(supervisor: Supervisor, fake_spec: Spec) -> None:
    handle = supervisor.start(fake_spec("--zombie"))
    supervisor.wait_ready(handle)
    states = [child.status() for child in psutil.Process(handle.pid).children(recursive=True)]
    assert psutil.STATUS_ZOMBIE in states
    assert len(family(handle)) == 2
    assert supervisor.stop(handle).stopped


def test_memory_that_stays_after_a_stop_is_told(supervisor: Supervisor, gpu: object, fake_spec: Spec) -> None:
    handle = supervisor.start(fake_spec())
    assert handle.vram_before_mib == {"0": 500}
    supervisor.wait_ready(handle)
    gpu.used_mib = 900  # type: ignore[attr-defined]
    outcome = supervisor.stop(handle)
    assert outcome.stopped
    assert outcome.vram_missing_mib == {"0": 400}
    assert "400 MiB on GPU 0" in outcome.reason


def test_a_missing_program_dies_at_once_with_its_reason(supervisor: Supervisor, fake_spec: Spec) -> None:
    spec = msgspec.structs.replace(fake_spec(), argv=("/nowhere/python", "-m", "sglang.launch_server"))
    outcome = supervisor.wait_ready(supervisor.start(spec))
    assert outcome.state is ReadyState.DIED
    assert outcome.exit_status == 127
    assert "/nowhere/python" in outcome.reason


def test_a_home_that_cannot_be_written_refuses_the_start_in_one_sentence(
    supervisor: Supervisor, home: Home, fake_spec: Spec
) -> None:
    home.state.mkdir(parents=True, exist_ok=True)
    (home.log_root).write_text("a file in the way", encoding="utf-8")
    with pytest.raises(StartRefused, match="TUNER_HOME"):
        supervisor.start(fake_spec())


RACER = """
import os, sys
from pathlib import Path
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.server.model import LaunchSpec, StartRefused
from tuner.server.supervisor import Supervisor
from tuner.probes.gpu import SimCardProbe
home, port = Home.at(Path(sys.argv[1])), int(sys.argv[2])
supervisor = Supervisor(home, SimCardProbe(home.card(port)))
print("at the line", flush=True)
for _ in sys.stdin:
    spec = LaunchSpec(argv=("/bin/sleep", "600"), environment=dict(os.environ), host="127.0.0.1", port=port,
        simulated=True, recipe=Recipe(python="simulator", flags={"port": port}))
    try:
        print("won", supervisor.start(spec).pid, flush=True)
    except StartRefused as refusal:
        print("lost", refusal.findings[0].id.value, flush=True)
"""


def test_of_tuners_that_start_at_once_exactly_one_wins(supervisor: Supervisor, home: Home, port: int) -> None:
    arguments = [sys.executable, "-c", RACER, str(home.state_root.parent), str(port)]
    racers = [
        subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        for _ in range(3)
    ]
    try:
        for racer in racers:
            assert racer.stdout is not None
            assert racer.stdout.readline() == "at the line\n"
        for _ in range(8):
            for racer in racers:
                assert racer.stdin is not None
                racer.stdin.write("go\n")
            results = [racer.stdout.readline().split() for racer in racers if racer.stdout]
            assert sorted(word for word, _ in results) == ["lost", "lost", "won"]
            assert {why for word, why in results if word == "lost"} == {"double-start"}
            (handle,) = supervisor.running(port)
            assert [int(pid) for word, pid in results if word == "won"] == [handle.pid]
            assert supervisor.stop(handle).stopped
    finally:
        for racer in racers:
            assert racer.stdin is not None
            assert racer.stdout is not None
            racer.stdin.close()
            racer.wait()
            racer.stdout.close()


def test_stopping_twice_at_once_is_harmless(supervisor: Supervisor, fake_spec: Spec) -> None:
    handle = supervisor.start(fake_spec())
    supervisor.wait_ready(handle)
    outcomes = []
    threads = [threading.Thread(target=lambda: outcomes.append(supervisor.stop(handle))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.stopped for outcome in outcomes] == [True, True]


def test_a_listening_socket_of_the_tuner_is_not_handed_to_the_server(supervisor: Supervisor, fake_spec: Spec) -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.listen()
        handle = supervisor.start(fake_spec())
        supervisor.wait_ready(handle)
        inodes = {str(path.readlink()) for path in Path(f"/proc/{handle.pid}/fd").iterdir()}
        assert f"socket:[{os.fstat(ours.fileno()).st_ino}]" not in inodes


KILLED = """
import os, sys, threading, time, signal
from pathlib import Path
from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.server.model import LaunchSpec
from tuner.server.supervisor import Supervisor
from tuner.probes.gpu import SimCardProbe
home, port, fake = Home.at(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
spec = LaunchSpec(argv=(sys.executable, fake, "--port", str(port)), environment=dict(os.environ), host="127.0.0.1",
    port=port, simulated=True, recipe=Recipe(python="simulator", flags={"port": port}), round_name="r7")
supervisor = Supervisor(home, SimCardProbe(home.card(port)))
print("ready to go", flush=True)
sys.stdin.readline()
handle = supervisor.start(spec)
supervisor.wait_ready(handle)
supervisor.stop(handle)
"""


@pytest.mark.parametrize("seed", range(6))
def test_a_tuner_killed_at_any_moment_leaves_one_server_that_is_found_or_none(
    supervisor: Supervisor, home: Home, port: int, seed: int
) -> None:
    chance = random.Random(seed)
    fake = Path(__file__).with_name("fakes.py")
    arguments = [sys.executable, "-c", KILLED, str(home.state_root.parent), str(port), str(fake)]
    with subprocess.Popen(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdin is not None
        assert tuner.stdout is not None
        tuner.stdout.readline()
        tuner.stdin.write("go\n")
        tuner.stdin.flush()
        with suppress(subprocess.TimeoutExpired):
            tuner.wait(chance.uniform(0.0, 0.8))
        tuner.send_signal(chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP]))
        with suppress(BrokenPipeError):
            tuner.stdin.close()
    found = supervisor.running(port)
    ours = [p for p in psutil.process_iter() if str(port) in _words_of(p) and str(fake) in _words_of(p)]
    assert len(found) <= 1
    known = {process.pid for handle in found for process in family(handle)}
    # A process still at the gate sees the tuner's end and goes.
    _, stayed = psutil.wait_procs([p for p in ours if p.pid not in known], timeout=5)
    assert [p for p in stayed if alive(p)] == []
    for handle in found:
        assert handle.round_name == "r7"
        assert supervisor.stop(handle).stopped
    assert supervisor.running(port) == []
    assert port_free("127.0.0.1", port)


def _words_of(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
