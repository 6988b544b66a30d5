"""Rounds on the stand-in server through the session: what the operator ends with, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import psutil
import pytest

from tuner.checks.model import Verdict
from tuner.findings import Finding, FindingId, Severity
from tuner.paths import Home
from tuner.recipe.model import SIMULATOR, Recipe, TunerSettings
from tuner.rounds.model import FIRST_ANSWERS, RoundState
from tuner.server import machine
from tuner.server.family import family
from tuner.server.model import InUse
from tuner.session.events import Event, Found, PhaseChanged, ServerStopped
from tuner.session.session import Session


class Watcher:
    """Keeps what a session tells."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.events.append(event)

    @property
    def findings(self) -> list[Finding]:
        return [event.finding for event in self.events if isinstance(event, Found)]

    @property
    def phases(self) -> list[PhaseChanged]:
        return [event for event in self.events if isinstance(event, PhaseChanged)]


@pytest.fixture
def session(home: Home) -> Iterator[Session]:
    session = Session(home, os.environ)
    yield session
    session.close()


@pytest.fixture
def watch() -> Watcher:
    return Watcher()


@pytest.fixture
def recipe(port: int) -> Callable[..., Recipe]:
    def make(fault: str = "", **flags: object) -> Recipe:
        return Recipe(
            python=SIMULATOR,
            flags={
                "model_path": "demo/hybrid-27b",
                "port": port,
                "mem_fraction_static": 0.86,
                "kv_cache_dtype": "fp8_e4m3",
                "mamba_ssm_dtype": "bfloat16",
                "mamba_radix_cache_strategy": "extra_buffer",
                "max_running_requests": 3,
                "reasoning_parser": "qwen3",
                "tool_call_parser": "qwen3_coder",
                **flags,
            },
            tuner=TunerSettings(
                model_shape="qwen3.8-27b-fp8-text", simulator={"speed": 0, **({"fault": fault} if fault else {})}
            ),
        )

    return make


def run(session: Session, recipe: Recipe, watch: Watcher | None = None, **how: bool):  # type: ignore[no-untyped-def]
    return session.run_round(recipe, publish=watch or Watcher(), cancel=threading.Event(), **how)


def test_the_third_identical_death_does_not_happen(
    session: Session, recipe: Callable[..., Recipe], watch: Watcher
) -> None:
    dying = recipe("refuse-at-sizing")
    deaths = [run(session, dying) for _ in range(2)]
    assert [round_.state for round_ in deaths] == [RoundState.FAILED] * 2
    refused = run(session, dying, watch)
    assert refused.state is RoundState.REFUSED
    assert refused.log_path == ""
    finding = refused.findings[0]
    assert finding.id is deaths[0].findings[0].id
    assert "r1, r2" in finding.title
    assert any("Not enough" in line or "sigquit" in line for line in finding.evidence)
    assert "--force" in refused.reason
    assert watch.findings[0] == finding
    forced = run(session, dying, force=True)
    assert forced.state is RoundState.FAILED
    assert forced.log_path
    assert run(session, recipe()).state is RoundState.VERIFIED


def test_a_failed_start_falls_back_to_the_last_good_round(session: Session, recipe: Callable[..., Recipe]) -> None:
    good = run(session, recipe())
    assert good.state is RoundState.VERIFIED
    failed = run(session, recipe("refuse-at-sizing"))
    assert failed.state is RoundState.FAILED
    assert session.running() is None
    back = session.fall_back(failed, publish=Watcher(), cancel=threading.Event())
    assert back is not None
    assert back.state is RoundState.VERIFIED
    assert back.recipe.flags == good.recipe.flags
    assert "r1" in back.note
    assert "r2" in back.note
    running = session.running()
    assert running is not None
    assert running.round is not None
    assert running.round.name == back.name


def test_failed_checks_fall_back_too(session: Session, recipe: Callable[..., Recipe]) -> None:
    run(session, recipe())
    leaking = run(session, recipe("reasoning-leaks"))
    assert leaking.state is RoundState.UNVERIFIED
    back = session.fall_back(leaking, publish=Watcher(), cancel=threading.Event())
    assert back is not None
    assert back.state is RoundState.VERIFIED


def test_a_refusal_that_touched_nothing_needs_no_fall_back(session: Session, recipe: Callable[..., Recipe]) -> None:
    run(session, recipe())
    before = session.running()
    assert before is not None
    refused = run(session, recipe(api_key="${NO_SUCH_KEY_IS_SET}"))
    assert refused.state is RoundState.REFUSED
    assert session.fall_back(refused, publish=Watcher(), cancel=threading.Event()) is None
    after = session.running()
    assert after is not None
    assert after.handle == before.handle


def test_without_a_good_round_there_is_nothing_to_fall_back_to(session: Session, recipe: Callable[..., Recipe]) -> None:
    failed = run(session, recipe("refuse-at-sizing"))
    assert session.last_good(failed.recipe) is None
    assert session.fall_back(failed, publish=Watcher(), cancel=threading.Event()) is None


