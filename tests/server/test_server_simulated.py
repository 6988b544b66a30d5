"""The stand-in server under the supervisor, as the tuner runs it."""

from __future__ import annotations

import os
import threading

import msgspec
import psutil
import pytest

from tuner.paths import Home
from tuner.probes.gpu import SimCardProbe
from tuner.probes.http import ServerClient
from tuner.recipe.model import SIMULATOR, Recipe, TunerSettings
from tuner.server import Supervisor, launch_spec
from tuner.server.family import family
from tuner.server.model import PhaseChanged, ReadyState, ServerHandle
from tuner.server.readiness import ReadyTimes
from tuner.server.stopping import StopTimes
from tuner.sim.faults import HANG_PHASES


def recipe(port: int, **simulator: object) -> Recipe:
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
        },
        tuner=TunerSettings(model_shape="qwen3.8-27b-fp8-text", simulator={"speed": 0, **simulator}),
    )


@pytest.fixture
def simulated(home: Home, port: int) -> Supervisor:
    return Supervisor(
        home,
        SimCardProbe(home.card(port)),
        stop_times=StopTimes(drain_s=10, force_s=1.0, children_s=1.0, settle_s=1.0),
        ready_times=ReadyTimes(poll_s=0.05),
    )


def test_a_server_behind_a_launcher_starts_answers_and_ends_with_it(
    simulated: Supervisor, home: Home, port: int
) -> None:
    behind = recipe(port)
    behind = msgspec.structs.replace(behind, tuner=msgspec.structs.replace(behind.tuner, launcher="nice -n 1"))
    handle = simulated.start(launch_spec(behind, home, dict(os.environ)))
    outcome = simulated.wait_ready(handle)
    assert outcome.state is ReadyState.READY, outcome
    assert outcome.unverified == ""
    assert psutil.Process(handle.pid).nice() == os.nice(0) + 1
    assert simulated.stop(handle).stopped
    assert family(handle) == []


def start(supervisor: Supervisor, home: Home, wanted: Recipe) -> ServerHandle:
    return supervisor.start(launch_spec(wanted, home, dict(os.environ)))


def test_a_stand_in_starts_answers_and_gives_its_memory_back(simulated: Supervisor, home: Home, port: int) -> None:
    handle = start(simulated, home, recipe(port))
    outcome = simulated.wait_ready(handle)
    assert outcome.state is ReadyState.READY, outcome
    assert outcome.facts.mamba_slots
    (gpu,) = SimCardProbe(home.card(port)).read()
    assert gpu.used_mib is not None
    assert gpu.used_mib > 30_000
    client = ServerClient(handle.url)
    info = client.server_info()
    client.close()
    assert isinstance(info, dict)
    assert info["max_total_num_tokens"] == outcome.facts.kv_tokens
    stopped = simulated.stop(handle)
    assert stopped.stopped, stopped
    assert stopped.vram_missing_mib == {}
    assert stopped.port_free
    assert family(handle) == []


def test_a_stand_in_that_is_refused_at_sizing_dies_with_that_reason(
    simulated: Supervisor, home: Home, port: int
) -> None:
    handle = start(simulated, home, recipe(port, fault="refuse-at-sizing"))
    outcome = simulated.wait_ready(handle)
    assert outcome.state is ReadyState.DIED
    assert "Not enough" in outcome.reason
    assert simulated.running() == []


@pytest.mark.parametrize("fault", ["ignore-signals", "orphan-child", "orphan-child:session"])
def test_nothing_is_left_of_a_stand_in_that_does_not_want_to_go(
    simulated: Supervisor, home: Home, port: int, fault: str
) -> None:
    handle = start(simulated, home, recipe(port, fault=fault))
    assert simulated.wait_ready(handle).state is ReadyState.READY
    outcome = simulated.stop(handle, drain=False)
    assert outcome.stopped, outcome
    assert outcome.seconds < simulated.stop_bound_s(drain=False)
    assert family(handle) == []
    assert outcome.port_free


@pytest.mark.parametrize("phase", HANG_PHASES)
def test_a_start_that_hangs_is_said_to_be_stalled_and_can_be_given_up(
    simulated: Supervisor, home: Home, port: int, phase: str
) -> None:
    handle = start(simulated, home, recipe(port, fault=f"hang:{phase}"))
    cancel = threading.Event()
    stalled: list[PhaseChanged] = []

    def watch(event: PhaseChanged) -> None:
        if event.stalled:
            stalled.append(event)
            cancel.set()

    outcome = simulated.wait_ready(handle, watch, cancel, stall_s=1.5)
    assert outcome.state is ReadyState.ABORTED
    assert stalled
    assert family(handle) == []
    assert simulated.running() == []


def test_memory_that_comes_back_late_is_waited_for_and_then_told(simulated: Supervisor, home: Home, port: int) -> None:
    handle = start(simulated, home, recipe(port, fault="hold-vram:60"))
    assert simulated.wait_ready(handle).state is ReadyState.READY
    # The helper that holds it outlives its parent, is of this start, and goes with it.
    outcome = simulated.stop(handle, drain=False)
    assert outcome.stopped, outcome
    assert outcome.vram_missing_mib == {}
