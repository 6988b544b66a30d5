"""Which model a round ran, by its files: a folder's name says little, and may hold another model tomorrow."""

from __future__ import annotations

import hashlib
from pathlib import Path

from tuner.place import there
from tuner.recipe.model import Recipe

_CONFIG = "config.json"
_INDEX = "model.safetensors.index.json"
#: What a name or header is read up to; a safetensors header is some hundred kB.
_HEAD_BYTES = 1 << 20
_DIGITS = 16


def fingerprint(recipe: Recipe) -> dict[str, str]:
    """Hashes (SHA-256, the first 16 hexadecimal digits) of the model's config and of its weights' index.

    Without an index the names, sizes and beginnings of the weight files stand for it. A model that is not a folder of
    this machine has the name of the packaged shape it was planned with, or nothing.
    """
    folder = there(recipe.model_path)
    if folder is None or not folder.is_dir():
        return {"shape": recipe.tuner.model_shape} if recipe.tuner.model_shape else {}
    found = {"config": _hash_of(folder / _CONFIG), "weights": _hash_of(folder / _INDEX) or _hash_of_weights(folder)}
    return {name: value for name, value in found.items() if value}


def _hash_of(path: Path) -> str:
    """Empty when the file cannot be read: a start will say so better."""
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()[:_DIGITS]
    except OSError:
        return ""


def _hash_of_weights(folder: Path) -> str:
    digest = hashlib.sha256()
    files = sorted(folder.glob("*.safetensors"))
    try:
        for path in files:
            digest.update(f"{path.name} {path.stat().st_size}\n".encode("utf-8", "surrogateescape"))
            with path.open("rb") as file:
                digest.update(file.read(_HEAD_BYTES))
    except OSError:
        return ""
    return digest.hexdigest()[:_DIGITS] if files else ""
