"""Gathers what a plan needs, best source first: the operator, the last boot log, this machine, an estimate."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from tuner.metrics.model import GpuReading
from tuner.modelcard import ModelError, ModelShape
from tuner.modelfile import load_shape, weights_on_disk
from tuner.planner.calibrate import calibrate
from tuner.planner.model import CONTEXT_GIB, GIB, STARTUP_LOSS_GIB, CannotPlan, PlanInputs, Source, Sourced
from tuner.recipe.model import Recipe
from tuner.rounds.model import Round
from tuner.serverlog.model import BootFacts

#: Free GiB at ready that a plan should leave, unless set: loading and capture peak above the steady state.
DEFAULT_HEADROOM_GIB = 4.4
#: What is planned for when no interpreter, log or setting tells the version.
DEFAULT_VERSION = "0.5.17"


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator says on the command line; it goes before everything else. GiB."""

    model: str | None = None
    sglang_version: str | None = None
    free_before_gib: float | None = None
    free_after_gib: float | None = None
    boot: BootFacts | None = None
    boot_name: str | None = None


def shape_for(recipe: Recipe, given: Given) -> ModelShape:
    """The model's shape: its folder first, then the packaged shape that the recipe names.

    Raises ModelError with one sentence when neither can be read.
    """
    if given.model:
        return load_shape(given.model)
    if recipe.model_path and Path(recipe.model_path).expanduser().exists():
        return load_shape(recipe.model_path)
    if recipe.tuner.model_shape:
        return load_shape(recipe.tuner.model_shape)
    if not recipe.model_path:
        raise ModelError("No model is named: set model_path in the recipe, or give --model DIR.")
    raise ModelError(
        f"The model folder {recipe.model_path} is not on this machine: give --model DIR or config.json, "
        "or name a packaged shape as model_shape in [tuner]."
    )


def plan_inputs(
    recipe: Recipe,
    *,
    given: Given | None = None,
    installed_version: str | None = None,
    calibration: Round | None = None,
    gpus: Sequence[GpuReading] = (),
    server_holds_gib: float = 0.0,
) -> PlanInputs:
    """Inputs of a plan for ``recipe``.

    ``calibration`` is an earlier round of the same model and version whose boot facts are known;
    ``server_holds_gib`` is what our own running server holds now and will give back before the start.
    Raises ModelError or CannotPlan with one sentence.
    """
    given = given or Given()
    shape = shape_for(recipe, given)
    facts = given.boot or (calibration.boot if calibration else None)
    version = (
        given.sglang_version
        or recipe.tuner.sglang_version
        or installed_version
        or (calibration.sglang_version if calibration else None)
        or DEFAULT_VERSION
    )
    card = gpus[0] if gpus else None
    free_before = _free_before(given, facts, card, server_holds_gib)
    speculating = bool(recipe.flags.get("speculative_algorithm"))
    inputs = PlanInputs(
        shape=shape,
        flags=recipe.flags,
        environment=recipe.environment,
        sglang_version=version,
        free_before=free_before,
        free_after=_free_after(recipe, given, shape, free_before, speculating),
        free_after_has_draft=speculating,
        draft_weights=Sourced(shape.draft_weights_bytes / GIB, Source.ESTIMATE),
        card_gib=card.total_mib / 1024 if card and card.total_mib else None,
        headroom_line_gib=recipe.tuner.headroom_gib if recipe.tuner.headroom_gib is not None else DEFAULT_HEADROOM_GIB,
    )
    if facts is None or facts.free_before_gib is None or facts.free_after_gib is None:
        return inputs
    booted = calibration.recipe.flags if calibration and not given.boot else recipe.flags
    name = given.boot_name or (calibration.name if calibration else "the boot log")
    calibrated = calibrate(msgspec.structs.replace(inputs, flags=booted), facts, name=name)
    calibrated = msgspec.structs.replace(calibrated, flags=recipe.flags)
    if given.free_before_gib is not None:
        calibrated = msgspec.structs.replace(calibrated, free_before=free_before)
    if given.free_after_gib is not None:
        calibrated = msgspec.structs.replace(
            calibrated, free_after=inputs.free_after, free_after_has_draft=inputs.free_after_has_draft
        )
    return calibrated


def _free_before(given: Given, facts: BootFacts | None, card: GpuReading | None, server_holds_gib: float) -> Sourced:
    """Free memory at the first "Load weight begin", GiB."""
    if given.free_before_gib is not None:
        return Sourced(given.free_before_gib, Source.OPERATOR)
    if facts is not None and facts.free_before_gib is not None:
        return Sourced(facts.free_before_gib, Source.BOOT_LOG)
    if card is not None and card.free_mib is not None:
        free = card.free_mib / 1024 + server_holds_gib - CONTEXT_GIB - STARTUP_LOSS_GIB
        return Sourced(free, Source.MEASURED)
    raise CannotPlan(
        "How much VRAM is free is not known here: give --free-before GIB (the avail mem of "
        '"Load weight begin"), --boot-log FILE, or plan on the GPU machine.'
    )


def _free_after(recipe: Recipe, given: Given, shape: ModelShape, free_before: Sourced, speculating: bool) -> Sourced:
    """Free memory at the last "Load weight end" before the pools, GiB."""
    if given.free_after_gib is not None:
        return Sourced(given.free_after_gib, Source.OPERATOR)
    folder = Path(recipe.model_path).expanduser() if recipe.model_path else None
    on_disk = weights_on_disk(folder) if folder is not None and folder.is_dir() else None
    tp = int(recipe.flags.get("tp_size") or recipe.flags.get("tensor_parallel_size") or 1)
    target = on_disk.target_bytes if on_disk else shape.weights_bytes
    draft = (on_disk.draft_bytes if on_disk else shape.draft_weights_bytes) if speculating else 0
    source = Source.MEASURED if on_disk else Source.ESTIMATE
    return Sourced(free_before.gib - (target + draft) / GIB / tp, source)
