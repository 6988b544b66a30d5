"""Who listens on a port."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable

import msgspec
import psutil


class PortHolder(msgspec.Struct, frozen=True):
    """A process that listens on a port; None where it may not be seen."""

    pid: int | None
    command: str | None


def bind_problem(host: str, port: int) -> str | None:
    """Why a server could not bind ``host``:``port`` now; None when it could.

    Binds with SO_REUSEADDR, as uvicorn does, so connections that are still winding down do not count.
    """
    if not 0 < port < 1 << 16:
        return f"{port} is no port number"
    try:
        addresses = socket.getaddrinfo(
            host or "0.0.0.0", port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except OSError:
        return f"the address {host} is not known"
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return "the port is taken"
            if error.errno == errno.EADDRNOTAVAIL:
                return f"this machine has no address {host}"
            if error.errno == errno.EACCES:
                return f"port {port} needs more rights than you have"
            if error.errno != errno.EAFNOSUPPORT:
                return error.strerror or str(error)
    return None


def port_free(host: str, port: int) -> bool:
    """Whether a server could bind now."""
    return bind_problem(host, port) is None


def holders(port: int) -> list[PortHolder]:
    """Processes that listen on the port, as far as this user may see."""
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return []
    pids = {c.pid for c in connections if c.status == psutil.CONN_LISTEN and c.laddr and c.laddr.port == port}
    return [PortHolder(pid, _command(pid) if pid is not None else None) for pid in sorted(pids, key=lambda p: p or 0)]


def _command(pid: int) -> str | None:
    try:
        process = psutil.Process(pid)
        return " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        return None


def any_listens(processes: Iterable[psutil.Process], port: int) -> bool | None:
    """Whether one of the processes listens on the port; None when that may not be seen for all of them."""
    unseen = False
    for process in processes:
        try:
            for connection in process.net_connections(kind="tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port:
                    return True
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        except (psutil.AccessDenied, OSError):
            unseen = True
    return None if unseen else False
