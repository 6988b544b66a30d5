"""Rounds that the tuner itself ran on a real SGLang 0.5.17: a 27B hybrid on 47.5 GiB of an H200, others on all of it.

r01 was planned from the card's free memory alone; the others of that size came out of ``tuner solve`` and ``tuner
auto`` for three 88,165-token requests with speculation, calibrated by the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tuner.metrics.model import GpuReading
from tuner.planner import plan
from tuner.planner.calibrate import calibrate
from tuner.planner.model import Plan, PlanInputs
from tuner.recipe.model import Recipe, TunerSettings
from tuner.serverlog.model import BootFacts
from tuner.serverlog.reader import read_boot
from tuner.session.planning import Here, plan_inputs

DATA = Path(__file__).parents[2] / "data" / "real_rounds"
FREE_MIB = 48_640
WHOLE_MIB = 143_771 - 615
#: Rounds on the whole card, with their models.
WHOLE = {"next-80b-whole-card": "qwen3-next-80b-a3b-fp8", "dense-whole-card": "qwen3-dense-small"}
#: A first round on the smaller card, and the one that was planned from its log.
PAIRS = {"27b-48g-r01": "27b-48g-solved-mtp", "27b-48g-auto-r1": "27b-48g-auto-r2"}
#: Flags of the round of which only the log was kept.
DENSE = {"mem_fraction_static": 0.3, "max_running_requests": 8, "chunked_prefill_size": 4096,
         "attention_backend": "triton", "sampling_backend": "pytorch"}  # fmt: skip


def flags_of(name: str) -> dict[str, Any]:
    """Flags that the round was started with."""
    recorded = msgspec.json.decode((DATA / f"{name}.json").read_bytes())
    asked: dict[str, Any] = recorded["recipe"]["flags"]
    return asked


def facts_of(name: str) -> BootFacts:
    """What the server of the round printed."""
    return read_boot((DATA / f"{name}.log").read_text(encoding="utf-8"))


def inputs_from_the_card(name: str) -> PlanInputs:
    """What was known before the first start: the card's free memory and the model's shape."""
    model, free_mib = (WHOLE[name], WHOLE_MIB) if name in WHOLE else ("qwen3.8-27b-fp8-text", FREE_MIB)
    flags = DENSE if name.startswith("dense") else flags_of(name)
    recipe = Recipe(flags=flags, tuner=TunerSettings(model_shape=model))
    card = GpuReading(index=0, total_mib=143_771, used_mib=143_771 - free_mib, free_mib=free_mib)
    return plan_inputs(recipe, here=Here(installed_version="0.5.17", gpus=(card,)))


def planned_from(first: str, second: str) -> Plan:
    """The plan of the second round, with what the log of the first told."""
    known = calibrate(inputs_from_the_card(first), facts_of(first), name="r1")
    return plan(msgspec.structs.replace(known, flags=flags_of(second)))


def table() -> str:
    """Every round against its plan."""
    lines = [
        "ROUNDS THAT THE TUNER RAN ON A REAL SERVER",
        f"{'round':22} {'planned from':18} {'slots':>6} {'plan':>6} {'KV tokens':>10} {'plan':>10} {'off %':>7} "
        f"{'req':>4} {'plan':>4} {'free':>6} {'plan':>6}",
    ]
    plans = [(name, "the card", plan(inputs_from_the_card(name))) for name in (*PAIRS, *WHOLE)]
    plans += [(second, first, planned_from(first, second)) for first, second in PAIRS.items()]
    for name, known, planned in plans:
        came = facts_of(name)
        assert came.kv_tokens is not None
        off = 100 * (planned.kv_tokens - came.kv_tokens) / came.kv_tokens
        lines.append(
            f"{name:22} {known:18} {came.mamba_slots or '-':>6} {planned.mamba_slots or '-':>6} {came.kv_tokens:>10,} "
            f"{planned.kv_tokens:>10,} {off:>+7.3f} {came.max_running_requests or '-':>4} "
            f"{planned.max_running_requests:>4} {came.available_gib or '-':>6} {planned.ready_free_gib:>6.2f}"
        )
    return "\n".join(lines)
