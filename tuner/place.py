"""Paths that people write: with ``~``, of no user there is, longer than any file system takes."""

from __future__ import annotations

from pathlib import Path


def expanded(path: str | Path) -> Path:
    """``path`` with its ``~`` filled in; as written where that is no user of this machine."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def there(path: str | Path) -> Path | None:
    """``path`` with its ``~`` filled in, where something is there that may be looked at; else None."""
    if not str(path):
        return None
    place = expanded(path)
    try:
        return place if place.exists() else None
    except OSError:
        # Too long for a name, or in a folder of somebody else: nothing that could be used.
        return None
