"""Rounds that the tuner itself ran on a real SGLang 0.5.17: a 27B hybrid on 47.5 GiB of an H200, others on all of it.

r01 was planned from the card's free memory alone; the others of that size came out of ``tuner solve`` and ``tuner
auto`` for three 88,165-token requests with speculation, calibrated by the first.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuner.doctor import diagnose_plan
from tuner.findings import FindingId
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
WHOLE_MIB = 143_771 - 615
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


def inputs_from_the_card(
    name: str, *, model: str = "qwen3.8-27b-fp8-text", free_mib: int = FREE_MIB, flags: dict[str, Any] | None = None
) -> PlanInputs:
    """What was known before the first start: the card's free memory and the model's shape."""
    recipe = Recipe(flags=flags or flags_of(name), tuner=TunerSettings(model_shape=model))
    card = GpuReading(index=0, total_mib=143_771, used_mib=143_771 - free_mib, free_mib=free_mib)
    return plan_inputs(recipe, here=Here(installed_version="0.5.17", gpus=(card,)))


@pytest.mark.parametrize("name", ["27b-48g-r01", "27b-48g-auto-r1"])
def test_the_first_round_is_planned_from_the_card_alone(name: str) -> None:
    planned, came = plan(inputs_from_the_card(name)), facts_of(name)
    assert planned.mamba_slots == came.mamba_slots == 41
    assert planned.kv_tokens == pytest.approx(came.kv_tokens, rel=0.002)
    assert planned.max_running_requests == came.max_running_requests == 3


@pytest.mark.parametrize(
    ("first", "second", "slots"),
    [("27b-48g-r01", "27b-48g-solved-mtp", 16), ("27b-48g-auto-r1", "27b-48g-auto-r2", 23)],
)
def test_the_second_round_is_planned_from_the_log_of_the_first(first: str, second: str, slots: int) -> None:
    known = calibrate(inputs_from_the_card(first), facts_of(first), name="r1")
    planned = plan(msgspec.structs.replace(known, flags=flags_of(second)))
    came = facts_of(second)
    assert planned.mamba_slots == came.mamba_slots == slots
    assert planned.kv_tokens == pytest.approx(came.kv_tokens, rel=0.0005)
    assert planned.longest_input_tokens == load_shape("qwen3.8-27b-fp8-text").context_len - 7


def test_experts_and_a_draft_that_the_config_does_not_name_are_counted() -> None:
    inputs = inputs_from_the_card("next-80b-whole-card", model="qwen3-next-80b-a3b-fp8", free_mib=WHOLE_MIB)
    planned, came = plan(inputs), facts_of("next-80b-whole-card")
    assert planned.mamba_slots == came.mamba_slots == 78
    assert planned.kv_tokens == pytest.approx(came.kv_tokens, rel=0.002)
    assert planned.ready_free_gib == pytest.approx(came.available_gib, abs=0.1)


def test_the_256_requests_that_were_asked_are_told_as_the_15_that_they_become() -> None:
    inputs = inputs_from_the_card("next-80b-whole-card", model="qwen3-next-80b-a3b-fp8", free_mib=WHOLE_MIB)
    planned, came = plan(inputs), facts_of("next-80b-whole-card")
    assert inputs.flags["max_running_requests"] == 256
    assert planned.max_running_requests == came.max_running_requests == came.requests_capped_to == 15
    capped = next(f for f in diagnose_plan(inputs, planned) if f.id is FindingId.REQUESTS_CAPPED_BY_SLOTS)
    assert capped.title == "The state slots admit 15 requests at once, 256 are asked."


def test_a_plain_transformer_on_the_whole_card_has_no_state_pool() -> None:
    planned = plan(inputs_from_the_card("dense-whole-card", model="qwen3-dense-small", free_mib=WHOLE_MIB, flags=DENSE))
    came = facts_of("dense-whole-card")
    assert planned.mamba_slots == 0 and came.mamba_slots is None
    assert planned.kv_tokens == pytest.approx(came.kv_tokens, rel=0.002)


def test_prefill_graphs_are_told_apart_from_the_others() -> None:
    known = calibrate(inputs_from_the_card("27b-48g-r01"), facts_of("27b-48g-r01"), name="r1")
    assert known.prefill_graphs_gib == 1.68 and known.graphs_gib == pytest.approx(1.75)
    without = msgspec.structs.replace(known, flags=known.flags | {"cuda_graph_backend_prefill": "disabled"})
    assert plan(without).ready_free_gib - plan(known).ready_free_gib == pytest.approx(1.68, abs=0.01)
