"""A source of GPU readings, and which one a server has: the driver's GPUs or its simulated card."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from tuner.metrics.model import GpuReading
from tuner.paths import Home
from tuner.probes.simcard import SimCardProbe

__all__ = ["DriverProbe", "GpuProbe", "SimCardProbe", "probe_for"]


class GpuProbe(Protocol):
    """A source of GPU readings."""

    @property
    def reason(self) -> str:
        """Why there are no readings, one sentence; empty when there are."""

    def read(self) -> list[GpuReading]:
        """All GPUs now; empty when there are none to read."""

    def driver_version(self) -> str | None:
        """Version of the driver, "580.159.04"."""

    def peers_apart(self, indexes: Sequence[int]) -> list[tuple[int, int, str]]:
        """Pairs of these GPUs that cannot reach each other's memory, and why, in a few words."""

    def close(self) -> None:
        """Lets go of the driver."""


class DriverProbe:
    """The driver's GPUs, opened at the first question: who only looks for servers needs neither NVML nor its 2 MB."""

    def __init__(self) -> None:
        self._opened: GpuProbe | None = None
        self._closed = False
        self._lock = threading.Lock()

    def _driver(self) -> GpuProbe:
        with self._lock:
            if self._opened is None:
                from tuner.probes.nvml import NvmlProbe  # see above

                self._opened = NvmlProbe()
                if self._closed:
                    self._opened.close()
            return self._opened

    @property
    def reason(self) -> str:
        """Why there are no readings, one sentence; empty when there are."""
        return self._driver().reason

    def read(self) -> list[GpuReading]:
        """All GPUs now; empty when there are none to read."""
        return self._driver().read()

    def driver_version(self) -> str | None:
        """Version of the driver; None when it does not tell."""
        return self._driver().driver_version()

    def peers_apart(self, indexes: Sequence[int]) -> list[tuple[int, int, str]]:
        """Pairs of these GPUs that cannot reach each other's memory, and why."""
        return self._driver().peers_apart(indexes)

    def close(self) -> None:
        """Lets go of the driver; later reads give nothing."""
        with self._lock:
            self._closed = True
            if self._opened is not None:
                self._opened.close()


def probe_for(recipe_simulated: bool, home: Home, port: int) -> GpuProbe:
    """The probe of what a server on ``port`` runs on: the driver's GPUs, or that port's simulated card."""
    return SimCardProbe(home.state / "cards" / str(port)) if recipe_simulated else DriverProbe()
