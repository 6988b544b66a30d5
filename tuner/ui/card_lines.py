"""Cards in lines: one each with a bar where there are several, and who holds their memory. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby

from textual.content import Content

from tuner.metrics.model import GpuProcess, GpuReading
from tuner.server.holders import Holder
from tuner.text import clip, fitted, plain, width
from tuner.ui.widgets.palette import meter
from tuner.units import format_gib

#: Cells of a bar: no narrower, as wide before there is room for more words, and no wider.
_BAR_LEAST, _BAR_WORDS, _BAR_MOST = 8, 16, 24
#: Cells from which on what a percentage is of is told.
_TELLS_BUSY = 72
_BETWEEN = " · "
_SLOWED = "held back"
#: Holders of a card that are told one by one.
_MOST_HOLDERS = 3


def card_lines(gpus: Sequence[GpuReading], cells: int) -> list[Content]:
    """A line a card, in columns: memory with a bar, load, power, temperature, whether it is held back; in ``cells``
    with room for them clock, name and why it is held back, too."""
    if not gpus:
        return []
    leads = [f"GPU {gpu.index} " for gpu in gpus]
    lead = max(map(width, leads))
    # A number that gains a digit, and a card that is held back now and then, must not move the columns.
    words = cells >= _TELLS_BUSY
    columns = [
        _column([tell(gpu) for gpu in gpus], least)
        for tell, least in (
            (_memory, 0),
            (partial(_busy, words=words), 10 if words else 5),
            (_power, 5),
            (_temperature, 5),
        )
    ]
    columns = [column for column in columns if column]
    room = cells - lead - sum(width(column[0]) + len(_BETWEEN) for column in columns) - len(_SLOWED) - 1
    bar = max(_BAR_LEAST, min(_BAR_WORDS, room))
    room -= bar
    for tell in (_clock, _name):
        column = _column([tell(gpu) for gpu in gpus], 0)
        if column and width(column[0]) + len(_BETWEEN) <= room:
            columns.append(column)
            room -= width(column[0]) + len(_BETWEEN)
    bar = min(_BAR_MOST, bar + max(0, room))
    return [
        Content.assemble(
            (f"{left:<{lead}}", "$foreground 60%"),
            meter(_gib(gpu.used_mib), _gib(gpu.total_mib), bar),
            " ",
            (
                _words(gpu, [column[at] for column in columns], cells - lead - bar - 1),
                "$warning" if gpu.throttled else "",
            ),
        )
        for at, (left, gpu) in enumerate(zip(leads, gpus, strict=True))
    ]


def _column(words: list[str], least: int) -> list[str]:
    """As wide as the widest; numbers by their right end. Nothing where no card tells."""
    wide = max([least, *map(width, words)])
    return [fitted(one, wide, right=one[:1].isdigit()) for one in words] if any(words) else []


def _words(gpu: GpuReading, parts: list[str], cells: int) -> str:
    text = parts[0] + "".join(f"{_BETWEEN if part.strip() else '   '}{part}" for part in parts[1:])
    if gpu.throttled:
        why = f"{_BETWEEN}{_SLOWED}: {', '.join(gpu.throttled)}"
        text += why if width(text + why) <= cells else f"{_BETWEEN}{_SLOWED}"
    return clip(text.rstrip(), cells)


def names_line(gpus: Sequence[GpuReading]) -> str:
    """``8 × NVIDIA H200``; of different ones which is which."""
    kinds = [(name, list(group)) for name, group in groupby(gpus, key=_name)]
    if len(kinds) == 1:
        return f"{len(gpus)} × {kinds[0][0] or 'a card whose name is not told'}"
    return " · ".join(f"{_span([gpu.index for gpu in group])} {name or 'not told'}" for name, group in kinds)


def holder_words(gpu: GpuReading, known: Mapping[int, Holder], cells: int) -> list[str]:
    """Who holds memory of a card, largest first, on a line of ``cells`` each: how much, whether it is the server
    looked at, and what runs there."""
    processes = sorted(gpu.processes, key=lambda one: -(one.memory_mib or 0))
    shown, rest = processes[:_MOST_HOLDERS], processes[_MOST_HOLDERS:]
    words = [clip(_holder(process, known.get(process.pid)), cells) for process in shown]
    if rest:
        held = sum(process.memory_mib or 0 for process in rest)
        words.append(f"and {len(rest)} more{f' with {format_gib(held / 1024)}' if held else ''}")
    return words


def _holder(process: GpuProcess, known: Holder | None) -> str:
    memory = format_gib(process.memory_mib / 1024) if process.memory_mib is not None else "not told"
    whose = {True: " this server ·", False: " other ·", None: ""}[known.ours if known else None]
    told = known.command if known else plain(process.name or "")
    what = f" {told}" if told else ", which cannot be seen from here" if known else ""
    return f"{memory}{whose} process {process.pid}{what}"


def _span(indexes: Sequence[int]) -> str:
    first, last = indexes[0], indexes[-1]
    return f"GPU {first}" if first == last else f"GPU {first}–{last}"


def _gib(mib: int | None) -> float | None:
    return None if mib is None else mib / 1024


def _memory(gpu: GpuReading) -> str:
    used, total = _gib(gpu.used_mib), _gib(gpu.total_mib)
    if used is None:
        return "memory not told"
    return f"{used:.1f}/{total:.1f} GiB" if total is not None else f"{used:.1f} GiB"


def _busy(gpu: GpuReading, *, words: bool) -> str:
    return "" if gpu.utilisation is None else f"{gpu.utilisation} %{' busy' if words else ''}"


def _power(gpu: GpuReading) -> str:
    return "" if gpu.power_w is None else f"{gpu.power_w:.0f} W"


def _temperature(gpu: GpuReading) -> str:
    return "" if gpu.temperature_c is None else f"{gpu.temperature_c} °C"


def _clock(gpu: GpuReading) -> str:
    return "" if gpu.clock_mhz is None else f"{gpu.clock_mhz} MHz"


def _name(gpu: GpuReading) -> str:
    return plain(gpu.name or "")
