"""What of the machine itself speaks against a start: disks, shared memory, driver, GPUs that cannot see each other."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tuner.findings import Finding, FindingId, Severity
from tuner.metrics.model import GpuReading
from tuner.paths import Home
from tuner.place import expanded, there
from tuner.recipe.model import Recipe
from tuner.server import proxies
from tuner.units import format_bytes

_MIB = 1 << 20
_GIB = 1 << 30
#: A model as the Hub names it: "owner/name".
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
#: A log of one start is below 100 kB, a day of serving some tens of MB.
_LEAST_DISK_BYTES = 200 * _MIB
#: What is left when a write has just failed: less than a piece of log, and what was freed since.
_FULL_DISK_BYTES = 1 * _MIB
#: The smallest hybrids have some GiB of weights, a 27B in FP8 has 29.
_LEAST_MODEL_BYTES = 32 * _GIB
_LEAST_SHM_BYTES = 64 * _MIB
#: Below it, virtual memory of a pool that grows and shrinks is not given back in time.
_UNIFIED_DRIVER = 535


def machine_findings(
    recipe: Recipe,
    environment: Mapping[str, str],
    gpus: Sequence[GpuReading],
    home: Home,
    driver: str | None = None,
    apart: Sequence[tuple[int, int, str]] = (),
) -> Iterator[Finding]:
    """Findings on the machine for a start on ``gpus``; see ``guard.preflight``. Raises ``HomeError``."""
    yield from _log_disk(home)
    yield from _proxies(environment)
    if recipe.simulated:
        return
    yield from _model_disk(recipe, environment)
    yield from _driver_for_flags(recipe, driver)
    if len(gpus) > 1:
        yield from _shared_memory()
        yield from (_peers_apart(pair) for pair in apart)


def _log_disk(home: Home) -> Iterator[Finding]:
    free = shutil.disk_usage(home.logs).free
    if free < _LEAST_DISK_BYTES:
        yield Finding(
            id=FindingId.UNKNOWN,
            severity=Severity.WARNING if free else Severity.FATAL,
            title=f"The disk of the log folder {home.logs} has only {format_bytes(free)} free.",
            remedy="Make room, or set TUNER_HOME to a folder on another disk.",
        )


def died_of_full_disk(home: Home) -> Finding | None:
    """The finding that a server ended because its log could not be written, when there is no room for a log now."""
    free = shutil.disk_usage(home.logs).free
    if free >= _FULL_DISK_BYTES:
        return None
    return Finding(
        id=FindingId.UNKNOWN,
        severity=Severity.FATAL,
        title=f"The disk of the log folder {home.logs} is full, and a server that cannot write its log ends.",
        remedy="Make room, or set TUNER_HOME to a folder on another disk, then start again.",
    )


def _proxies(environment: Mapping[str, str]) -> Iterator[Finding]:
    if named := proxies.named(environment):
        yield Finding(
            id=FindingId.UNKNOWN,
            severity=Severity.NOTE,
            title=f"The environment sets a proxy ({', '.join(named)}); this machine's own addresses are kept off it.",
        )


def _model_disk(recipe: Recipe, environment: Mapping[str, str]) -> Iterator[Finding]:
    """A model that is still to be fetched, and a cache without room for it."""
    name = recipe.model_path
    if not HUB_NAME.fullmatch(name) or there(name):
        return
    cache = _hub_cache(environment)
    if there(cache / f"models--{name.replace('/', '--')}" / "snapshots"):
        return
    nearest = next((folder for folder in (cache, *cache.parents) if there(folder)), None)
    if nearest is not None and (free := shutil.disk_usage(nearest).free) < _LEAST_MODEL_BYTES:
        yield Finding(
            id=FindingId.UNKNOWN,
            severity=Severity.WARNING,
            title=f"{name} is not in the model cache {cache} yet, and its disk has only {format_bytes(free)} free.",
            remedy="Make room, or set HF_HOME to a folder on another disk.",
        )


def _hub_cache(environment: Mapping[str, str]) -> Path:
    """Where Hugging Face keeps models (``huggingface_hub.constants``)."""
    if told := environment.get("HF_HUB_CACHE") or environment.get("HUGGINGFACE_HUB_CACHE"):
        return expanded(told)
    if told := environment.get("HF_HOME"):
        return expanded(told) / "hub"
    base = environment.get("XDG_CACHE_HOME") or expanded(environment.get("HOME", "~")) / ".cache"
    return Path(base) / "huggingface" / "hub"


def _driver_for_flags(recipe: Recipe, driver: str | None) -> Iterator[Finding]:
    major = (driver or "").split(".", 1)[0]
    if recipe.flags.get("enable_unified_memory") and major.isdigit() and int(major) < _UNIFIED_DRIVER:
        yield Finding(
            id=FindingId.DRIVER_OLD,
            severity=Severity.WARNING,
            title=f"Driver {driver} is older than enable_unified_memory needs ({_UNIFIED_DRIVER}).",
            remedy="Update the driver, or leave enable_unified_memory out: its pool may fail to grow.",
        )


def _shared_memory() -> Iterator[Finding]:
    shm = Path("/dev/shm")
    if shm.is_dir() and (room := shutil.disk_usage(shm).free) < _LEAST_SHM_BYTES:
        yield Finding(
            id=FindingId.UNKNOWN,
            severity=Severity.WARNING,
            title=f"/dev/shm has only {format_bytes(room)} free; NCCL needs it between GPUs.",
            remedy="Give the container more shared memory (docker: --shm-size=16g or --ipc=host).",
        )


def _peers_apart(pair: tuple[int, int, str]) -> Finding:
    one, other, why = pair
    return Finding(
        id=FindingId.PEER_ACCESS,
        severity=Severity.WARNING,
        title=f"GPU {one} and GPU {other} cannot reach each other's memory: {why}.",
        evidence=("starts on two such cards have died with cudaErrorPeerAccessUnsupported",),
        remedy="Use one GPU (tp_size 1) if the model fits; NCCL_P2P_DISABLE=1 alone has not helped.",
    )
