"""The server process: preflight, start, readiness, stop, adoption.

Names are loaded when first used: ``tuner.server.model`` is read by parts that must not load the HTTP client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tuner.deferred import names_in

if TYPE_CHECKING:
    from tuner.server.guard import preflight
    from tuner.server.interpreter import installed_version
    from tuner.server.launch import launch_spec
    from tuner.server.supervisor import Supervisor

__all__ = ["Supervisor", "installed_version", "launch_spec", "preflight"]

__getattr__ = names_in(
    __name__,
    guard="preflight",
    interpreter="installed_version",
    launch="launch_spec",
    supervisor="Supervisor",
)
