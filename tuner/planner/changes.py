"""Changes of flags, laid over others and read off two of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tuner.planner.asked import ALIASES


def changed_flags(flags: Mapping[str, Any], changes: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Flags with changes laid over; an old name of a changed flag goes."""
    result = dict(flags)
    for change in changes:
        for key, value in change.items():
            for alias in (key, *ALIASES.get(key, ())):
                result.pop(alias, None)
            if value is not None:
                result[key] = value
    return result


def changes_between(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """What to lay over ``old`` to come to ``new``; None removes a flag."""
    changes: dict[str, Any] = {key: value for key, value in new.items() if old.get(key) != value}
    for key in old:
        if key not in new and not any(key in ALIASES.get(name, ()) for name in changes):
            changes[key] = None
    return changes
