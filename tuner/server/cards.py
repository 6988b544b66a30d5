"""Whether the GPUs that a start would use are free for it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec
import psutil

from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import GpuProcess, GpuReading
from tuner.recipe.model import Recipe
from tuner.redact import redact
from tuner.server.managers import kept_up
from tuner.text import clip, plain
from tuner.units import format_gib

#: No SGLang starts in less: a CUDA context alone takes 0.5 GiB and more.
_LEAST_FREE_MIB = 2048
#: What a driver holds of an idle card (615 MiB of an H200 in the recordings), and some more.
_IDLE_USE_MIB = 1536
_SHOWN_CELLS = 160
#: Programs whose command line may name SGLang without running it on this machine.
_NOT_A_SERVER = frozenset({"ssh", "grep", "rg", "pgrep", "less", "vim", "nano", "man"})
_PROCESS_TITLE = re.compile(r"^sglang::")


class Foreign(msgspec.Struct, frozen=True, kw_only=True):
    """An SGLang main process, whoever started it."""

    pid: int
    command: str
    port: int
    #: CUDA_VISIBLE_DEVICES of it: None when not set, "?" when its environment may not be read.
    devices: str | None


def looks_like_sglang(command: Sequence[str]) -> bool:
    """Whether a command line (or a process title) is that of an SGLang server, loading or up."""
    if not command or Path(command[0]).name in _NOT_A_SERVER:
        return False
    if _PROCESS_TITLE.match(command[0]):
        return True
    words = list(command)
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "-m" and following == "sglang.launch_server":
            return True
        if Path(word).name == "sglang" and following == "serve":
            return True
    return False


def running_sglang(except_pids: Iterable[int] = ()) -> list[Foreign]:
    """All SGLang main processes of this machine that this user may see, also those that still load."""
    skipped = set(except_pids)
    found: dict[int, tuple[psutil.Process, list[str]]] = {}
    for process in psutil.process_iter():
        try:
            command = process.cmdline()
            if process.pid not in skipped and looks_like_sglang(command) and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = (process, command)
        except (psutil.Error, OSError):
            continue
    return [
        Foreign(
            pid=pid,
            command=clip(_shown(command), _SHOWN_CELLS),
            port=_port_of(command),
            devices=_devices_of(process),
        )
        for pid, (process, command) in found.items()
        if not _child_of_any(process, found.keys() | skipped)
    ]


def _child_of_any(process: psutil.Process, pids: Iterable[int]) -> bool:
    try:
        return any(parent.pid in pids for parent in process.parents())
    except psutil.Error:
        return False


def _port_of(command: Sequence[str]) -> int:
    for word, following in zip(command, [*command[1:], ""], strict=True):
        value = following if word == "--port" else word.removeprefix("--port=") if word.startswith("--port=") else ""
        if value.isdigit():
            return int(value)
    return 30000


def _devices_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("CUDA_VISIBLE_DEVICES")
    except (psutil.Error, OSError):
        return "?"


def used_gpus(recipe: Recipe, environment: Mapping[str, str], gpus: Sequence[GpuReading]) -> list[GpuReading]:
    """The GPUs that a start of the recipe uses: the visible ones, from ``base_gpu_id``, one per rank."""
    if recipe.simulated:
        return list(gpus)
    visible = _visible(environment.get("CUDA_VISIBLE_DEVICES"), gpus)
    flags = recipe.flags
    ranks = _whole(flags.get("tp_size"), 1) * _whole(flags.get("pp_size"), 1)
    if not flags.get("enable_dp_attention"):
        ranks *= _whole(flags.get("dp_size"), 1)
    first = _whole(flags.get("base_gpu_id"), 0)
    step = max(1, _whole(flags.get("gpu_id_step"), 1))
    return visible[first::step][:ranks]


def _whole(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _visible(devices: str | None, gpus: Sequence[GpuReading]) -> list[GpuReading]:
    """GPUs in the order of CUDA_VISIBLE_DEVICES; as CUDA does, an entry that names nothing ends the list."""
    if devices is None:
        return list(gpus)
    chosen = []
    for entry in (part.strip() for part in devices.split(",")):
        match = next((g for g in gpus if _names(entry, g)), None)
        if match is None:
            break
        chosen.append(match)
    return chosen


def _names(entry: str, gpu: GpuReading) -> bool:
    if entry.isdigit():
        return int(entry) == gpu.index
    return bool(entry) and gpu.uuid is not None and gpu.uuid.startswith(entry)


def card_findings(
    recipe: Recipe,
    environment: Mapping[str, str],
    gpus: Sequence[GpuReading],
    *,
    servers: Sequence[Foreign],
    told_of: Set[int] = frozenset(),
    need_mib: int | None = None,
) -> Iterator[Finding]:
    """Everything that is on the GPUs of the start: another SGLang or too little room is fatal, the rest a warning.

    ``servers`` are other SGLang main processes; what the processes ``told_of`` and their children hold is left out;
    ``need_mib`` is the least free memory per GPU.
    """
    chosen = used_gpus(recipe, environment, gpus)
    if not gpus:
        if not recipe.simulated:
            yield from (_beside(server, "the driver does not tell who is on the GPU") for server in servers)
        return
    if not chosen:
        yield Finding(
            id=FindingId.GPU_BUSY,
            severity=Severity.FATAL,
            title="None of this machine's GPUs is visible to the server.",
            evidence=(f"CUDA_VISIBLE_DEVICES={environment.get('CUDA_VISIBLE_DEVICES')}",),
            remedy="Correct CUDA_VISIBLE_DEVICES or base_gpu_id.",
        )
        return
    for server in servers:
        place = _conflict(server, chosen, gpus)
        if place:
            yield _beside(server, place)
    known = {server.pid for server in servers} | told_of
    need = max(need_mib or 0, _LEAST_FREE_MIB)
    for gpu in chosen:
        yield from _others(gpu, known)
        if gpu.free_mib is not None and gpu.free_mib < need:
            yield Finding(
                id=FindingId.GPU_BUSY,
                severity=Severity.FATAL,
                title=f"GPU {gpu.index} has {format_gib(gpu.free_mib / 1024)} free; the start needs at least "
                f"{format_gib(need / 1024)}.",
                evidence=tuple(_process_line(p) for p in gpu.processes),
                remedy="Free the card (see who holds it), or choose another one with CUDA_VISIBLE_DEVICES.",
            )


def _conflict(server: Foreign, chosen: Sequence[GpuReading], gpus: Sequence[GpuReading]) -> str:
    """Where the other server is when that is one of ours, or "" when it is elsewhere for sure."""
    tree = _tree(server.pid)
    on = [gpu for gpu in gpus if any(process.pid in tree for process in gpu.processes)]
    ours = {gpu.index for gpu in chosen}
    if on:
        both = [gpu.index for gpu in on if gpu.index in ours]
        return f"on GPU {', '.join(map(str, both))}" if both else ""
    if server.devices == "?":
        return "its GPU is not known"
    both = [gpu.index for gpu in _visible(server.devices, gpus) if gpu.index in ours]
    return f"may use GPU {', '.join(map(str, both))}, and holds no memory there yet" if both else ""


def _tree(pid: int) -> set[int]:
    try:
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    except psutil.Error:
        return {pid}


def _beside(server: Foreign, place: str) -> Finding:
    return Finding(
        id=FindingId.GPU_BUSY,
        severity=Severity.FATAL,
        title=f"Another SGLang is running (process {server.pid}, port {server.port}): {place}.",
        evidence=(server.command, *kept_up(server.pid)),
        remedy="Stop it first, or choose another GPU with CUDA_VISIBLE_DEVICES.",
    )


def _others(gpu: GpuReading, known: Set[int]) -> Iterator[Finding]:
    strangers = []
    for process in gpu.processes:
        if lineage(process.pid) & known:
            continue
        # In a container the number may be that of another process, and only the driver's name is right.
        if looks_like_sglang(_command_of(process)) or looks_like_sglang([process.name or ""]):
            yield Finding(
                id=FindingId.GPU_BUSY,
                severity=Severity.FATAL,
                title=f"Another SGLang holds memory of GPU {gpu.index}.",
                evidence=(_process_line(process), *kept_up(process.pid)),
                remedy="Stop it first, or choose another GPU with CUDA_VISIBLE_DEVICES.",
            )
        else:
            strangers.append(process)
    if strangers:
        yield Finding(
            id=FindingId.GPU_BUSY,
            severity=Severity.WARNING,
            title=f"GPU {gpu.index} is used by {len(strangers)} other process{'es' if len(strangers) > 1 else ''}.",
            evidence=tuple(_process_line(process) for process in strangers),
            remedy="The pools come out smaller by what they hold; if they grow later, the server can run out.",
        )
    elif not gpu.processes and gpu.used_mib is not None and gpu.used_mib > _IDLE_USE_MIB:
        yield Finding(
            id=FindingId.GPU_BUSY,
            severity=Severity.WARNING,
            title=f"{format_gib(gpu.used_mib / 1024)} of GPU {gpu.index} is in use; the driver does not tell by whom.",
            remedy="The pools come out smaller by that much.",
        )


def lineage(pid: int) -> set[int]:
    """A process and all that it comes from, as far as they can be seen."""
    try:
        return {pid, *(parent.pid for parent in psutil.Process(pid).parents())}
    except psutil.Error:
        return {pid}


def _command_of(process: GpuProcess) -> list[str]:
    """Its command line; in a container, where the number means another process or none, the driver's name for it."""
    name = [process.name] if process.name else []
    try:
        command = psutil.Process(process.pid).cmdline()
    except psutil.Error:
        return name
    return command or name


def _shown(command: Sequence[str]) -> str:
    # Split last: a word can be a whole script, and a finding shows a line.
    return " ".join(" ".join(redact([plain(word) for word in command])).split())


def _process_line(process: GpuProcess) -> str:
    command = _shown(_command_of(process)) or "a process that cannot be seen from here"
    size = f", {format_gib(process.memory_mib / 1024)}" if process.memory_mib is not None else ""
    return clip(f"process {process.pid}{size}: {command}", _SHOWN_CELLS)