def test_everything_that_speaks_against_a_start_is_told_at_once(
    session: Session, tmp_path: Path, port: int, watch: Watcher
) -> None:
    broken = Recipe(
        python="/no/such/python",
        flags={"model_path": str(tmp_path / "nothing"), "port": port, "api_key": "${NO_SUCH_KEY_IS_SET}"},
    )
    refused = run(session, broken, watch)
    assert refused.state is RoundState.REFUSED
    fatal = {f.id for f in watch.findings if f.severity is Severity.FATAL}
    assert {FindingId.MODULE_MISSING, FindingId.MODEL_MISSING, FindingId.SECRET_MISSING} <= fatal


def test_a_server_that_dies_under_the_checks_is_a_failed_round_with_its_cause(
    session: Session, recipe: Callable[..., Recipe], watch: Watcher
) -> None:
    # The prefix check's long prompts are what it cannot take.
    died = run(session, recipe("oom-while-serving:2000"), watch)
    assert died.state is RoundState.FAILED
    assert died.phase == "checks"
    assert FindingId.OOM_WHILE_SERVING in [f.id for f in died.findings]
    assert session.running() is None
    assert any(isinstance(event, ServerStopped) and event.outcome.stopped for event in watch.events)


def test_a_death_without_a_word_on_a_full_disk_is_told_as_that(
    session: Session, recipe: Callable[..., Recipe], watch: Watcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: SimpleNamespace(free=500 << 10))
    died = run(session, recipe("die-at:Load weight begin"), watch)
    assert died.state is RoundState.FAILED
    assert "is full" in died.reason
    assert "TUNER_HOME" in died.reason
    named = run(session, recipe("refuse-at-sizing"))
    assert named.state is RoundState.FAILED
    assert "is full" not in named.reason


def test_phases_come_with_what_they_took_the_last_time_for_this_model(
    session: Session, recipe: Callable[..., Recipe], watch: Watcher
) -> None:
    first = run(session, recipe())
    second = run(session, recipe(), watch)
    for phase in ("warming up", FIRST_ANSWERS):
        news = [event for event in watch.phases if event.phase == phase]
        assert {event.estimate_s for event in news} == {first.phase_seconds[phase]}
        assert news[0].total_estimate_s == pytest.approx(sum(first.phase_seconds.values()))
    assert watch.phases[-1].phase == FIRST_ANSWERS
    assert watch.phases[-1].total_s >= (second.ready_seconds or 0)
    unknown = Watcher()
    run(session, recipe(model_path="another/model"), unknown)
    assert {event.estimate_s for event in unknown.phases if event.phase in ("warming up", FIRST_ANSWERS)} == {None}


def test_ready_is_the_servers_own_time_and_the_first_answers_are_a_phase_after_it(
    session: Session, recipe: Callable[..., Recipe]
) -> None:
    round_ = run(session, recipe())
    *start, (last, first_answers) = round_.phase_seconds.items()
    assert last == FIRST_ANSWERS
    assert sum(seconds for _, seconds in start) == pytest.approx(round_.ready_seconds, abs=0.2)
    assert len(round_.first_answers_s) == 3
    assert 0 < sum(round_.first_answers_s) <= first_answers
    assert session.history.get(1).first_answers_s == round_.first_answers_s


def test_the_highest_vram_of_a_start_is_no_less_than_its_log_tells(
    session: Session, recipe: Callable[..., Recipe]
) -> None:
    speculating = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 1, "speculative_eagle_topk": 1,
                   "speculative_num_draft_tokens": 2}  # fmt: skip
    round_ = run(session, recipe(mem_fraction_static=0.9, **speculating))
    assert round_.plan is not None and round_.plan.card_gib is not None
    assert round_.boot is not None and round_.boot.free_after_draft_pools_gib is not None
    lowest_gib = round_.boot.free_after_draft_pools_gib
    assert round_.vram_mib["peak"] >= round((round_.plan.card_gib - lowest_gib) * 1024) - 1
    assert round_.accuracy is not None
    assert round_.accuracy.ready_free_actual == pytest.approx(round_.plan.card_gib - round_.vram_mib["ready"] / 1024)


def test_a_running_server_of_ours_counts_as_free_memory_for_its_successor(
    session: Session, recipe: Callable[..., Recipe]
) -> None:
    run(session, recipe())
    look = session.look()
    assert look.gpus[0].free_mib is not None
    assert look.gpus[0].free_mib < 8192
    assert run(session, recipe(mamba_full_memory_ratio=0.5)).state is RoundState.VERIFIED


