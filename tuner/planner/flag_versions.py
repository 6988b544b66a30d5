"""Flags that the server's version does not have, by the versions whose own parsers were read."""

from __future__ import annotations

from collections.abc import Iterator

from tuner.findings import Finding, FindingId, Severity
from tuner.flags import FlagInfo, catalogue, is_in
from tuner.planner.conflict import Case, finding

#: Versions of which the catalogue knows every flag. Between two of them it is not known when a flag came or went.
_READ = ((0, 5, 5), (0, 5, 9), (0, 5, 12), (0, 5, 17), (0, 5, 23))
_OLD_STRATEGY, _STRATEGY = "mamba_scheduler_strategy", "mamba_radix_cache_strategy"
_UNIFIED = "enable_unified_memory"


def _renamed(case: Case) -> Iterator[Finding]:
    old, new = _OLD_STRATEGY, _STRATEGY
    if old in case.flags and case.flag_since((0, 5, 20)):
        yield finding(
            Severity.FATAL,
            f"SGLang {case.rules.label} does not know {old} any more.",
            remedy=f"It is called {new} now.",
            flags={old: None, new: case.flags[old]},
            kind=FindingId.UNKNOWN_FLAG,
        )
    if new in case.flags and not case.flag_since((0, 5, 14)):
        yield finding(
            Severity.FATAL,
            f"SGLang {case.rules.label} does not know {new} yet.",
            remedy=f"It is called {old} there.",
            flags={new: None, old: case.flags[new]},
            kind=FindingId.UNKNOWN_FLAG,
        )


def _unified_memory(case: Case) -> Iterator[Finding]:
    if case.asked.unified_memory and not case.flag_since((0, 5, 15)):
        yield finding(
            Severity.FATAL,
            f"SGLang {case.rules.label} does not know {_UNIFIED} (0.5.15 and newer do).",
            remedy="Leave it out.",
            flags={_UNIFIED: None},
            kind=FindingId.UNKNOWN_FLAG,
        )


def _not_there(case: Case) -> Iterator[Finding]:
    """Any other flag: the start ends in the argument parser (exit status 2), the server before it already stopped."""
    known = catalogue()
    for name, value in case.flags.items():
        info = known.get(name)
        # One with an old name is spelled by it for an old version; a switch that is off is no word at all.
        if info is None or info.aliases or name in (_OLD_STRATEGY, _STRATEGY, _UNIFIED) or value is False:
            continue
        if _lacks(case.rules.version, info):
            when = f"it was there until {info.until}" if info.until is not None else f"it came with {info.since}"
            yield finding(
                Severity.FATAL,
                f"SGLang {case.rules.label} does not know {name}: {when}.",
                remedy=f"Leave {name} out.",
                flags={name: None},
                kind=FindingId.UNKNOWN_FLAG,
            )


def _lacks(version: tuple[int, int, int], info: FlagInfo) -> bool:
    below = max((read for read in _READ if read <= version), default=_READ[0])
    above = min((read for read in _READ if read >= version), default=_READ[-1])
    return not any(is_in(info, ".".join(map(str, read))) for read in (below, above))


RULES = (_unified_memory, _renamed, _not_there)
