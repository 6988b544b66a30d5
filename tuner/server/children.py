"""Servers that are children of this very process: only their parent can reap them and learn their exit status."""

from __future__ import annotations

import subprocess

# One table for the whole process, as the kernel's own is: any supervisor of it may have to reap.
_children: dict[int, subprocess.Popen[bytes]] = {}


def remember(child: subprocess.Popen[bytes]) -> None:
    """Keeps a started child so that it can be reaped."""
    _children[child.pid] = child


def reap(pid: int) -> int | None:
    """Exit status of a child that ended (negative: the signal), None while it runs or when it is not ours."""
    child = _children.get(pid)
    return None if child is None else child.poll()
