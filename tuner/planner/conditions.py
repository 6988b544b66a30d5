"""What a calibration holds for, and why one does not hold any more."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tuner.modelcard import ModelShape
from tuner.planner.model import GIB, CannotPlan
from tuner.planner.versions import parse_version


class Conditions(msgspec.Struct, frozen=True, kw_only=True):
    """What a calibration holds for."""

    model: str
    sglang_version: str
    driver_version: str | None = None
    gpu_name: str | None = None
    allocator: str = ""


def conditions(
    shape: ModelShape,
    sglang_version: str,
    environment: Mapping[str, str],
    *,
    driver_version: str | None = None,
    gpu_name: str | None = None,
) -> Conditions:
    """The conditions of a start, to keep beside its boot facts and to compare with ``void_reason``."""
    allocator = environment.get("PYTORCH_ALLOC_CONF") or environment.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    weights = round(shape.weights_bytes / GIB)
    return Conditions(
        model=f"{shape.architecture} {shape.layers}x{shape.hidden_size}, {shape.vocab_size} words, {weights} GiB",
        sglang_version=sglang_version,
        driver_version=driver_version,
        gpu_name=gpu_name,
        allocator=allocator.strip(),
    )


def void_reason(calibrated: Conditions, now: Conditions) -> str | None:
    """Why a calibration does not hold any more, as one sentence; None when it does. Unknown things don't void it."""
    if calibrated.model != now.model:
        return "The calibration is of another model."
    if not _same_version(calibrated.sglang_version, now.sglang_version):
        return f"The calibration is of SGLang {calibrated.sglang_version}, this start would be {now.sglang_version}."
    for label, old, new in (
        ("driver", calibrated.driver_version, now.driver_version),
        ("card", calibrated.gpu_name, now.gpu_name),
    ):
        if old and new and old != new:
            return f"The calibration is of {label} {old}, here it is {new}."
    if calibrated.allocator != now.allocator:
        return "The calibration is of another setting of PyTorch's allocator."
    return None


def _same_version(old: str, new: str) -> bool:
    """A post release has the rule of its version; what is no version at all is only like itself."""
    try:
        return parse_version(old) == parse_version(new)
    except CannotPlan:
        return old == new
