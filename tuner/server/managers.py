"""Whether something with a restart policy keeps a process up: stopping such a server by hand would be undone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import psutil

from tuner.text import clip, plain

_UNIT = re.compile(r"/([^/]+\.service)(?=/|$)")
#: Units that only carry a user's login, not a service with a restart policy.
_LOGIN_UNIT = re.compile(r"^(user@\d+|sshd?(@.*)?|getty@.*|session-.*|run-.*)\.service$")
_POD = re.compile(r"kubepods|cri-containerd|crio")
_CONTAINER = re.compile(r"(docker|libpod|cri-containerd|crio)[-/]([0-9a-f]{12,64})")
#: Programs that start again what ends, and how to stop a program there.
_SUPERVISORS = {
    "supervisord": "supervisorctl stop",
    "runsv": "sv down",
    "s6-supervise": "s6-svc -d",
    "monit": "monit stop",
    "circusd": "circusctl stop",
    "PM2": "pm2 stop",
    "god": "god stop",
    "slurmstepd": "scancel",
}
#: Parents that start nothing again: what carries a login, a terminal or a container.
_CARRIERS = re.compile(
    r"^(systemd|init|tini|dumb-init|catatonit|containerd-shim.*|conmon|docker-init|login|sshd.*|su|sudo|screen|tmux.*|"
    r"SCREEN|gnome-.*|konsole|xterm|code|node)$"
)
_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "fish", "python", "python3"})
_SHOWN_CELLS = 100


class Manager(msgspec.Struct, frozen=True):
    """What keeps a process up, and the command that stops it there."""

    name: str
    stop_command: str


def manager_of(pid: int) -> Manager | None:
    """What may start another process again: a systemd unit, a container, a watchdog; None when there is none."""
    theirs, ours = _cgroup(pid), _cgroup_of_self()
    named = manager_in(theirs) if theirs is not None and theirs != ours else None
    return named or _watchdog_of(pid)


def kept_up(pid: int) -> tuple[str, ...]:
    """How to stop a process so that it stays stopped, one line; nothing where nothing keeps it up."""
    manager = manager_of(pid)
    return (f"kept up by {manager.name}; to stop it: {manager.stop_command}",) if manager is not None else ()


def stop_command_of(pid: int) -> str:
    """The command with which a process that is not ours is stopped for good."""
    manager = manager_of(pid)
    return manager.stop_command if manager is not None else f"kill {pid}"


def manager_in(cgroup: str) -> Manager | None:
    """The manager that a control group path names."""
    if container := _CONTAINER.search(cgroup):
        name = container[2][:12]
        if _POD.search(cgroup):
            return Manager(f"Kubernetes, container {name}", "kubectl scale its deployment to 0")
        tool = "podman" if container[1] == "libpod" else "docker"
        return Manager(f"container {name}", f"{tool} stop {name}")
    units = _UNIT.findall(cgroup)
    if not units or _LOGIN_UNIT.match(units[-1]):
        return None
    user = " --user" if "/user.slice/" in cgroup else ""
    return Manager(f"systemd unit {units[-1]}", f"systemctl{user} stop {units[-1]}")


def _watchdog_of(pid: int) -> Manager | None:
    """The nearest parent that is neither ours nor a mere carrier: a supervisor, or a script that may be a loop."""
    try:
        ours = {process.pid for process in (psutil.Process(), *psutil.Process().parents())}
        parents = psutil.Process(pid).parents()
    except psutil.Error:
        return None
    for parent in parents:
        try:
            name, command = parent.name(), parent.cmdline()
        except psutil.Error:
            continue
        known = next((key for key in _SUPERVISORS if name.startswith(key)), None)
        if known is not None:
            return Manager(f"{known} (process {parent.pid})", f"{_SUPERVISORS[known]} and its name there")
        if parent.pid == 1 or parent.pid in ours:
            return None
        if _is_script(name, command):
            words = clip(plain(" ".join(command)), _SHOWN_CELLS)
            return Manager(f"process {parent.pid} ({words}), if that is a loop", f"kill {parent.pid} {pid}")
        if not _CARRIERS.match(name):
            return None
    return None


def _is_script(name: str, command: Sequence[str]) -> bool:
    """Whether an interpreter runs a script, and not a person's shell or one command."""
    arguments = command[1:]
    return name.rstrip("0123456789.") in _SHELLS and any(not word.startswith("-") for word in arguments)


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
