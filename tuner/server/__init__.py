"""The server process: preflight, start, readiness, stop, adoption.

Names are loaded when first used: ``tuner.server.model`` is read by parts that must not load the HTTP client.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuner.server.guard import preflight
    from tuner.server.interpreter import installed_version
    from tuner.server.launch import launch_spec
    from tuner.server.supervisor import Supervisor

__all__ = ["Supervisor", "installed_version", "launch_spec", "preflight"]

_HOMES = {
    "Supervisor": "supervisor",
    "installed_version": "interpreter",
    "launch_spec": "launch",
    "preflight": "guard",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
