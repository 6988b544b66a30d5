"""Whether something with a restart policy keeps a process up: stopping such a server by hand would be undone."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

_UNIT = re.compile(r"/([^/]+\.service)$")
#: Units that only carry a user's login, not a service with a restart policy.
_LOGIN_UNIT = re.compile(r"^(user@\d+|sshd?(@.*)?|getty@.*|session-.*|run-.*)\.service$")
_CONTAINER = re.compile(r"(?:docker|libpod|cri-containerd|crio)[-/]([0-9a-f]{12,64})")


class Manager(msgspec.Struct, frozen=True):
    """What keeps a process up, and the command that stops it there."""

    name: str
    stop_command: str


def manager_of(pid: int) -> Manager | None:
    """The systemd unit or container of another process; None when there is none, or ours is the same."""
    theirs, ours = _cgroup(pid), _cgroup_of_self()
    if theirs is None or theirs == ours:
        return None
    return manager_in(theirs)


def manager_in(cgroup: str) -> Manager | None:
    """The manager that a control group path names."""
    if container := _CONTAINER.search(cgroup):
        name = container[1][:12]
        return Manager(f"container {name}", f"docker stop {name}")
    unit = _UNIT.search(cgroup)
    if unit is None or _LOGIN_UNIT.match(unit[1]):
        return None
    user = " --user" if "/user.slice/" in cgroup else ""
    return Manager(f"systemd unit {unit[1]}", f"systemctl{user} stop {unit[1]}")


def _cgroup(pid: int) -> str | None:
    return _path_in(Path(f"/proc/{pid}/cgroup"))


def _cgroup_of_self() -> str | None:
    return _path_in(Path("/proc/self/cgroup"))


def _path_in(file: Path) -> str | None:
    try:
        lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    paths = [line.split(":", 2)[2] for line in lines if line.count(":") >= 2]
    return max(paths, key=len, default=None)
