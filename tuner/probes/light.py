"""httpx without what a plain HTTP connection from a thread never uses: 12 MB that an app would hold open all day.

Left out are the command line of httpx, anyio (the asynchronous half of httpcore), and OpenSSL until there is an https
address. asyncio, hashlib and hmac import OpenSSL too, only to have it ready: they are imported here without it, and do
all the app needs (without TLS of asyncio's own, and from Python 3.12 on without hashlib's pbkdf2_hmac). Where OpenSSL
or asyncio was imported before, nothing of it can be spared, and all is as usual.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

#: The hash functions of Python itself; a build without them (FIPS) has only OpenSSL's.
_OWN_HASHES = ("_md5", "_sha1", "_sha3", "_blake2", "_sha256" if sys.version_info < (3, 12) else "_sha2")


class _Later(ModuleType):
    """Stands for a module in those that imported it, until one of them uses it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__dict__["_lock"] = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        with self.__dict__["_lock"]:
            module = importlib.import_module(self.__name__)
            self.__dict__.update({key: value for key, value in vars(module).items() if not key.startswith("__")})
        return getattr(module, name)


def import_httpx() -> None:
    """Imports httpx and httpcore as said above; later imports of ssl, anyio or ``_hashlib`` get the real ones."""
    # A name set to None fails to import, which httpx provides for, and asyncio, hashlib, hmac and httpcore too.
    sys.modules.setdefault("httpx._main", None)  # type: ignore[arg-type]
    if {"asyncio", "ssl", "httpcore"} & sys.modules.keys():
        return
    with _instead(ssl=None):
        importlib.import_module("asyncio")
    if all(find_spec(name) for name in _OWN_HASHES):
        with _instead(_hashlib=None):
            importlib.import_module("hashlib")
            importlib.import_module("hmac")
    ssl = _Later("ssl")
    # httpcore names it in an annotation that Python evaluates.
    ssl.__dict__["SSLContext"] = object
    with _instead(ssl=ssl, anyio=None):
        importlib.import_module("httpx")
        importlib.import_module("httpcore")
    del ssl.__dict__["SSLContext"]


@contextmanager
def _instead(**modules: ModuleType | None) -> Iterator[None]:
    missing = modules.keys() - sys.modules.keys()
    sys.modules.update({name: modules[name] for name in missing})  # type: ignore[misc]
    try:
        yield
    finally:
        for name in missing:
            sys.modules.pop(name, None)
