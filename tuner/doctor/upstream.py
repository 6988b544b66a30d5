"""Faults of SGLang itself that others have met, with the versions they are known from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import msgspec

from tuner.doctor.case import LogCase, finding
from tuner.findings import Finding, FindingId, Severity
from tuner.units import format_gib, format_tokens

_VERSION = re.compile(r"(\d{1,3})\.(\d{1,3})\.(\d{1,3})")
Version = tuple[int, int, int]


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """A known fault. ``since`` and ``until`` bound the versions it was seen in; ``until`` None: not known as mended."""

    line: str
    title: str
    remedy: str
    since: Version
    until: Version | None
    flags: dict[str, object] = {}


_DEADLY = (
    Fault(
        line=r"Destination indices must be a CUDA tensor",
        title="The cache tier in host memory hands a GPU kernel the wrong kind of index.",
        remedy="Set hicache_io_backend to direct, or do without that tier; a newer SGLang has it mended. It dies at "
        "the first request after every restart.",
        since=(0, 5, 9),
        until=(0, 5, 11),
        flags={"hicache_io_backend": "direct"},
    ),
    Fault(
        line=r"evict leaf node invalid",
        title="Eviction met a cached state that a running prefill holds.",
        remedy="Give more state slots or do without the cache tier in host memory; a restart is safe, and 0.5.21 no "
        "longer has it.",
        since=(0, 5, 4),
        until=(0, 5, 20),
        flags={"enable_hierarchical_cache": None},
    ),
    Fault(
        line=r"memory leak detected!|Mem Leak Detected!",
        title="The idle self-check took a borrowed slot for a leak and ended the server: a false alarm.",
        remedy="A restart is safe; use a newer SGLang. No flag of the recipe is to blame.",
        since=(0, 5, 6),
        until=None,
    ),
)


def known_fault(case: LogCase) -> Finding | None:
    """A death that is a fault of SGLang."""
    for fault in _DEADLY:
        if seen := case.find(re.compile(fault.line)):
            on = {name: value for name, value in fault.flags.items() if value is not None or case.on(name)}
            return finding(
                FindingId.UPSTREAM_FAULT,
                Severity.FATAL,
                fault.title,
                evidence=(seen.line, _range(fault, case)),
                remedy=fault.remedy,
                flags=on,
            )
    return None


def _range(fault: Fault, case: LogCase) -> str:
    since = ".".join(map(str, fault.since))
    known = f"a fault of SGLang, known from {since}"
    known += f" to {'.'.join(map(str, fault.until))}" if fault.until else " on"
    version = lowest_version(case)
    if version is None:
        return known
    inside = fault.since <= version and (fault.until is None or version <= fault.until)
    return f"{known}; this is {case.facts.version}" + ("" if inside else ", where it was not seen before")


def lowest_version(case: LogCase) -> Version | None:
    """The lowest version that the log allows."""
    match = _VERSION.search(case.facts.version or "")
    return (int(match[1]), int(match[2]), int(match[3])) if match else None


def silent_faults(case: LogCase) -> Iterator[Finding]:
    """Faults that spoil answers or pools without a word, told by the flags and the sizes."""
    for rule in _SILENT:
        if found := rule(case):
            yield found


def _host_tier(case: LogCase) -> Finding | None:
    return host_tier_fault() if case.facts.hybrid and case.on("enable_hierarchical_cache") else None


def host_tier_fault() -> Finding:
    """A cache tier in host memory under a model with states."""
    return finding(
        FindingId.UPSTREAM_FAULT,
        Severity.WARNING,
        "A hit in the cache tier in host memory can bring back the text of another request.",
        evidence=(
            "enable_hierarchical_cache on a model with states",
            "a fault of SGLang, known from 0.5.20; not known as mended",
        ),
        remedy="Leave enable_hierarchical_cache out, or compare a cold, a hot and a host-tier answer before you trust "
        "it.",
        flags={"enable_hierarchical_cache": None},
    )


def _spoils_states(case: LogCase) -> Finding | None:
    name = next((n for n in ("enable_mixed_chunk", "enable_torch_compile") if case.on(n)), None)
    if not case.facts.hybrid or name is None:
        return None
    return finding(
        FindingId.FLAG_CONFLICT,
        Severity.WARNING,
        f"{name} spoils the answers of a model with states, unseen.",
        evidence=(f"{name} on a model with states", "known from 0.5.19 and 0.5.20; not known as mended"),
        remedy=f"Leave {name} out; a check with one request at a time does not show it.",
        flags={name: None},
    )


def _undersized(case: LogCase) -> Finding | None:
    """The pools were sized while the loader still held memory: far more stays free than the fraction leaves."""
    facts, fraction = case.facts, case.number("mem_fraction_static")
    free, before, version = facts.available_gib, facts.free_before_gib, lowest_version(case)
    if free is None or before is None or fraction is None or facts.kv_tokens is None or facts.draft is not None:
        return None
    pinned = any(case.argument(n) for n in ("max_total_tokens", "max_mamba_cache_size"))
    if pinned or (version is not None and version >= (0, 5, 19)):
        return None
    left = before * (1 - fraction)
    if free < left + max(8.0, 0.15 * before):
        return None
    return finding(
        FindingId.UPSTREAM_FAULT,
        Severity.WARNING,
        f"The pools are far smaller than asked: {format_gib(free)} stay free, the fraction leaves {format_gib(left)}.",
        evidence=(
            f"KV pool: {format_tokens(facts.kv_tokens)} tokens",
            "a fault of SGLang, known up to 0.5.18: the loader still held memory when the pools were sized",
        ),
        remedy="Use 0.5.19 or newer, or start it again; the flags are not to blame.",
    )


_SILENT: tuple[Callable[[LogCase], Finding | None], ...] = (_host_tier, _spoils_states, _undersized)
