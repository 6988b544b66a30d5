"""Reads a model from disk: its ``config.json``, and what its weights take from the safetensors headers."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from tuner.modelcard import ModelError, ModelShape, shape_from_config
from tuner.modelcard.reader import shown

#: A config.json is a few KiB; a safetensors header of a large shard a few MiB.
_LARGEST_CONFIG = 16 << 20
_LARGEST_HEADER = 128 << 20
#: Name parts of tensors that belong to a draft head (MTP / NEXTN) in a checkpoint.
_DRAFT_PARTS = ("mtp.", "nextn.", "eagle.")


class WeightBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the tensors in a checkpoint: the model's own and those of its draft head, over all ranks.

    ``draft_bytes`` counts what SGLang loads for a draft: the head's tensors, and the embedding and output
    head it loads a second time when the draft has none of its own.
    """

    target_bytes: int
    draft_bytes: int = 0


def packaged_shapes() -> tuple[str, ...]:
    """Names of the shapes that come with the tuner."""
    folder = resources.files("tuner.shapes")
    return tuple(sorted(entry.name.removesuffix(".json") for entry in folder.iterdir() if entry.name.endswith(".json")))


def load_shape(path: str | Path) -> ModelShape:
    """The shape of a model folder, of a ``config.json``, or of a packaged shape by name.

    Raises ModelError with one sentence when there is none or it cannot be read.
    """
    text = str(path)
    place = _expanded(text)
    if "/" not in text and not text.endswith(".json") and not place.exists():
        return _packaged(text)
    if place.is_dir():
        place = place / "config.json"
        name = place.parent.name
    else:
        name = place.stem if place.stem != "config" else place.parent.name
    if not place.exists():
        raise ModelError(f"There is no {place}: give a model folder, its config.json, or one of {_names()}.")
    if not place.is_file():
        raise ModelError(f"{place} is not a file: give a model folder, its config.json, or one of {_names()}.")
    try:
        with place.open("rb") as file:
            content = file.read(_LARGEST_CONFIG + 1)
        if len(content) > _LARGEST_CONFIG:
            raise ModelError(f"{place} is {place.stat().st_size >> 20} MiB: a config.json is never that large.")
    except OSError as error:
        raise ModelError(f"{place} cannot be read: {error.strerror or error}.") from error
    return shape_from_config(_parsed(content, place), name)


def _expanded(path: str | Path) -> Path:
    """``path`` with "~" replaced. Raises ModelError for what the system cannot take as a path."""
    try:
        place = Path(path).expanduser()
        place.exists()
    except (OSError, RuntimeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error).rstrip(".")
        raise ModelError(f"{shown(str(path))} cannot be a path ({reason}): give a model folder.") from error
    return place


def _names() -> str:
    return ", ".join(packaged_shapes())


def _packaged(name: str) -> ModelShape:
    entry = resources.files("tuner.shapes").joinpath(f"{name}.json")
    if not entry.is_file():
        raise ModelError(
            f"There is no model shape {name!r}: give a model folder, its config.json, or one of {_names()}."
        )
    return shape_from_config(json.loads(entry.read_text("utf-8")), name)


def _parsed(content: bytes, place: Path) -> dict[str, Any]:
    try:
        parsed = msgspec.json.decode(content)
    except msgspec.DecodeError as error:
        raise ModelError(f"{place} is not complete JSON ({error}): copy it from the model again.") from error
    except RecursionError as error:
        raise ModelError(f"{place} is nested too deeply to be a config.json.") from error
    if not isinstance(parsed, dict):
        raise ModelError(f"{place} does not hold a table: it is not the config.json of a language model.")
    return parsed


def weights_on_disk(model_dir: str | Path) -> WeightBytes | None:
    """Bytes of a checkpoint's tensors from its safetensors headers; None when the folder has none that can be read.

    Only headers are read, never weights. A damaged shard is told as ModelError with one sentence.
    """
    folder = _expanded(model_dir)
    try:
        shards = sorted(folder.glob("*.safetensors"))
    except OSError as error:
        raise ModelError(f"{folder} cannot be read: {error.strerror or error}.") from error
    if not shards:
        return None
    sizes: dict[str, int] = {}
    for shard in shards:
        sizes.update(_tensor_sizes(shard))
    draft = sum(size for name, size in sizes.items() if _is_draft(name))
    target = sum(sizes.values()) - draft
    if draft:
        vocabulary = {kind: size for name, size in sizes.items() if not _is_draft(name) and (kind := _vocabulary(name))}
        own = {_vocabulary(name) for name in sizes if _is_draft(name)}
        head = vocabulary.get("head", vocabulary.get("embedding", 0))
        draft += (0 if "embedding" in own else vocabulary.get("embedding", 0)) + (0 if "head" in own else head)
    return WeightBytes(target_bytes=target, draft_bytes=draft)


def _is_draft(name: str) -> bool:
    return any(name.startswith(part) or f".{part}" in name for part in _DRAFT_PARTS)


def _vocabulary(name: str) -> str | None:
    if "embed_tokens" in name:
        return "embedding"
    return "head" if "lm_head" in name else None


def _tensor_sizes(shard: Path) -> dict[str, int]:
    """Bytes by tensor name, from the header (8 bytes of length, then JSON)."""
    try:
        with shard.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            if not 0 < length <= _LARGEST_HEADER:
                raise ModelError(f"{shard} is not a safetensors file: its header says {length:,} bytes.")
            header = msgspec.json.decode(file.read(length))
    except OSError as error:
        raise ModelError(f"{shard} cannot be read: {error.strerror or error}.") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise ModelError(f"{shard} has a damaged header ({error}): download it again.") from error
    if not isinstance(header, dict):
        raise ModelError(f"{shard} has a damaged header: download it again.")
    sizes: dict[str, int] = {}
    for name, entry in header.items():
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if name == "__metadata__" or offsets is None:
            continue
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_offset(offset) for offset in offsets):
            raise ModelError(f"{shard} has a damaged header (tensor {shown(name)}): download it again.")
        sizes[name] = max(0, offsets[1] - offsets[0])
    return sizes


def _is_offset(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63