@pytest.fixture
def other_tuner(home: Home, port: int) -> Iterator[subprocess.Popen[str]]:
    """Another tuner in the middle of a round: its server hangs in its sizing."""
    switches = json.dumps({"speed": 0, "fault": "hang:sizing"})
    words = ["run", "--sim", "--set", f"port={port}", "--set", f"tuner.simulator={switches}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner", *words],
        env={**os.environ, "TUNER_HOME": str(home.state_root.parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "sizing pools" in line:
            break
    yield process
    process.kill()
    process.wait()
    process.stderr.close()


def test_a_second_tuner_is_a_viewer(
    session: Session, other_tuner: subprocess.Popen[str], recipe: Callable[..., Recipe]
) -> None:
    running = session.running()
    assert running is not None
    assert running.round is not None
    assert running.round.state is RoundState.STARTING
    assert session.look().alive
    with pytest.raises(InUse, match=f"process {other_tuner.pid}"):
        session.stop(publish=Watcher())
    with pytest.raises(InUse):
        session.verify(publish=Watcher(), cancel=threading.Event())
    refused = run(session, recipe())
    assert refused.state is RoundState.REFUSED
    assert "tuner stop --force" in refused.reason
    assert session.history.get(1).state is RoundState.STARTING
    assert family(running.handle)
    assert other_tuner.poll() is None
    outcome = session.stop(publish=Watcher(), drain=False, force=True)
    assert outcome is not None
    assert outcome.stopped
    # The tuner whose server was taken away says so in its round.
    other_tuner.wait(30)
    assert session.history.get(1).state is RoundState.FAILED


def test_the_swap_looks_again_before_it_stops(
    session: Session, other_tuner: subprocess.Popen[str], recipe: Callable[..., Recipe], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the first look and the stop another tuner may have swapped the server itself."""
    from tuner.session import swap

    looks: list[str] = []
    real = swap.leave_to_others

    def first_look_is_old(history: object, handle: object) -> None:
        looks.append("look")
        if len(looks) > 1:
            real(history, handle)  # type: ignore[arg-type]

    monkeypatch.setattr(swap, "leave_to_others", first_look_is_old)
    refused = run(session, recipe())
    assert refused.state is RoundState.REFUSED
    assert len(looks) == 2
    assert session.running() is not None


def test_a_start_whose_tuner_was_killed_is_adopted_and_verified(home: Home, port: int, tmp_path: Path) -> None:
    go = json.dumps({"speed": 0, "fault": "bind-late:3"})
    words = ["run", "--sim", "--set", f"port={port}", "--set", f"tuner.simulator={go}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "tuner", *words],
        env={**os.environ, "TUNER_HOME": str(home.state_root.parent)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "capturing graphs" in line or "opening port" in line:
            break
    process.send_signal(signal.SIGHUP)
    process.wait()
    process.stderr.close()
    session = Session(home, os.environ)
    try:
        running = session.running()
        assert running is not None
        assert running.round is not None
        assert running.round.state is RoundState.UNVERIFIED
        assert running.round.phase
        results = session.verify(publish=Watcher(), cancel=threading.Event())
        assert results
        assert [r.verdict for r in results] == [Verdict.PASS] * len(results)
        round_ = session.history.get(1)
        assert round_.state is RoundState.VERIFIED
        assert round_.ready_seconds is not None
        assert round_.boot is not None
        assert round_.boot.kv_tokens
    finally:
        session.close()


def test_a_round_lost_in_its_checks_says_so(session: Session, recipe: Callable[..., Recipe]) -> None:
    round_ = run(session, recipe())
    lost = msgspec.structs.replace(round_, state=RoundState.CHECKING, phase="checks", runner_pid=None)
    session.history.save(lost)
    again = Session(session.home, os.environ)
    again.settle()
    try:
        settled = again.history.get(1)
        assert (settled.state, settled.phase) == (RoundState.UNVERIFIED, "checks")
    finally:
        again.close()


def test_orphans_of_a_dead_server_are_no_server(session: Session, recipe: Callable[..., Recipe]) -> None:
    round_ = run(session, recipe("orphan-child:session"))
    running = session.running()
    assert running is not None
    main = psutil.Process(running.handle.pid)
    main.kill()
    main.wait(10)
    session.history.save(msgspec.structs.replace(round_, state=RoundState.CHECKING, runner_pid=None))
    again = Session(session.home, os.environ)
    again.settle()
    try:
        assert again.history.get(1).state is RoundState.FAILED
        outcome = again.stop(publish=Watcher())
        assert outcome is not None
        assert outcome.stopped
        assert family(running.handle) == []
    finally:
        again.close()


def test_a_stop_now_does_not_wait_for_requests(session: Session, recipe: Callable[..., Recipe]) -> None:
    run(session, recipe())
    assert session.stop_bound_s(drain=False) < session.stop_bound_s(drain=True)
    outcome = session.stop(publish=Watcher(), drain=False)
    assert outcome is not None
    assert outcome.stopped
    assert outcome.port_free
    assert outcome.vram_missing_mib == {}
    assert session.stop(publish=Watcher()) is None
