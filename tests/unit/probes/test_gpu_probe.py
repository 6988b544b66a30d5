"""GPUs as the driver tells of them, with whatever it does not tell left out."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pynvml
import pytest

from tuner.metrics.words import gpu_words
from tuner.paths import Home
from tuner.probes.gpu import DriverProbe, SimCardProbe, probe_for
from tuner.probes.nvml import NvmlProbe
from tuner.sim.card import CARD_48G

GIB = 1 << 30


class Driver:
    """Stands in for NVML: answers what it is given, refuses all else."""

    def __init__(self, patch: pytest.MonkeyPatch, **answers: Any) -> None:
        for name in dir(pynvml):
            if name.startswith("nvml") and callable(getattr(pynvml, name)):
                patch.setattr(pynvml, name, self._refuse)
        answers.setdefault("nvmlInit", None)
        for name, answer in answers.items():
            patch.setattr(pynvml, name, answer if callable(answer) else lambda *_, answer=answer: answer)

    def _refuse(self, *_: Any) -> Any:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)


def test_without_a_driver_there_are_no_gpus_and_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    Driver(monkeypatch, nvmlInit=missing)
    probe = NvmlProbe()
    assert probe.read() == []
    assert probe.driver_version() is None
    assert probe.reason.startswith("No GPU can be read: ")
    probe.close()


def test_a_driver_that_tells_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(
        monkeypatch,
        nvmlDeviceGetCount=1,
        nvmlDeviceGetHandleByIndex="h",
        nvmlDeviceGetName="NVIDIA H200",
        nvmlDeviceGetUUID=b"GPU-1",
        nvmlDeviceGetMemoryInfo=SimpleNamespace(total=140 * GIB, used=GIB, free=139 * GIB),
        nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=37, memory=21),
        nvmlDeviceGetPowerUsage=123_400,
        nvmlDeviceGetEnforcedPowerLimit=700_000,
        nvmlDeviceGetClockInfo=lambda _, kind: {pynvml.NVML_CLOCK_SM: 1755, pynvml.NVML_CLOCK_MEM: 3201}[kind],
        nvmlDeviceGetMaxClockInfo=1980,
        nvmlDeviceGetCurrentClocksThrottleReasons=pynvml.nvmlClocksThrottleReasonGpuIdle,
        nvmlDeviceGetTemperature=lambda *_: 41,
        nvmlDeviceGetComputeRunningProcesses=[SimpleNamespace(pid=5, usedGpuMemory=2 * GIB)],
        nvmlDeviceGetGraphicsRunningProcesses=[SimpleNamespace(pid=6, usedGpuMemory=None)],
        nvmlSystemGetProcessName="sglang::scheduler",
        nvmlSystemGetDriverVersion="580.159.04",
    )
    probe = NvmlProbe()
    (gpu,) = probe.read()
    assert (gpu.name, gpu.uuid) == ("NVIDIA H200", "GPU-1")
    assert (gpu.total_mib, gpu.used_mib, gpu.free_mib) == (140 * 1024, 1024, 139 * 1024)
    assert (gpu.utilisation, gpu.memory_busy, gpu.temperature_c) == (37, 21, 41)
    assert (gpu.power_w, gpu.power_limit_w) == (123.4, 700.0)
    assert (gpu.clock_mhz, gpu.clock_max_mhz, gpu.memory_clock_mhz) == (1755, 1980, 3201)
    # An idle GPU lowers its clock by itself: that holds nobody back.
    assert gpu.throttled == ()
    assert [(p.pid, p.memory_mib) for p in gpu.processes] == [(5, 2048), (6, None)]
    words = gpu_words(gpu)
    assert words == "1.00 GiB of 140.00 GiB · 37 % busy · 123 of 700 W · 1755 of 1980 MHz · 41 C"
    assert not gpu.simulated
    assert probe.driver_version() == "580.159.04"


def test_a_driver_that_tells_almost_nothing_gives_missing_values(monkeypatch: pytest.MonkeyPatch) -> None:
    Driver(monkeypatch, nvmlDeviceGetCount=2, nvmlDeviceGetHandleByIndex="h")
    first, second = NvmlProbe().read()
    assert (first.index, second.index) == (0, 1)
    assert (first.name, first.total_mib, first.utilisation, first.power_w, first.processes) == (None,) * 4 + ((),)
    assert (first.throttled, first.clock_mhz, first.power_limit_w, first.instances) == (None, None, None, ())
    assert gpu_words(first) == ""


@pytest.mark.parametrize(
    ("reasons", "words"),
    [
        (pynvml.nvmlClocksThrottleReasonSwPowerCap, ("power limit",)),
        (pynvml.nvmlClocksThrottleReasonHwSlowdown | pynvml.nvmlClocksThrottleReasonHwThermalSlowdown, ("too hot",)),
        (pynvml.nvmlClocksThrottleReasonHwSlowdown, ("slowed by the hardware",)),
        (pynvml.nvmlClocksThrottleReasonGpuIdle | pynvml.nvmlClocksThrottleReasonSwPowerCap, ("power limit",)),
        (1 << 40, ()),
    ],
)
def test_what_holds_a_clock_down_is_named(
    monkeypatch: pytest.MonkeyPatch, reasons: int, words: tuple[str, ...]
) -> None:
    Driver(
        monkeypatch,
        nvmlDeviceGetCount=1,
        nvmlDeviceGetHandleByIndex="h",
        nvmlDeviceGetCurrentClocksThrottleReasons=reasons,
    )
    (gpu,) = NvmlProbe().read()
    assert gpu.throttled == words
    assert all(word in gpu_words(gpu) for word in words)


def test_processes_are_listed_by_their_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {7: GIB, 8: None, 9: 3 * GIB}
    listed = [SimpleNamespace(pid=pid, usedGpuMemory=size) for pid, size in sizes.items()]
    Driver(
        monkeypatch,
        nvmlDeviceGetCount=1,
        nvmlDeviceGetHandleByIndex="h",
        nvmlDeviceGetComputeRunningProcesses=listed,
    )
    assert [(p.pid, p.memory_mib) for p in NvmlProbe().read()[0].processes] == [(9, 3072), (7, 1024), (8, None)]


def test_a_gpu_that_is_lost_is_left_out_and_the_others_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def handle(index: int) -> str:
        if index == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return f"gpu{index}"

    Driver(monkeypatch, nvmlDeviceGetCount=3, nvmlDeviceGetHandleByIndex=handle)
    assert [gpu.index for gpu in NvmlProbe().read()] == [0, 2]


def test_a_name_that_is_no_text_is_a_missing_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: Any) -> str:
        return b"\xff".decode()

    Driver(monkeypatch, nvmlDeviceGetCount=1, nvmlDeviceGetHandleByIndex="h", nvmlDeviceGetName=broken)
    assert NvmlProbe().read()[0].name is None


def test_processes_of_mig_instances_belong_to_their_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    def processes(device: str) -> list[SimpleNamespace]:
        if device == "gpu":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION)
        return [SimpleNamespace(pid=9, usedGpuMemory=GIB)]

    def instance(_: str, index: int) -> str:
        if index:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return "mig"

    Driver(
        monkeypatch,
        nvmlDeviceGetCount=1,
        nvmlDeviceGetHandleByIndex="gpu",
        nvmlDeviceGetMigMode=[pynvml.NVML_DEVICE_MIG_ENABLE, 1],
        nvmlDeviceGetMaxMigDeviceCount=7,
        nvmlDeviceGetMigDeviceHandleByIndex=instance,
        nvmlDeviceGetComputeRunningProcesses=processes,
        nvmlDeviceGetMemoryInfo=lambda device: SimpleNamespace(total=20 * GIB, used=GIB, free=19 * GIB),
        nvmlDeviceGetName=lambda device: "NVIDIA H200 MIG 1g.18gb" if device == "mig" else "NVIDIA H200",
    )
    (gpu,) = NvmlProbe().read()
    assert [p.pid for p in gpu.processes] == [9]
    assert [(i.name, i.used_mib, i.total_mib) for i in gpu.instances] == [("NVIDIA H200 MIG 1g.18gb", 1024, 20480)]


def entry(folder: Path, pid: int, create_time: float, memory_mib: int) -> None:
    text = json.dumps({"pid": pid, "create_time": create_time, "memory_mib": memory_mib, "name": "sglang::scheduler"})
    (folder / f"{pid}.json").write_text(text, encoding="utf-8")


def test_a_simulated_card_counts_only_processes_that_live(tmp_path: Path) -> None:
    card = {"name": "模拟 48 GB", "total_mib": 49140, "reserved_mib": 500}
    (tmp_path / "card.json").write_text(json.dumps(card), encoding="utf-8")
    me = psutil.Process()
    entry(tmp_path, me.pid, me.create_time(), 40000)
    gone = subprocess.Popen(["/bin/true"])
    created = psutil.Process(gone.pid).create_time()
    entry(tmp_path, gone.pid, created, 3000)
    (tmp_path / "12.json").write_text("{half", encoding="utf-8")
    gone_is_a_zombie_now = psutil.Process(gone.pid)
    psutil.wait_procs([gone_is_a_zombie_now], timeout=5)
    (gpu,) = SimCardProbe(tmp_path).read()
    gone.wait()
    assert gpu.simulated
    assert gpu.name == "模拟 48 GB"
    assert (gpu.total_mib, gpu.used_mib, gpu.free_mib) == (49140, 40500, 8640)
    assert [(p.pid, p.memory_mib) for p in gpu.processes] == [(os.getpid(), 40000)]


def test_an_entry_of_a_process_that_had_the_number_before_counts_nothing(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text('{"total_mib": 1000}', encoding="utf-8")
    entry(tmp_path, os.getpid(), psutil.Process().create_time() - 100, 900)
    assert SimCardProbe(tmp_path).read()[0].used_mib == 0


@pytest.mark.parametrize("pid", [-5, 1 << 31, 10**18])
def test_an_entry_with_a_number_that_no_process_has_counts_nothing(tmp_path: Path, pid: int) -> None:
    (tmp_path / "card.json").write_text('{"total_mib": 1000}', encoding="utf-8")
    (tmp_path / "7.json").write_text(f'{{"pid": {pid}, "create_time": 0.0, "memory_mib": 9}}', encoding="utf-8")
    assert SimCardProbe(tmp_path).read()[0].used_mib == 0


def test_before_its_first_server_a_simulated_card_is_there_and_empty(tmp_path: Path) -> None:
    probe = SimCardProbe(tmp_path)
    (gpu,) = probe.read()
    assert (gpu.total_mib, gpu.used_mib, gpu.free_mib) == (49140, 500, 48640)
    assert (gpu.name, gpu.total_mib, gpu.used_mib) == (CARD_48G.name, CARD_48G.total_mib, CARD_48G.reserved_mib)
    assert probe.driver_version() is None
    assert probe.reason == ""


def test_a_broken_card_gives_a_reason(tmp_path: Path) -> None:
    (tmp_path / "card.json").write_text("{half", encoding="utf-8")
    probe = SimCardProbe(tmp_path)
    assert probe.read() == []
    assert "remove" in probe.reason


def test_each_kind_of_server_gets_its_probe(tmp_path: Path) -> None:
    home = Home.at(tmp_path)
    assert isinstance(probe_for(True, home, 30000), SimCardProbe)
    real = probe_for(False, home, 30000)
    assert isinstance(real, DriverProbe)
    real.close()
    assert real.read() == []


def test_the_driver_is_opened_by_the_first_question_and_closed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    driver = Driver(monkeypatch, nvmlDeviceGetCount=lambda: 0, nvmlSystemGetDriverVersion=lambda: "580.1")
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: calls.append("open"))
    monkeypatch.setattr(pynvml, "nvmlShutdown", lambda: calls.append("close"))
    probe = DriverProbe()
    assert calls == [] and driver is not None
    assert (probe.read(), probe.driver_version(), probe.reason, probe.peers_apart([0])) == ([], "580.1", "", [])
    probe.close()
    assert calls == ["open", "close"]
    assert probe.driver_version() is None
    unused = DriverProbe()
    unused.close()
    assert calls == ["open", "close"]


def test_cards_that_cannot_reach_each_other_are_paired_with_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def status(one: int, other: int, what: int) -> int:
        # nvidia-ml-py's own name for "read" is a tuple by mistake, which NVML would not take.
        assert isinstance(what, int)
        return {(0, 1): pynvml.NVML_P2P_STATUS_OK, (0, 2): pynvml.NVML_P2P_STATUS_DISABLED_BY_REGKEY}.get(
            (one, other), pynvml.NVML_P2P_STATUS_UNKNOWN
        )

    Driver(monkeypatch, nvmlDeviceGetHandleByIndex=lambda index: index, nvmlDeviceGetP2PStatus=status)
    probe = NvmlProbe()
    assert probe.peers_apart([0, 1, 2]) == [(0, 2, "turned off in the driver")]
    assert probe.peers_apart([0]) == []
    Driver(monkeypatch, nvmlDeviceGetHandleByIndex=lambda index: index)
    assert NvmlProbe().peers_apart([0, 1]) == []
