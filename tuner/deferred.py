"""Names of a package that are loaded when they are first used, so that who reads one of its parts loads no other."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any


def names_in(package: str, **modules: str) -> Callable[[str], Any]:
    """A package's ``__getattr__``: by module of the package the names that it has, with blanks between them."""
    homes = {name: module for module, names in modules.items() for name in names.split()}

    def load(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return load
