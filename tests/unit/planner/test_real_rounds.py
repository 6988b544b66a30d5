"""Rounds that the tuner itself ran on a real SGLang 0.5.17: a 27B hybrid on 47.5 GiB of an H200.

r01 was planned from the card's free memory alone; the second came out of ``tuner solve`` for three 88,165-token
requests with speculation, calibrated by the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuner.metrics.model import GpuReading
from tuner.modelfile import load_shape
from tuner.planner import plan
from tuner.planner.calibrate import calibrate
from tuner.planner.model import PlanInputs
from tuner.recipe.model import Recipe, TunerSettings
from tuner.serverlog.model import BootFacts
from tuner.serverlog.reader import read_boot
from tuner.session.planning import Here, plan_inputs

DATA = Path(__file__).parents[2] / "data" / "real_rounds"
FREE_MIB = 48_640


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
    recipe = Recipe(flags=flags_of(name), tuner=TunerSettings(model_shape="qwen3.8-27b-fp8-text"))
    card = GpuReading(index=0, total_mib=143_771, used_mib=143_771 - FREE_MIB, free_mib=FREE_MIB)
    return plan_inputs(recipe, here=Here(installed_version="0.5.17", gpus=(card,)))


def test_the_first_round_is_planned_from_the_card_alone() -> None:
    planned, came = plan(inputs_from_the_card("27b-48g-r01")), facts_of("27b-48g-r01")
    assert planned.mamba_slots == came.mamba_slots == 41
    assert planned.kv_tokens == pytest.approx(came.kv_tokens, rel=0.002)
    assert planned.max_running_requests == came.max_running_requests == 3


def test_the_second_round_is_planned_from_the_log_of_the_first() -> None:
    first = inputs_from_the_card("27b-48g-r01")
    known = calibrate(first, facts_of("27b-48g-r01"), name="r1")
    planned = plan(msgspec.structs.replace(known, flags=flags_of("27b-48g-solved-mtp")))
    came = facts_of("27b-48g-solved-mtp")
    assert planned.mamba_slots == came.mamba_slots == 16
    assert planned.kv_tokens == pytest.approx(came.kv_tokens, rel=0.0005)
    assert planned.longest_input_tokens == load_shape("qwen3.8-27b-fp8-text").context_len - 7


def test_prefill_graphs_are_told_apart_from_the_others() -> None:
    known = calibrate(inputs_from_the_card("27b-48g-r01"), facts_of("27b-48g-r01"), name="r1")
    assert known.prefill_graphs_gib == 1.68 and known.graphs_gib == pytest.approx(1.75)
    without = msgspec.structs.replace(known, flags=known.flags | {"cuda_graph_backend_prefill": "disabled"})
    assert plan(without).ready_free_gib - plan(known).ready_free_gib == pytest.approx(1.68, abs=0.01)
