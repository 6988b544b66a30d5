"""Keeps proxies of the environment off this machine's own addresses.

SGLang asks itself over HTTP before it says it is ready (0.5.17: ``entrypoints/http_server.py``, with ``requests``,
which takes ``http_proxy`` from the environment): behind a proxy that call goes astray and the server ends. The tuner's
own client never uses a proxy.
"""

from __future__ import annotations

from collections.abc import Mapping

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
_EXCEPTIONS = ("no_proxy", "NO_PROXY")
_LOCAL = ("127.0.0.1", "localhost", "::1")


def named(environment: Mapping[str, str]) -> list[str]:
    """The variables that set a proxy."""
    return [name for name in _PROXIES if environment.get(name)]


def kept_off(environment: Mapping[str, str], host: str) -> dict[str, str]:
    """What to add to ``environment`` so that this machine and ``host`` are asked directly; empty without a proxy."""
    if not named(environment):
        return {}
    wanted = [*_excepted(environment), *_LOCAL, *([host] if host else [])]
    value = ",".join(dict.fromkeys(wanted))
    return dict.fromkeys(_EXCEPTIONS, value)


def _excepted(environment: Mapping[str, str]) -> list[str]:
    text = ",".join(environment.get(name, "") for name in _EXCEPTIONS)
    return [word for part in text.split(",") if (word := part.strip())]
