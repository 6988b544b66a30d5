"""Handles, locks, logs and ports on their own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import psutil
import pytest

from tuner.paths import Home
from tuner.recipe.model import Recipe
from tuner.server import ports, presence, proxies
from tuner.server.family import main_process
from tuner.server.handles import HandleStore, PortLocked
from tuner.server.logfile import LogTail, clear_old_logs, create_log, note_stop
from tuner.server.managers import manager_in, manager_of
from tuner.server.model import ServerHandle
from tuner.server.stopping import StopTimes
from tuner.serverlog.model import Phase
from tuner.serverlog.reader import read_boot


def handle_of(port: int = 30000, pid: int = 4_000_000, **more: object) -> ServerHandle:
    values: dict[str, object] = {
        "pid": pid,
        "create_time": 1.0,
        "host": "127.0.0.1",
        "port": port,
        "log_path": "/log",
        "started_at": 1.0,
        "simulated": True,
        "recipe": Recipe(name="中文", flags={"port": port}),
    }
    return msgspec.convert({**values, **more}, ServerHandle)


def test_a_handle_comes_back_as_it_was_kept(home: Home) -> None:
    store = HandleStore(home)
    kept = [handle_of(30001, round_name="r2"), handle_of(30000, vram_before_mib={"0": 615})]
    for handle in kept:
        store.write(handle)
    assert store.all() == kept[::-1]
    assert store.read(30001) == kept[0]
    assert store.read(1) is None


def test_a_broken_handle_file_is_no_handle(home: Home) -> None:
    (home.servers / "30000.json").write_text('{"pid": 1', encoding="utf-8")
    (home.servers / "notes.json").write_text("{}", encoding="utf-8")
    assert HandleStore(home).all() == []


def test_forgetting_an_old_handle_leaves_a_newer_one(home: Home) -> None:
    store = HandleStore(home)
    old, new = handle_of(pid=4_000_001), handle_of(pid=4_000_002)
    store.write(new)
    assert store.forget(old, 1.0)
    assert store.read(30000) == new
    assert store.forget(new, 1.0)
    assert store.read(30000) is None


def test_a_held_lock_is_told_of(home: Home) -> None:
    store = HandleStore(home)
    store.write(handle_of())
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with store.starting(30000, 1.0):
            entered.set()
            leave.wait(10)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        entered.wait(10)
        with pytest.raises(PortLocked), HandleStore(home).starting(30001, 0.0):
            pass
        assert not store.forget(handle_of(), 0.0)
        assert store.read(30000) is not None
    finally:
        leave.set()
        thread.join()


def test_the_lock_is_one_that_a_script_can_take(home: Home) -> None:
    with HandleStore(home).locked(30000, 1.0):
        script = f"flock --nonblock {home.servers}/30000.lock true"
        assert subprocess.run(["/bin/sh", "-c", script], check=False).returncode == 1
    assert subprocess.run(["/bin/sh", "-c", script], check=False).returncode == 0


def test_a_process_is_known_by_its_birth_even_when_the_clock_was_set(monkeypatch: pytest.MonkeyPatch) -> None:
    me = psutil.Process()
    born = me.create_time() - psutil.boot_time()
    assert main_process(handle_of(pid=me.pid, create_time=me.create_time())) is not None
    assert main_process(handle_of(pid=me.pid, create_time=me.create_time() - 3600)) is None
    assert main_process(handle_of(pid=me.pid, create_time=me.create_time() - 3600, since_boot_s=born)) is not None
    assert main_process(handle_of(pid=me.pid, create_time=me.create_time(), since_boot_s=born - 5)) is None


def test_each_start_gets_its_own_private_log(tmp_path: Path) -> None:
    one, two = (create_log(tmp_path, 30000, 1_800_000_000.0) for _ in range(2))
    assert one.name == "30000-20270115T080000Z.log"
    assert two.name == "30000-20270115T080000Z-2.log"
    assert one.stat().st_mode & 0o777 == 0o600


def test_a_stop_by_the_tuner_is_told_in_the_log_on_a_line_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "30000-a.log"
    for before in ("", "Load weight begin. avail mem=46.83 GB\n", "  4%|#  | 1/24"):
        log.write_text(before)
        note_stop(log, 0.0)
        *_, last = log.read_text().splitlines()
        assert last.endswith("SIGTERM sent by tuner: a stop was asked for.")
        assert last.startswith("[")
        facts = read_boot(log.read_text() + "kill_process_tree called: parent_pid=7, include_parent=True, pid=7\n")
        assert facts.phase is Phase.STOPPED
    with pytest.raises(FileNotFoundError):
        note_stop(tmp_path / "gone.log", 0.0)
    assert not (tmp_path / "gone.log").exists()


def test_old_logs_go_by_age_and_count_but_never_that_of_a_living_server(tmp_path: Path) -> None:
    now = 2_000_000_000.0
    logs = []
    for day in range(6):
        path = create_log(tmp_path, 30000, now - day * 86_400)
        os.utime(path, (now - day * 86_400, now - day * 86_400))
        logs.append(path)
    foreign = tmp_path / "notes-of-mine.log"
    foreign.touch()
    os.utime(foreign, (0, 0))
    removed = clear_old_logs(tmp_path, {str(logs[5])}, keep_days=3.5, keep_files=3, now=now)
    assert sorted(removed) == sorted([logs[3], logs[4]])
    assert foreign.exists()
    assert logs[5].exists()


def test_a_growing_log_is_read_on_from_where_it_was(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LogTail(path)
    assert tail.read() == ""
    wide = "模型加载中\n".encode()
    path.write_bytes(wide[:4])
    first = tail.read()
    with path.open("ab") as file:
        file.write(wide[4:] + b"\xff\r50%\r100%\n")
    assert first + tail.read() == "模型加载中\n\ufffd\r50%\r100%\n"
    assert tail.read() == ""


def test_a_truncated_log_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("a long first text\n", encoding="utf-8")
    tail = LogTail(path)
    tail.read()
    path.write_text("new\n", encoding="utf-8")
    assert tail.read() == "new\n"


def test_a_huge_line_is_cut_and_the_next_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"x" * (3 << 20) + b"\nThe next line\n")
    tail = LogTail(path)
    pieces = []
    while piece := tail.read():
        pieces.append(piece)
    lines = "".join(pieces).split("\n")
    assert len(lines[0]) == 128 << 10
    assert lines[1] == "The next line"


def test_who_listens_is_seen_and_a_free_port_is_free() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        assert ports.bind_problem("127.0.0.1", port) == "the port is taken"
        assert ports.bind_problem("0.0.0.0", port) == "the port is taken"
        assert ports.any_listens([psutil.Process()], port) is True
        assert os.getpid() in {holder.pid for holder in ports.holders(port)}
    assert ports.port_free("127.0.0.1", port)
    assert ports.any_listens([psutil.Process()], port) is False


@pytest.mark.parametrize(
    ("host", "port", "words"),
    [("203.0.113.7", 30000, "no address"), ("no.such.host.invalid", 30000, "not known"), ("127.0.0.1", 70000, "port")],
)
def test_an_address_that_cannot_be_bound_is_explained(host: str, port: int, words: str) -> None:
    assert words in (ports.bind_problem(host, port) or "")


@pytest.mark.parametrize(
    ("cgroup", "name", "stop"),
    [
        ("/system.slice/sglang.service", "systemd unit sglang.service", "systemctl stop sglang.service"),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service",
            "systemd unit llm.service",
            "systemctl --user stop llm.service",
        ),
        ("/system.slice/docker-0123456789abcdef.scope", "container 0123456789ab", "docker stop 0123456789ab"),
        ("/docker/0123456789abcdef0123", "container 0123456789ab", "docker stop 0123456789ab"),
        ("/system.slice/sglang.service/worker", "systemd unit sglang.service", "systemctl stop sglang.service"),
        ("/machine.slice/libpod-0123456789abcdef.scope", "container 0123456789ab", "podman stop 0123456789ab"),
        (
            "/kubepods.slice/kubepods-pod1.slice/cri-containerd-0123456789abcdef.scope",
            "Kubernetes, container 0123456789ab",
            "kubectl scale its deployment to 0",
        ),
    ],
)
def test_what_keeps_a_server_up_is_recognised(cgroup: str, name: str, stop: str) -> None:
    manager = manager_in(cgroup)
    assert manager is not None
    assert (manager.name, manager.stop_command) == (name, stop)


@pytest.mark.parametrize("cgroup", ["/", "/user.slice/user-0.slice/session-3.scope", "/system.slice/ssh.service"])
def test_a_login_session_is_no_manager(cgroup: str) -> None:
    assert manager_in(cgroup) is None


def test_a_script_that_would_start_a_server_again_is_recognised(tmp_path: Path) -> None:
    script = tmp_path / "watchdog.sh"
    script.write_text("while true; do sleep 600; done\n", encoding="utf-8")
    with subprocess.Popen(["bash", str(script)]) as watchdog:
        try:
            while not (children := psutil.Process(watchdog.pid).children()):
                pass
            manager = manager_of(children[0].pid)
            assert manager is not None
            assert "watchdog.sh" in manager.name
            assert manager.stop_command == f"kill {watchdog.pid} {children[0].pid}"
            # What this very program started has nothing above it that would start it again.
            assert manager_of(watchdog.pid) is None
        finally:
            for process in psutil.Process(watchdog.pid).children():
                process.kill()
            watchdog.kill()


def test_a_living_server_is_known_by_its_lock_alone(home: Home, port: int) -> None:
    assert not presence.held(home, port)
    with presence.taken(home, port) as lock:
        server = subprocess.Popen(["/bin/sleep", "600"], pass_fds=(lock,))
    try:
        assert presence.held(home, port)
        assert [process.pid for process in presence.holders(home, port)] == [server.pid]
        with pytest.raises(PortLocked), presence.taken(home, port):
            pass
    finally:
        server.kill()
        server.wait()
    assert not presence.held(home, port)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, {}),
        ({"no_proxy": "a"}, {}),
        ({"http_proxy": "http://p:1"}, "127.0.0.1,localhost,::1,10.0.0.5"),
        ({"HTTPS_PROXY": "http://p:1", "NO_PROXY": "a, b"}, "a,b,127.0.0.1,localhost,::1,10.0.0.5"),
        ({"all_proxy": "x", "no_proxy": "*"}, "*,127.0.0.1,localhost,::1,10.0.0.5"),
    ],
)
def test_a_proxy_is_kept_off_this_machine(environment: dict[str, str], expected: str | dict[str, str]) -> None:
    added = proxies.kept_off(environment, "10.0.0.5")
    assert added == (expected if isinstance(expected, dict) else {"no_proxy": expected, "NO_PROXY": expected})


def test_the_bound_of_a_stop_is_the_sum_of_its_waits() -> None:
    times = StopTimes(drain_s=10, force_s=2, children_s=1, kill_s=3, settle_s=4)
    assert times.bound_s(drain=True) == pytest.approx(10 + 1 + 3 + 1.2 + 8)
    assert times.bound_s(drain=False) == pytest.approx(2 + 1 + 3 + 1.2 + 8)


def test_reading_types_of_a_server_loads_no_http_client() -> None:
    code = "import sys, tuner.server.model, tuner.session.events; sys.exit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
