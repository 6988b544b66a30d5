"""Readiness that cannot be fooled, with real processes."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest
from fakes import READY

from tuner.server import ports
from tuner.server.family import family
from tuner.server.model import LaunchSpec, ReadyState
from tuner.server.supervisor import Supervisor
from tuner.session.events import PhaseChanged

Spec = Callable[..., LaunchSpec]


class Watcher:
    """Keeps the news of a start; ``react`` runs on each."""

    def __init__(self, react: Callable[[PhaseChanged], None] = lambda _: None) -> None:
        self.news: list[PhaseChanged] = []
        self._react = react

    def __call__(self, event: PhaseChanged) -> None:
        self.news.append(event)
        self._react(event)

    @property
    def phases(self) -> list[str]:
        return list(dict.fromkeys(str(event.phase) for event in self.news))


def when(phase: str, do: Callable[[], object]) -> Callable[[PhaseChanged], None]:
    def react(event: PhaseChanged) -> None:
        if event.phase == phase:
            do()

    return react


def test_the_ready_line_alone_is_not_ready(supervisor: Supervisor, fake_spec: Spec, tmp_path: Path) -> None:
    go = tmp_path / "bind"
    handle = supervisor.start(fake_spec("--no-warm-up", "--bind-when", str(go)))

    def bind_after_the_line(event: PhaseChanged) -> None:
        if READY in event.last_line:
            go.touch()

    watcher = Watcher(bind_after_the_line)
    outcome = supervisor.wait_ready(handle, watcher)
    assert outcome.state is ReadyState.READY
    before = [event for event in watcher.news if READY in event.last_line and event.phase != "ready"]
    assert before
    assert watcher.news[-1].phase == "ready"


def test_a_second_server_that_lies_and_dies_at_its_port_is_not_ready_though_the_first_answers(
    supervisor: Supervisor, fake_spec: Spec, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = supervisor.start(fake_spec("--no-warm-up", "--bind-when", str(tmp_path / "bind")))
    first = fake_spec(port=port)
    with subprocess.Popen(first.argv, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            while READY not in other.stdout.readline():
                pass
            watcher = Watcher(lambda event: (tmp_path / "bind").touch() if READY in event.last_line else None)
            outcome = supervisor.wait_ready(second, watcher)
            assert outcome.state is ReadyState.DIED
            assert outcome.exit_status == 3
            assert "bind" in outcome.reason
            assert "ready" not in watcher.phases
            assert other.poll() is None
        finally:
            other.kill()


def test_where_ports_may_not_be_seen_the_line_of_uvicorn_decides(
    supervisor: Supervisor, fake_spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbidden(self: psutil.Process, kind: str = "inet") -> list[object]:
        raise psutil.AccessDenied(self.pid)

    monkeypatch.setattr(psutil.Process, "net_connections", forbidden)
    handle = supervisor.start(fake_spec("--no-warm-up", "--bind-when", str(tmp_path / "bind")))
    assert ports.any_listens(family(handle), handle.port) is None
    watcher = Watcher(lambda event: (tmp_path / "bind").touch() if READY in event.last_line else None)
    assert supervisor.wait_ready(handle, watcher).state is ReadyState.READY


@pytest.mark.parametrize("flag", ["log_level", "log_level_http"])
@pytest.mark.parametrize("ports_seen", [True, False])
def test_a_server_that_logs_only_warnings_becomes_ready_all_the_same(
    supervisor: Supervisor, fake_spec: Spec, monkeypatch: pytest.MonkeyPatch, flag: str, ports_seen: bool
) -> None:
    if not ports_seen:
        monkeypatch.setattr(ports, "any_listens", lambda *_: None)
    handle = supervisor.start(fake_spec("--mute", **{flag: "warning"}))
    assert supervisor.wait_ready(handle).state is ReadyState.READY


def test_ready_waits_for_the_warm_up(supervisor: Supervisor, fake_spec: Spec, tmp_path: Path) -> None:
    warm = tmp_path / "warm"
    handle = supervisor.start(fake_spec("--warm-when", str(warm)))
    watcher = Watcher(when("warming up", warm.touch))
    outcome = supervisor.wait_ready(handle, watcher)
    assert outcome.state is ReadyState.READY
    assert "warming up" in outcome.phase_seconds


def test_a_refused_sizing_ends_the_wait_at_once_with_its_reason(supervisor: Supervisor, fake_spec: Spec) -> None:
    handle = supervisor.start(fake_spec("--refuse"))
    outcome = supervisor.wait_ready(handle, Watcher(), timeout_s=60)
    assert outcome.state is ReadyState.DIED
    assert outcome.exit_status == -9
    assert "Not enough GPU memory" in outcome.reason
    assert any("max_mamba_cache_size=-13" in line for line in outcome.last_lines)
    assert supervisor.running() == []


def test_a_fatal_line_ends_the_wait_even_when_the_process_lives_on(supervisor: Supervisor, fake_spec: Spec) -> None:
    handle = supervisor.start(fake_spec("--refuse-and-stay"))
    outcome = supervisor.wait_ready(handle, Watcher(), timeout_s=60)
    assert outcome.state is ReadyState.DIED
    assert family(handle) == []


def test_an_abort_stops_what_it_started(supervisor: Supervisor, fake_spec: Spec, tmp_path: Path) -> None:
    cancel = threading.Event()
    handle = supervisor.start(fake_spec("--load-until", str(tmp_path / "never")))
    watcher = Watcher(when("loading weights", cancel.set))
    outcome = supervisor.wait_ready(handle, watcher, cancel)
    assert outcome.state is ReadyState.ABORTED
    assert list(outcome.phase_seconds)[-1] == "loading weights"
    assert family(handle) == []
    assert supervisor.running() == []


def test_a_start_that_takes_too_long_is_ended(supervisor: Supervisor, fake_spec: Spec, tmp_path: Path) -> None:
    handle = supervisor.start(fake_spec("--load-until", str(tmp_path / "never")))
    outcome = supervisor.wait_ready(handle, Watcher(), timeout_s=0.2)
    assert outcome.state is ReadyState.TIMED_OUT
    assert family(handle) == []


def test_a_silent_phase_is_said_to_be_stalled_with_its_last_line(
    supervisor: Supervisor, fake_spec: Spec, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    handle = supervisor.start(fake_spec("--load-until", str(go)))
    watcher = Watcher(lambda event: go.touch() if event.stalled and "Load weight" in event.last_line else None)
    outcome = supervisor.wait_ready(handle, watcher, stall_s=0.2)
    assert outcome.state is ReadyState.READY
    assert any(event.stalled and "Load weight begin" in event.last_line for event in watcher.news)


def test_estimates_of_earlier_starts_come_with_the_phases(supervisor: Supervisor, fake_spec: Spec) -> None:
    handle = supervisor.start(fake_spec())
    watcher = Watcher()
    supervisor.wait_ready(handle, watcher, estimates={"launching": 2.0, "loading weights": 40.0})
    assert {event.total_estimate_s for event in watcher.news} == {42.0}
    assert {event.estimate_s for event in watcher.news if event.phase == "loading weights"} <= {40.0}


def test_escape_sequences_and_keys_of_a_log_reach_no_watcher(
    supervisor: Supervisor, fake_spec: Spec, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    handle = supervisor.start(fake_spec("--escape", "--load-until", str(go)))
    watcher = Watcher(lambda event: go.touch() if "模型加载中" in event.last_line else None)
    outcome = supervisor.wait_ready(handle, watcher)
    shown = " ".join([*(event.last_line for event in watcher.news), *outcome.last_lines])
    assert "模型加载中" in shown
    assert "\x1b" not in shown
    assert "geheim" not in shown


def test_a_flood_of_log_hides_neither_readiness_nor_an_abort(supervisor: Supervisor, fake_spec: Spec) -> None:
    handle = supervisor.start(fake_spec("--flood", "24"))
    assert supervisor.wait_ready(handle, Watcher()).state is ReadyState.READY
    assert supervisor.stop(handle).stopped


def test_a_line_without_end_is_read_in_bounded_memory(supervisor: Supervisor, fake_spec: Spec) -> None:
    handle = supervisor.start(fake_spec("--long-line", "24"))
    outcome = supervisor.wait_ready(handle, Watcher())
    assert outcome.state is ReadyState.READY
    assert max(len(line) for line in outcome.last_lines) < 10_000
    assert outcome.facts.mamba_slots == 57


def test_a_server_behind_a_command_in_front_is_ready_and_what_cannot_be_verified_is_said(
    supervisor: Supervisor, fake_spec: Spec, tmp_path: Path
) -> None:
    """As with docker run or srun: the log and the end come through, the processes are somebody else's."""
    spec = fake_spec("--die-when", str(tmp_path / "die"))
    inner = tmp_path / "inner"
    inner.write_text(f"#!/bin/sh\necho $$ >{tmp_path / 'pid'}\nexec {' '.join(spec.argv)}\n", encoding="utf-8")
    inner.chmod(0o755)
    # The subshell ends at once, so the server is nobody's child here, in another session and without our mark.
    front = f"(env -u TUNER_START_ID setsid {inner} & ); exec sleep 600"
    handle = supervisor.start(msgspec.structs.replace(spec, argv=("/bin/sh", "-c", front)))
    try:
        outcome = supervisor.wait_ready(handle, timeout_s=60)
        assert outcome.state is ReadyState.READY, outcome
        assert f"Port {handle.port} is held by a process that is not a child" in outcome.unverified
        stopped = supervisor.stop(handle, drain=False)
        assert stopped.stopped
        assert not stopped.port_free
        assert (tmp_path / "pid").read_text(encoding="utf-8").strip() in stopped.reason
    finally:
        psutil.Process(int((tmp_path / "pid").read_text(encoding="utf-8"))).kill()
