"""The simulated card: a folder that says how much memory it has and who holds how much of it.

``card.json`` holds ``name``, ``total_mib`` and ``reserved_mib``; each simulated process has ``<pid>.json`` with
``pid``, ``create_time``, ``memory_mib`` and ``name``. Files are replaced atomically; entries of dead processes count
for nothing.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import psutil

#: psutil's creation times of one process may differ by rounding.
_SAME_TIME_S = 0.02
MIB_PER_GIB = 1024


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """What ``card.json`` says."""

    name: str
    total_mib: int
    reserved_mib: int


class Holding(msgspec.Struct, frozen=True, kw_only=True):
    """What one process holds."""

    pid: int
    create_time: float
    memory_mib: int
    name: str


class CardError(Exception):
    """The card's folder cannot be used; the message is one sentence."""


#: What a "48 GB" card shows: 47.99 GiB, of which 47.5 are free while nothing runs.
CARD_48G = Card(name="Simulated 48 GB", total_mib=49140, reserved_mib=500)


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(content)
    temporary.replace(path)


def _alive(holding: Holding) -> bool:
    try:
        process = psutil.Process(holding.pid)
        return (
            abs(process.create_time() - holding.create_time) < _SAME_TIME_S and process.status() != psutil.STATUS_ZOMBIE
        )
    except psutil.NoSuchProcess:
        return False


class CardSlot:
    """The place of one process on the card. Without a folder nothing is published and the card is empty."""

    def __init__(self, folder: Path | None, card: Card = CARD_48G) -> None:
        self._folder = folder
        self._entry: Path | None = None
        self._process: psutil.Process | None = None
        self.card = card
        if folder is None:
            return
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            described = folder / "card.json"
            if described.exists():
                self.card = msgspec.json.decode(described.read_bytes(), type=Card)
            else:
                _replace(described, msgspec.json.encode(card))
        except (OSError, msgspec.MsgspecError) as error:
            raise CardError(f"The simulated card in {folder} cannot be used: {error}") from None

    def others_gib(self) -> float:
        """GiB that other living processes hold; files of dead ones are cleared away."""
        if self._folder is None:
            return 0.0
        held = 0
        for path in self._folder.glob("[0-9]*.json"):
            if path == self._entry:
                continue
            try:
                holding = msgspec.json.decode(path.read_bytes(), type=Holding)
            except (FileNotFoundError, msgspec.MsgspecError):
                continue
            if _alive(holding):
                held += holding.memory_mib
            else:
                path.unlink(missing_ok=True)
        return held / MIB_PER_GIB

    def free_gib(self) -> float:
        """GiB that a process starting now can have."""
        return (self.card.total_mib - self.card.reserved_mib) / MIB_PER_GIB - self.others_gib()

    def attach(self, pid: int) -> None:
        """From now on what is published is held by the process ``pid``."""
        self._process = psutil.Process(pid)
        if self._folder is not None:
            self._entry = self._folder / f"{pid}.json"

    def publish(self, used_gib: float, name: str = "sglang::scheduler") -> None:
        """Says how much the attached process holds now."""
        if self._entry is None or self._process is None:
            return
        holding = Holding(
            pid=self._process.pid,
            create_time=self._process.create_time(),
            memory_mib=max(0, round(used_gib * MIB_PER_GIB)),
            name=name,
        )
        _replace(self._entry, msgspec.json.encode(holding))

    def remove(self) -> None:
        """Gives the memory back."""
        if self._entry is not None:
            self._entry.unlink(missing_ok=True)
            self._entry = None
