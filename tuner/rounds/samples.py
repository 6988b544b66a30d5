"""Readings as kept with their round: in few bytes, and thinned to what a chart can show. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

import msgspec

from tuner.metrics.model import GpuReading, Readings

#: Digits kept of a number that is no count: no chart shows more, and a day of readings takes a third less.
_DIGITS = 5


class High(msgspec.Struct, frozen=True):
    """Of a latency's percentiles, seconds, the one that charts show."""

    p95: float


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """What charts show of the readings at one time, or of a stretch of time: highest values, speeds as means.

    Fields as in ``Readings``; this reads what ``packed`` wrote without the rest of it.
    """

    at: float
    kv_used_tokens: int | None = None
    kv_total_tokens: int | None = None
    slots_used: int | None = None
    slots_total: int | None = None
    running: int | None = None
    queued: int | None = None
    decode_tokens_per_s: float | None = None
    prefill_tokens_per_s: float | None = None
    ttft_s: High | None = None
    itl_s: High | None = None
    prefix_hit_ratio: float | None = None
    #: Of the busiest and of the fullest card, only while one looks on: what is kept has no cards. Percent, 0 to 1.
    gpu_busy: int | None = None
    vram_share: float | None = None

    @classmethod
    def of(cls, readings: Readings, gpus: Sequence[GpuReading] = ()) -> Moment:
        """The moment of one look."""
        values = {name: getattr(readings, name) for name in cls.__struct_fields__ if name not in _NOT_ALIKE}
        busy = [gpu.utilisation for gpu in gpus if gpu.utilisation is not None]
        full = [gpu.used_mib / gpu.total_mib for gpu in gpus if gpu.used_mib is not None and gpu.total_mib]
        return cls(
            **values,
            ttft_s=High(readings.ttft_s.p95) if readings.ttft_s else None,
            itl_s=High(readings.itl_s.p95) if readings.itl_s else None,
            gpu_busy=max(busy, default=None),
            vram_share=max(full, default=None),
        )


Moments: TypeAlias = tuple[Moment, ...]

#: Fields that readings have in another form, or not at all.
_NOT_ALIKE = frozenset({"ttft_s", "itl_s", "gpu_busy", "vram_share"})

_SPEEDS = tuple((name, attrgetter(name)) for name in ("decode_tokens_per_s", "prefill_tokens_per_s"))
_LATENCIES = tuple((name, attrgetter(name)) for name in ("ttft_s", "itl_s"))
_HIGHS = tuple(
    (name, attrgetter(name))
    for name in (
        "kv_used_tokens",
        "kv_total_tokens",
        "slots_used",
        "slots_total",
        "running",
        "queued",
        "prefix_hit_ratio",
        "gpu_busy",
        "vram_share",
    )
)
_P95 = attrgetter("p95")
_DECODER = msgspec.json.Decoder(Moment)


def packed(readings: Readings) -> dict[str, Any]:
    """What differs from readings that tell nothing, numbers rounded: ``Readings`` and ``Moment`` read it again."""
    told: dict[str, Any] = msgspec.to_builtins(readings)
    empty = msgspec.structs.asdict(_EMPTY)
    rest = {name: _rounded(value) for name, value in told.items() if name != "at" and value != empty[name]}
    # A list is what a tuple became on the way.
    return {"at": round(readings.at, 3), **{name: value for name, value in rest.items() if value != []}}


_EMPTY = Readings(at=0.0)


def _rounded(value: Any) -> Any:
    if isinstance(value, float) and value and math.isfinite(value):
        return round(value, _DIGITS - 1 - math.floor(math.log10(abs(value))))
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return value


def moment(body: bytes) -> Moment:
    """A moment from what is kept. Raises msgspec.DecodeError."""
    return _DECODER.decode(body)


def thinned(moments: Iterable[Moment], every_s: float) -> Moments:
    """One moment for each stretch of ``every_s`` seconds that has any; they must come in the order of time."""
    found: list[Moment] = []
    group: list[Moment] = []
    end = -math.inf
    for one in moments:
        if one.at >= end:
            if group:
                found.append(_together(group))
            group = []
            end = (one.at // every_s + 1) * every_s
        group.append(one)
    if group:
        found.append(_together(group))
    return tuple(found)


def _together(group: list[Moment]) -> Moment:
    if len(group) == 1:
        return group[0]
    values: dict[str, Any] = {"at": group[-1].at}
    for name, get in _HIGHS:
        values[name] = max(_told(get, group), default=None)
    for name, get in _SPEEDS:
        told = _told(get, group)
        values[name] = sum(told) / len(told) if told else None
    for name, get in _LATENCIES:
        values[name] = max(_told(get, group), key=_P95, default=None)
    return Moment(**values)


def _told(get: Callable[[Moment], Any], group: list[Moment]) -> list[Any]:
    # A day has 86,400 moments of a dozen values: this is where the time goes.
    return [value for value in map(get, group) if value is not None]
