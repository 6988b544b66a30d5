"""GPUs as the driver tells of them. The only module that imports NVML; whatever the driver does not tell is None."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

import pynvml

from tuner.metrics.model import GpuProcess, GpuReading
from tuner.paths import Home
from tuner.probes.simcard import SimCardProbe

__all__ = ["GpuProbe", "NvmlProbe", "SimCardProbe", "probe_for"]

_MIB = 1 << 20
_T = TypeVar("_T")
_PEER_REASONS = {
    pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED: "not supported by the chipset",
    pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: "not supported by the GPU",
    pynvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "not supported between their sockets",
    pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: "turned off in the driver",
}


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


class NvmlProbe:
    """NVIDIA GPUs through NVML. Without its library or a driver there are no readings, and ``reason`` says why."""

    def __init__(self) -> None:
        self._reason = ""
        self._open = False
        try:
            pynvml.nvmlInit()
            self._open = True
        except pynvml.NVMLError as error:
            self._reason = f"No GPU can be read: {_sentence(error)}."

    @property
    def reason(self) -> str:
        """Why there are no readings, one sentence; empty when there are."""
        return self._reason

    def read(self) -> list[GpuReading]:
        """All GPUs in the driver's order; a field that the driver refuses is None."""
        if not self._open:
            return []
        count = _ask(pynvml.nvmlDeviceGetCount)
        if count is None:
            self._reason = "No GPU can be read: the driver does not count its devices."
            return []
        return [reading for index in range(count) if (reading := _device(index)) is not None]

    def driver_version(self) -> str | None:
        """Version of the driver; None when it does not tell."""
        return _text(_ask(pynvml.nvmlSystemGetDriverVersion)) if self._open else None

    def peers_apart(self, indexes: Sequence[int]) -> list[tuple[int, int, str]]:
        """Pairs of these GPUs that cannot write to each other's memory, and why; what is not told is left out."""
        if not self._open:
            return []
        apart = []
        for one, other in itertools.combinations(indexes, 2):
            status = _ask(_peer_status, one, other)
            if status not in (None, pynvml.NVML_P2P_STATUS_OK, pynvml.NVML_P2P_STATUS_UNKNOWN):
                apart.append((one, other, _PEER_REASONS.get(status, "not supported")))
        return apart

    def close(self) -> None:
        """Shuts NVML down; later reads give nothing."""
        if self._open:
            self._open = False
            _ask(pynvml.nvmlShutdown)


def _ask(call: Callable[..., _T], *arguments: Any) -> _T | None:
    """What NVML answers, or None: an old driver lacks functions, a container or MIG lacks permissions."""
    try:
        return call(*arguments)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _peer_status(one: int, other: int) -> int:
    devices = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in (one, other)]
    # Not CAPS_INDEX_READ: in nvidia-ml-py 12 and 13 that name is a tuple by mistake.
    status: int = pynvml.nvmlDeviceGetP2PStatus(*devices, pynvml.NVML_P2P_CAPS_INDEX_WRITE)
    return status


def _sentence(error: pynvml.NVMLError) -> str:
    return str(error).rstrip(".") or "NVML does not start"


def _text(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _device(index: int) -> GpuReading | None:
    handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    if handle is None:
        return None
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, handle)
    rates = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    power_mw = _ask(pynvml.nvmlDeviceGetPowerUsage, handle)
    return GpuReading(
        index=index,
        uuid=_text(_ask(pynvml.nvmlDeviceGetUUID, handle)),
        name=_text(_ask(pynvml.nvmlDeviceGetName, handle)),
        total_mib=memory.total // _MIB if memory else None,
        used_mib=memory.used // _MIB if memory else None,
        free_mib=memory.free // _MIB if memory else None,
        utilisation=rates.gpu if rates else None,
        power_w=power_mw / 1000 if power_mw is not None else None,
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        processes=tuple(_processes(handle)),
    )


def _processes(handle: Any) -> Iterator[GpuProcess]:
    """Processes on the device and, with MIG, on its instances. Containers often get an empty list."""
    devices = [handle, *_mig_devices(handle)]
    seen: dict[int, int | None] = {}
    for device in devices:
        for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
            for process in _ask(ask, device) or ():
                seen.setdefault(process.pid, process.usedGpuMemory)
    for pid, memory in seen.items():
        yield GpuProcess(
            pid=pid,
            memory_mib=memory // _MIB if memory is not None else None,
            name=_text(_ask(pynvml.nvmlSystemGetProcessName, pid)),
        )


def _mig_devices(handle: Any) -> list[Any]:
    mode = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
        return []
    count = _ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0
    found = (_ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, index) for index in range(count))
    return [device for device in found if device is not None]


def probe_for(recipe_simulated: bool, home: Home, port: int) -> GpuProbe:
    """The probe of what a server on ``port`` runs on: the driver's GPUs, or that port's simulated card."""
    return SimCardProbe(home.card(port)) if recipe_simulated else NvmlProbe()
