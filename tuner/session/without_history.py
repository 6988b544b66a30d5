"""Stopping a server when the history cannot be opened: on a full disk that is what has to work."""

from __future__ import annotations

from tuner.paths import Home
from tuner.probes.gpu import probe_for
from tuner.server import Supervisor
from tuner.server.model import StopOutcome
from tuner.session.events import Publish


def stop_without_history(home: Home, *, port: int | None, drain: bool, publish: Publish) -> StopOutcome | None:
    """As ``Session.stop`` with ``force``: whose round it is in cannot be told. None when nothing runs."""
    finder = probe_for(False, home, 0)
    try:
        handles = Supervisor(home, finder).running(port)
    finally:
        finder.close()
    if not handles:
        return None
    handle = max(handles, key=lambda h: h.started_at)
    probe = probe_for(handle.simulated, home, handle.port)
    try:
        return Supervisor(home, probe).stop(handle, publish, drain)
    finally:
        probe.close()
