"""What the cards tell beside the server: who else is on them, how little is left, whether they are slowed down."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence

from tuner.doctor.case import finding
from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import GpuProcess, GpuReading
from tuner.planner.model import HEADROOM_GIB
from tuner.units import format_gib

#: Below it one long prompt is enough, GiB.
_LAST_GIB = 1.0
#: What a desktop or a monitor holds is nobody's server, GiB.
_SMALL_GIB = 1.0
_SCHEDULER = re.compile(r"sglang::scheduler|sglang.{0,40}scheduler")
#: Reasons for a lower clock that say nothing of a fault: a card under load meets its power limit.
_USUAL = frozenset(
    {"power limit", "clock set by the operator", "held to the clock of other GPUs", "clock of a display"}
)
#: Where the driver tells no reason: cards slow down from about here on, degrees Celsius.
_HOT_C = 87
_BUSY = 50


def diagnose_cards(
    gpus: Sequence[GpuReading], *, own: Collection[int] | None = None, headroom_gib: float = HEADROOM_GIB
) -> tuple[Finding, ...]:
    """Findings on the cards of a running server, warnings before notes.

    ``own``: processes of that server; None: not known, so that nobody is a stranger. ``headroom_gib``: free VRAM
    wanted.
    """
    found = [f for gpu in gpus for f in _of_card(gpu, own, headroom_gib)]
    return tuple(sorted(found, key=lambda f: f.severity is Severity.NOTE))


def _of_card(gpu: GpuReading, own: Collection[int] | None, headroom_gib: float) -> Iterator[Finding]:
    if own is not None:
        yield from _strangers(gpu, own)
    free = gpu.free_mib / 1024 if gpu.free_mib is not None else None
    if own and free is not None and free < headroom_gib:
        yield finding(
            FindingId.LOW_HEADROOM,
            Severity.WARNING if free < _LAST_GIB else Severity.NOTE,
            f"GPU {gpu.index} has {format_gib(free)} free now.",
            evidence=(f"wanted: {format_gib(headroom_gib)}",),
            remedy="Long prompts and compilations take memory outside the pools: lower mem_fraction_static or "
            "chunked_prefill_size before the longest inputs come.",
        )
    yield from _throttled(gpu)


def _throttled(gpu: GpuReading) -> Iterator[Finding]:
    hot = gpu.temperature_c is not None and gpu.temperature_c >= _HOT_C
    reasons = gpu.throttled if gpu.throttled is not None else (("hot",) if hot else ())
    if not reasons or (gpu.utilisation or 0) < _BUSY:
        return
    numbers = (
        f"{gpu.utilisation} % busy",
        f"{gpu.temperature_c} °C" if gpu.temperature_c is not None else "",
        f"{gpu.power_w:.0f} W" if gpu.power_w is not None else "",
        f"{gpu.clock_mhz} of {gpu.clock_max_mhz} MHz" if gpu.clock_mhz is not None and gpu.clock_max_mhz else "",
    )
    yield finding(
        FindingId.GPU_THROTTLED,
        Severity.NOTE if set(reasons) <= _USUAL else Severity.WARNING,
        f"GPU {gpu.index} runs at a lower clock under load: {', '.join(reasons)}.",
        evidence=(", ".join(number for number in numbers if number),),
        remedy="A power limit met under load is normal, and bounds every speed that is measured."
        if set(reasons) <= _USUAL
        else "See to its cooling and its power before you compare speeds: rounds measured hot and cold do not compare.",
    )


def _strangers(gpu: GpuReading, own: Collection[int]) -> Iterator[Finding]:
    others = [p for p in gpu.processes if p.pid not in own and (p.memory_mib or 0) / 1024 >= _SMALL_GIB]
    if not others:
        return
    held = sum(p.memory_mib or 0 for p in others) / 1024
    orphans = [p for p in others if _SCHEDULER.search(p.name or "")]
    yield finding(
        FindingId.GPU_BUSY,
        Severity.WARNING,
        f"{len(others)} other process{'es hold' if len(others) > 1 else ' holds'} {format_gib(held)} of GPU "
        f"{gpu.index}.",
        evidence=[_line(process) for process in others[:5]],
        remedy="These are schedulers of an SGLang whose main process may be gone: end exactly those, if it is."
        if orphans
        else "Plan with what they leave free, or end what is not needed.",
    )


def _line(process: GpuProcess) -> str:
    return f"pid {process.pid}, {process.name or 'name not told'}, {format_gib((process.memory_mib or 0) / 1024)}"
