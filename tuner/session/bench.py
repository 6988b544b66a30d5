"""What a round works with."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tuner.paths import Home
from tuner.probes.gpu import GpuProbe
from tuner.rounds.history import History
from tuner.server import Supervisor


class Bench(msgspec.Struct, frozen=True, kw_only=True):
    """What a round works with."""

    home: Home
    history: History
    supervisor: Supervisor
    gpu: GpuProbe
    environ: Mapping[str, str]
