"""Fixtures with real processes; whatever a test leaves behind is ended by its own handle."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tuner.metrics.model import GpuReading
from tuner.paths import Home
from tuner.recipe.model import SIMULATOR, Recipe
from tuner.server import proxies
from tuner.server.family import family
from tuner.server.handles import HandleStore
from tuner.server.model import LaunchSpec, ServerHandle
from tuner.server.ports import port_free
from tuner.server.readiness import ReadyTimes
from tuner.server.stopping import StopTimes
from tuner.server.supervisor import Supervisor

FAKE = Path(__file__).with_name("fakes.py")
QUICK_STOP = StopTimes(drain_s=0.5, force_s=0.5, children_s=0.3, kill_s=3.0, settle_s=1.0)
QUICK_READY = ReadyTimes(poll_s=0.02, tell_s=0.1, fatal_grace_s=0.3, health_s=5.0, health_gap_s=0.02)


class FakeGpu:
    """A card that holds what the test says."""

    reason = ""

    def __init__(self, total_mib: int = 49140, used_mib: int = 500) -> None:
        self.total_mib = total_mib
        self.used_mib = used_mib

    def read(self) -> list[GpuReading]:
        free = self.total_mib - self.used_mib
        return [GpuReading(index=0, total_mib=self.total_mib, used_mib=self.used_mib, free_mib=free)]

    def driver_version(self) -> str | None:
        return None

    def peers_apart(self, indexes: Sequence[int]) -> list[tuple[int, int, str]]:
        return []

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A proxy of the machine that runs the tests is nothing to them."""
    for name in proxies.named(os.environ):
        monkeypatch.delenv(name)


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Home]:
    home = Home.at(tmp_path / "home")
    seen: dict[str, ServerHandle] = {}
    write = HandleStore.write

    def remembering(store: HandleStore, handle: ServerHandle) -> None:
        seen[handle.start_id] = handle
        write(store, handle)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HandleStore, "write", remembering)
        yield home
        for handle in [*seen.values(), *HandleStore(home).all()]:
            for process in family(handle):
                process.kill()


@pytest.fixture
def gpu() -> FakeGpu:
    return FakeGpu()


@pytest.fixture
def supervisor(home: Home, gpu: FakeGpu) -> Supervisor:
    return Supervisor(home, gpu, stop_times=QUICK_STOP, ready_times=QUICK_READY)


@pytest.fixture
def port() -> int:
    """A free port below those that the system gives to outgoing connections: it stays free until the test takes it."""
    while True:
        number = random.randrange(20000, 32000)
        if port_free("127.0.0.1", number):
            return number


@pytest.fixture
def fake_spec(port: int) -> Callable[..., LaunchSpec]:
    """Makes the command of a fake server with the switches given."""

    def make(*switches: str, port: int = port, **flags: object) -> LaunchSpec:
        return LaunchSpec(
            argv=(sys.executable, str(FAKE), "--port", str(port), *switches),
            environment=dict(os.environ),
            host="127.0.0.1",
            port=port,
            simulated=True,
            recipe=Recipe(python=SIMULATOR, flags={"port": port, **flags}),
            round_name="r1",
        )

    return make
