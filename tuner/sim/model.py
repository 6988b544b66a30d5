"""Which model the stand-in is: a folder or config.json, a packaged shape, or the 27B for ``demo/...``."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from tuner.modelcard import ModelShape
from tuner.modelfile import load_shape
from tuner.place import there
from tuner.sim.flags import Options

DEMO_PREFIX = "demo/"
DEMO_SHAPE = "qwen3.8-27b-fp8-text"


class NoModel(Exception):
    """There is no such model folder, and no shape to be instead; the message is the path."""


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A shape, and what the log says of its checkpoint."""

    shape: ModelShape
    path: str
    #: "quant=fp8, fmt=e4m3, " of the "Load weight end" line, or an empty string.
    quantization: str
    output_gate: bool


def _config(source: str | Path) -> dict[str, Any]:
    path = Path(source)
    if path.is_dir():
        path = path / "config.json"
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    else:
        text = (resources.files("tuner.shapes") / f"{source}.json").read_text(encoding="utf-8")
    config: dict[str, Any] = json.loads(text)
    return config


def _source(flags: dict[str, Any], options: Options) -> str:
    path = str(flags["model_path"])
    if place := there(path):
        return str(place)
    if options.shape:
        return options.shape
    if path.startswith(DEMO_PREFIX):
        return DEMO_SHAPE
    raise NoModel(path)


def resolve(flags: dict[str, Any], options: Options) -> Model:
    """The model to be. Raises NoModel, and ModelError with one sentence."""
    source = _source(flags, options)
    shape = load_shape(source)
    config = _config(source)
    text_config = config.get("text_config") or config
    quantized = config.get("quantization_config") or {}
    method = quantized.get("quant_method")
    fmt = f", fmt={quantized['fmt']}" if quantized.get("fmt") else ""
    return Model(
        shape=shape,
        path=str(flags["model_path"]),
        quantization=f"quant={method}{fmt}, " if method else "",
        output_gate=bool(text_config.get("attn_output_gate")),
    )
