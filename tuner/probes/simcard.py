"""The simulated card that stand-in servers of one port share: a folder they write to.

``card.json`` describes the card; each simulated process keeps ``<pid>.json``. Files are replaced whole. Entries of
processes that no longer live count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from tuner.metrics.model import GpuProcess, GpuReading

#: A process is the one that wrote its entry only when the creation times agree, seconds.
_SAME_TIME_S = 1.0
_T = TypeVar("_T")


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """``card.json``: the card itself; ``reserved_mib`` is used by nobody in particular."""

    total_mib: int
    name: str = "Simulated card"
    reserved_mib: int = 0


#: The card there is before a stand-in server wrote one.
DEFAULT_CARD = Card(name="Simulated 48 GB", total_mib=49140, reserved_mib=500)


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """``<pid>.json``: what one simulated process holds of the card."""

    pid: int
    create_time: float
    memory_mib: int
    name: str | None = None


class SimCardProbe:
    """Reads a simulated card as if it were a GPU."""

    def __init__(self, card_dir: Path) -> None:
        self._folder = card_dir
        self._reason = ""

    @property
    def reason(self) -> str:
        """Why there are no readings, one sentence; empty when there are."""
        return self._reason

    def read(self) -> list[GpuReading]:
        """The one card, with the memory of the processes that still live."""
        path = self._folder / "card.json"
        card = _decoded(path, Card) if path.exists() else DEFAULT_CARD
        if card is None:
            self._reason = f"The simulated card cannot be read: remove {path}, and it is made anew."
            return []
        self._reason = ""
        holdings = sorted(self._holdings(), key=lambda holding: holding.pid)
        used = card.reserved_mib + sum(holding.memory_mib for holding in holdings)
        return [
            GpuReading(
                index=0,
                name=card.name,
                total_mib=card.total_mib,
                used_mib=used,
                free_mib=max(0, card.total_mib - used),
                processes=tuple(GpuProcess(pid=h.pid, memory_mib=h.memory_mib, name=h.name) for h in holdings),
                simulated=True,
            )
        ]

    def _holdings(self) -> Iterator[Holding]:
        for path in self._folder.glob("*.json"):
            if path.stem.isdigit() and (holding := _decoded(path, Holding)) and _lives(holding):
                yield holding

    def driver_version(self) -> str | None:
        """None: a simulated card has no driver."""
        return None

    def peers_apart(self, indexes: Sequence[int]) -> list[tuple[int, int, str]]:
        """None: there is one simulated card."""
        del indexes
        return []

    def close(self) -> None:
        """Nothing is held."""


def _decoded(path: Path, kind: type[_T]) -> _T | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.DecodeError, RecursionError):
        return None


def _lives(holding: Holding) -> bool:
    try:
        process = psutil.Process(holding.pid)
        same = abs(process.create_time() - holding.create_time) < _SAME_TIME_S
        return same and process.status() != psutil.STATUS_ZOMBIE
    except (psutil.Error, ValueError, OverflowError):
        # No process has a negative number, or one so large.
        return False
