"""GPUs as the driver tells of them. The only module that imports NVML; whatever the driver does not tell is None."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import pynvml

from tuner.metrics.model import GpuInstance, GpuProcess, GpuReading

_MIB = 1 << 20
_T = TypeVar("_T")
_PEER_REASONS = {
    pynvml.NVML_P2P_STATUS_CHIPSET_NOT_SUPPORTED: "not supported by the chipset",
    pynvml.NVML_P2P_STATUS_GPU_NOT_SUPPORTED: "not supported by the GPU",
    pynvml.NVML_P2P_STATUS_IOH_TOPOLOGY_NOT_SUPPORTED: "not supported between their sockets",
    pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY: "turned off in the driver",
}
#: Why a clock is held down, by the bits of NVML's reasons; being idle is none.
_THROTTLES = (
    (pynvml.nvmlClocksThrottleReasonSwPowerCap, "power limit"),
    (pynvml.nvmlClocksThrottleReasonHwPowerBrakeSlowdown, "power brake of the host"),
    (pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, "too hot"),
    (pynvml.nvmlClocksThrottleReasonSwThermalSlowdown, "near its highest temperature"),
    (pynvml.nvmlClocksThrottleReasonSyncBoost, "held to the clock of other GPUs"),
    (pynvml.nvmlClocksThrottleReasonApplicationsClocksSetting, "clock set by the operator"),
    (pynvml.nvmlClocksThrottleReasonDisplayClockSetting, "clock of a display"),
)
#: Says that one of the two hardware reasons above holds, or an unnamed one.
_HARDWARE = pynvml.nvmlClocksThrottleReasonHwSlowdown


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
    parts = _mig_devices(handle)
    return GpuReading(
        index=index,
        uuid=_text(_ask(pynvml.nvmlDeviceGetUUID, handle)),
        name=_text(_ask(pynvml.nvmlDeviceGetName, handle)),
        total_mib=memory.total // _MIB if memory else None,
        used_mib=memory.used // _MIB if memory else None,
        free_mib=memory.free // _MIB if memory else None,
        utilisation=rates.gpu if rates else None,
        memory_busy=rates.memory if rates else None,
        power_w=_watts(_ask(pynvml.nvmlDeviceGetPowerUsage, handle)),
        power_limit_w=_watts(_ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)),
        temperature_c=_ask(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        clock_max_mhz=_ask(pynvml.nvmlDeviceGetMaxClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        throttled=_throttles(_ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)),
        instances=tuple(_instance(part) for part in parts),
        processes=tuple(_processes(handle, parts)),
    )


def _watts(milliwatts: int | None) -> float | None:
    return milliwatts / 1000 if milliwatts is not None else None


def _throttles(reasons: int | None) -> tuple[str, ...] | None:
    if reasons is None:
        return None
    named = tuple(words for bit, words in _THROTTLES if reasons & bit)
    return named or (("slowed by the hardware",) if reasons & _HARDWARE else ())


def _instance(device: Any) -> GpuInstance:
    memory = _ask(pynvml.nvmlDeviceGetMemoryInfo, device)
    return GpuInstance(
        uuid=_text(_ask(pynvml.nvmlDeviceGetUUID, device)),
        name=_text(_ask(pynvml.nvmlDeviceGetName, device)),
        total_mib=memory.total // _MIB if memory else None,
        used_mib=memory.used // _MIB if memory else None,
    )


def _processes(handle: Any, parts: Sequence[Any]) -> Iterator[GpuProcess]:
    """Processes on the device and, with MIG, on its instances, largest first. Containers often get an empty list."""
    seen: dict[int, int | None] = {}
    for device in (handle, *parts):
        for ask in (pynvml.nvmlDeviceGetComputeRunningProcesses, pynvml.nvmlDeviceGetGraphicsRunningProcesses):
            for process in _ask(ask, device) or ():
                seen.setdefault(process.pid, process.usedGpuMemory)
    for pid, memory in sorted(seen.items(), key=lambda item: (-(item[1] or 0), item[0])):
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
