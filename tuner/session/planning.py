"""Gathers what a plan needs, best source first: the operator, the last boot log, this machine, an estimate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tuner.metrics.model import GpuReading
from tuner.modelcard import ModelError, ModelShape
from tuner.modelfile import WeightBytes, load_shape, weights_on_disk
from tuner.place import there
from tuner.planner.asked import read_flags
from tuner.planner.calibrate import calibrate
from tuner.planner.conditions import Conditions, conditions, void_reason
from tuner.planner.model import (
    CONTEXT_GIB,
    GIB,
    HEADROOM_GIB,
    CannotPlan,
    PlanInputs,
    Source,
    Sourced,
    usual_startup_loss,
)
from tuner.planner.resolve import pin_draft
from tuner.recipe.model import Recipe
from tuner.rounds.model import Round
from tuner.serverlog.model import BootFacts
from tuner.units import format_gib

#: What is planned for when no interpreter, log or setting tells the version.
DEFAULT_VERSION = "0.5.17"
#: Memory of the card that comes and goes without a meaning; above it a boot log's free memory is moved to today's.
_STEADY_GIB = 0.25
#: No card and no machine of cards comes near it: the sizes in the model's config are damaged.
_LARGEST_WEIGHTS_GIB = 50_000.0
#: Variables that SGLang and PyTorch size memory by.
_SIZING_VARIABLES = ("SGLANG_", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """What the operator says on the command line; it goes before everything else. GiB."""

    model: str | None = None
    sglang_version: str | None = None
    free_before_gib: float | None = None
    free_after_gib: float | None = None
    boot: BootFacts | None = None
    boot_name: str | None = None


class Here(msgspec.Struct, frozen=True, kw_only=True):
    """What can be read on this machine. ``server_holds_gib`` is what our own running server will give back."""

    installed_version: str | None = None
    gpus: tuple[GpuReading, ...] = ()
    server_holds_gib: float = 0.0
    driver_version: str | None = None
    environ: Mapping[str, str] = {}

    @property
    def card(self) -> GpuReading | None:
        """The first GPU that the server will use."""
        return self.gpus[0] if self.gpus else None

    @property
    def free_gib(self) -> float | None:
        """What a start would find free on that card, GiB; None when the driver does not tell."""
        if self.card is None or self.card.free_mib is None:
            return None
        return self.card.free_mib / 1024 + self.server_holds_gib


def shape_for(recipe: Recipe, given: Given) -> ModelShape:
    """The model's shape: its folder first, then the packaged shape that the recipe names.

    Raises ModelError with one sentence when neither can be read.
    """
    if given.model:
        return load_shape(given.model)
    if there(recipe.model_path):
        return load_shape(recipe.model_path)
    if recipe.tuner.model_shape:
        return load_shape(recipe.tuner.model_shape)
    if not recipe.model_path:
        raise ModelError("No model is named: set model_path in the recipe, or give --model DIR.")
    raise ModelError(
        f"The model folder {recipe.model_path} is not on this machine: give --model DIR or config.json, "
        "or name a packaged shape as model_shape in [tuner]."
    )


def start_environment(recipe: Recipe, environ: Mapping[str, str]) -> dict[str, str]:
    """Of the environment a start would have, what memory is sized by."""
    inherited = {name: value for name, value in environ.items() if name.startswith(_SIZING_VARIABLES)}
    return inherited | recipe.environment


def plan_inputs(
    recipe: Recipe,
    *,
    given: Given | None = None,
    here: Here | None = None,
    history: Iterable[Round] = (),
) -> PlanInputs:
    """Inputs of a plan for ``recipe``.

    ``history``: earlier rounds of the same model whose pools are known, newest first; the first that still holds
    calibrates the plan, and ``calibration_note`` says why a newer one does not.
    Raises ModelError or CannotPlan with one sentence.
    """
    given, here = given or Given(), here or Here()
    rounds = list(history) if given.boot is None else []
    shape = shape_for(recipe, given)
    version, version_source = _version(recipe, given, here, rounds)
    inputs = _uncalibrated(recipe, given, here, shape, version, version_source, rounds)
    if given.boot is not None and _has_memory(given.boot):
        name = given.boot_name or "the boot log"
        if reason := _other_ranks(inputs, given.boot):
            return msgspec.structs.replace(inputs, calibration_note=f"{name} does not calibrate this plan. {reason}")
        return _said(calibrate(inputs, given.boot, name=name), inputs, given)
    now = conditions(
        shape,
        version,
        inputs.environment,
        driver_version=here.driver_version,
        gpu_name=here.card.name if here.card else None,
    )
    calibrated = _calibrated(inputs, rounds, now, here)
    return _said(calibrated, inputs, given) if calibrated.calibrated_by else calibrated


def _version(recipe: Recipe, given: Given, here: Here, rounds: Sequence[Round]) -> tuple[str, str]:
    """(SGLang's version, where it comes from)."""
    booted = given.boot.version if given.boot else None
    newest = next((r for r in rounds if r.sglang_version), None)
    known = (
        (given.sglang_version, "operator"),
        (recipe.tuner.sglang_version, "recipe"),
        # A log without the version itself only narrows it down ("0.5.14-0.5.16").
        (booted if booted and "-" not in booted else None, "boot log"),
        (here.installed_version, "installed"),
        (newest.sglang_version if newest else None, newest.name if newest else ""),
    )
    return next(((version, source) for version, source in known if version), (DEFAULT_VERSION, "assumed"))


def _has_memory(facts: BootFacts) -> bool:
    return facts.free_before_gib is not None and facts.free_after_gib is not None


def _uncalibrated(
    recipe: Recipe,
    given: Given,
    here: Here,
    shape: ModelShape,
    version: str,
    version_source: str,
    rounds: Sequence[Round],
) -> PlanInputs:
    card = here.card
    on_disk = _on_disk(recipe)
    inputs = PlanInputs(
        shape=shape,
        flags=recipe.flags,
        environment=start_environment(recipe, here.environ),
        sglang_version=version,
        version_source=version_source,
        free_before=_free_before(given, here, rounds, usual_startup_loss(shape)),
        startup_loss_gib=usual_startup_loss(shape),
        free_after=Sourced(0.0, Source.ESTIMATE),
        card_gib=card.total_mib / 1024 if card and card.total_mib else None,
        headroom_line_gib=recipe.tuner.headroom_gib if recipe.tuner.headroom_gib is not None else HEADROOM_GIB,
    )
    source = Source.MEASURED if on_disk else Source.ESTIMATE
    ranks = _ranks(inputs)
    counted = _counts_draft(inputs)
    draft = (on_disk.draft_bytes if on_disk else shape.draft_weights_bytes) / GIB / ranks
    tensors = on_disk.target_bytes if on_disk else shape.weights_bytes - shape.whole_bytes
    target = (tensors / ranks + shape.whole_bytes) / GIB
    if target > _LARGEST_WEIGHTS_GIB:
        raise CannotPlan(
            f"The weights of {shape.name} would take {target:,.0f} GiB on a card: the sizes in its config are damaged."
        )
    free_after = (
        Sourced(given.free_after_gib, Source.OPERATOR)
        if given.free_after_gib is not None
        else Sourced(inputs.free_before.gib - target - (draft if counted else 0.0), source)
    )
    return msgspec.structs.replace(
        inputs, free_after=free_after, free_after_has_draft=counted, draft_weights=Sourced(draft, source)
    )


def _on_disk(recipe: Recipe) -> WeightBytes | None:
    folder = there(recipe.model_path)
    return weights_on_disk(folder) if folder is not None and folder.is_dir() else None


def _ranks(inputs: PlanInputs) -> int:
    """Cards that share the weights; a flag that cannot be read is the plan's to tell."""
    try:
        asked = read_flags(inputs)
    except CannotPlan:
        return 1
    return asked.tp * asked.pp


def _counts_draft(inputs: PlanInputs) -> bool:
    try:
        return bool(pin_draft(inputs).free_after_has_draft)
    except CannotPlan:
        return False


def _free_before(given: Given, here: Here, rounds: Sequence[Round], startup_loss_gib: float) -> Sourced:
    """Free memory at the first "Load weight begin", GiB."""
    if given.free_before_gib is not None:
        return Sourced(given.free_before_gib, Source.OPERATOR)
    if given.boot is not None and given.boot.free_before_gib is not None:
        return Sourced(given.boot.free_before_gib, Source.BOOT_LOG)
    if here.free_gib is not None:
        return Sourced(here.free_gib - CONTEXT_GIB - startup_loss_gib, Source.MEASURED)
    for round_ in rounds:
        if round_.boot is not None and round_.boot.free_before_gib is not None:
            return Sourced(round_.boot.free_before_gib, Source.BOOT_LOG)
    raise CannotPlan(
        "How much VRAM is free is not known here: give --free-before GIB (the avail mem of "
        '"Load weight begin"), --boot-log FILE, or plan on the GPU machine.'
    )


def _calibrated(inputs: PlanInputs, rounds: Sequence[Round], now: Conditions, here: Here) -> PlanInputs:
    """``inputs`` calibrated by the newest round that holds, or as they are; the note says what stood against others."""
    note = ""
    for round_ in rounds:
        if round_.boot is None or not _has_memory(round_.boot):
            continue
        reason = void_reason(_conditions_of(round_, now), now) or _other_ranks(inputs, round_.boot)
        if reason is None:
            try:
                calibrated = _by_round(inputs, round_, round_.boot, here)
            except CannotPlan as problem:
                reason = str(problem)
            else:
                return msgspec.structs.replace(
                    calibrated, calibration_note=" ".join(part for part in (note, calibrated.calibration_note) if part)
                )
        note = note or f"{round_.name} does not calibrate this plan. {reason}"
    return msgspec.structs.replace(inputs, calibration_note=note)


def _other_ranks(inputs: PlanInputs, facts: BootFacts) -> str | None:
    """Why a log of another number of cards calibrates nothing here, one sentence: each held another share."""
    told = [facts.server_args.get(name, "") for name in ("tp_size", "pp_size")]
    if not all(word.isdecimal() for word in told):
        return None
    ran, asked = math.prod(int(word) for word in told), _ranks(inputs)
    return None if ran == asked else f"It ran on {ran} card{'s' if ran > 1 else ''}, this start is for {asked}."


def _conditions_of(round_: Round, now: Conditions) -> Conditions:
    """What a round's log holds for; its server has the last word on the version."""
    kept = round_.conditions or msgspec.structs.replace(
        now, driver_version=round_.driver_version, gpu_name=round_.gpu_name
    )
    return msgspec.structs.replace(kept, sglang_version=round_.sglang_version or kept.sglang_version)


def _by_round(inputs: PlanInputs, round_: Round, facts: BootFacts, here: Here) -> PlanInputs:
    card = here.card
    before, ready = round_.vram_mib.get("before"), round_.vram_mib.get("ready")
    free_at_start = None
    if before is not None and card is not None and card.total_mib is not None and card.name == round_.gpu_name:
        free_at_start = (card.total_mib - before) / 1024
    booted = msgspec.structs.replace(inputs, flags=round_.recipe.flags, free_after_has_draft=None)
    calibrated = calibrate(
        booted,
        facts,
        name=round_.name,
        own_share_gib=(ready - before) / 1024 if ready is not None and before is not None else None,
        free_before_start_gib=free_at_start,
    )
    calibrated = msgspec.structs.replace(calibrated, flags=inputs.flags)
    return _as_free_now(calibrated, here.free_gib, round_.name)


def _as_free_now(inputs: PlanInputs, free_gib: float | None, name: str) -> PlanInputs:
    """A calibration on the memory that is free today, where another process has taken or left some since."""
    if free_gib is None:
        return inputs
    more = free_gib - (inputs.free_before.gib + inputs.startup_loss_gib + inputs.context_gib)
    if abs(more) <= _STEADY_GIB:
        return inputs
    moved = _moved(inputs, inputs.free_before.gib + more, Source.MEASURED)
    change = "more" if more > 0 else "less"
    note = f"The card has {format_gib(abs(more))} {change} free than before {name}: planned with what is free now."
    return msgspec.structs.replace(moved, calibration_note=note)


def _moved(inputs: PlanInputs, free_before: float, source: Source) -> PlanInputs:
    """Another amount of free memory before the same weights."""
    more = free_before - inputs.free_before.gib
    after = inputs.free_after
    return msgspec.structs.replace(
        inputs, free_before=Sourced(free_before, source), free_after=Sourced(after.gib + more, after.source)
    )


def _said(calibrated: PlanInputs, told: PlanInputs, given: Given) -> PlanInputs:
    """What the operator says goes before what a boot log said; free memory alone leaves the weights as they were."""
    if given.free_before_gib is not None:
        calibrated = _moved(calibrated, given.free_before_gib, Source.OPERATOR)
    if given.free_after_gib is not None:
        calibrated = msgspec.structs.replace(
            calibrated, free_after=told.free_after, free_after_has_draft=told.free_after_has_draft
        )
    return calibrated
