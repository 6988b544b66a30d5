"""A server process as the tuner knows it."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from tuner.findings import Finding
from tuner.recipe.model import Recipe
from tuner.serverlog.model import BootFacts


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a start needs, resolved: this holds secrets and is never stored or shown."""

    argv: tuple[str, ...]
    environment: dict[str, str]
    host: str
    port: int
    simulated: bool
    recipe: Recipe
    round_name: str | None = None


class ServerHandle(msgspec.Struct, frozen=True, kw_only=True):
    """A server the tuner started, as kept on disk: found again after any end of the tuner. Holds no secret."""

    pid: int
    #: psutil creation time: with the pid it names the process for sure.
    create_time: float
    host: str
    port: int
    log_path: str
    started_at: float
    simulated: bool
    recipe: Recipe
    round_name: str | None = None
    #: VRAM used before the start, MiB per GPU index, to verify the return after a stop.
    vram_before_mib: dict[str, int] = {}
    #: Creation time counted from the boot, seconds: unlike ``create_time`` it does not move when the clock is set.
    since_boot_s: float | None = None
    #: Value of ``TUNER_START_ID`` in the environment of the server and all it starts.
    start_id: str = ""
    #: The kernel's name of the boot it was started in: after another boot nothing of it lives.
    boot_id: str = ""

    @property
    def url(self) -> str:
        """Base URL the tuner talks to."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::", "") else self.host
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


class ReadyState(StrEnum):
    """How waiting for a start ended."""

    READY = "ready"
    DIED = "died"
    ABORTED = "aborted"
    TIMED_OUT = "timed out"


class ReadyOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a start. ``reason`` is one sentence; ``phase_seconds`` in order of the phases."""

    state: ReadyState
    seconds: float
    facts: BootFacts
    reason: str = ""
    exit_status: int | None = None
    phase_seconds: dict[str, float] = {}
    last_lines: tuple[str, ...] = ()
    #: Since the log last grew, seconds.
    quiet_s: float = 0.0
    #: What could not be verified of a server that is ready, one sentence; empty when nothing.
    unverified: str = ""


class StopOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The end of a stop, verified."""

    stopped: bool
    seconds: float
    how: str
    exit_status: int | None = None
    left_processes: tuple[int, ...] = ()
    port_free: bool = True
    #: MiB still missing per GPU index compared with before the start; None: could not be read.
    vram_missing_mib: dict[str, int] | None = None
    reason: str = ""


class PhaseChanged(msgspec.Struct, frozen=True, tag=True):
    """The start (or stop) moved on, or has news. ``estimate_s``: how long this phase took before, None if never."""

    phase: str
    elapsed_s: float
    total_s: float
    estimate_s: float | None = None
    total_estimate_s: float | None = None
    last_line: str = ""
    stalled: bool = False


class StartRefused(Exception):
    """A start that must not happen; ``findings`` say why, worst first."""

    def __init__(self, findings: tuple[Finding, ...]) -> None:
        super().__init__("; ".join(f.title for f in findings) or "start refused")
        self.findings = findings


class InUse(StartRefused):
    """Another living tuner is in the middle of a round on this server."""


ServerInfo = dict[str, Any]
