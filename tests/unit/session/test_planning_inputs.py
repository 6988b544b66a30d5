"""Where a plan's numbers come from, and which boot log may calibrate it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tuner.metrics.model import GpuReading
from tuner.planner import CannotPlan, PlanInputs, plan
from tuner.planner.conditions import conditions
from tuner.planner.model import GIB, Source
from tuner.recipe.model import Recipe, TunerSettings
from tuner.rounds.model import Round, RoundState
from tuner.serverlog.model import BootFacts
from tuner.serverlog.reader import read_boot
from tuner.session.planning import Given, Here, plan_inputs

MEASURED = Path(__file__).parents[2] / "data" / "measured"
FLAGS = {
    "mem_fraction_static": 0.86,
    "kv_cache_dtype": "fp8_e4m3",
    "mamba_ssm_dtype": "bfloat16",
    "max_running_requests": 3,
    "cuda_graph_backend_decode": "disabled",
    "cuda_graph_backend_prefill": "disabled",
}
EXPANDABLE = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}
CARD = GpuReading(index=0, name="NVIDIA H200", total_mib=143_771, used_mib=95_150, free_mib=48_621)


def recipe(**flags: Any) -> Recipe:
    return Recipe(flags=FLAGS | flags, tuner=TunerSettings(model_shape="qwen3.8-27b-fp8-text"), environment=EXPANDABLE)


def boot(name: str = "27b-48g-bf16-frac086") -> BootFacts:
    return read_boot((MEASURED / f"{name}.log").read_text("utf-8", "replace"))


def earlier(number: int = 1, **fields: Any) -> Round:
    known: dict[str, Any] = {
        "started_at": 1.0,
        "state": RoundState.VERIFIED,
        "recipe": recipe(),
        "boot": boot(),
        "sglang_version": "0.5.17",
        "driver_version": "580.159.04",
        "gpu_name": "NVIDIA H200",
        "vram_mib": {"before": 95_150, "peak": 137_500, "ready": 137_489},
    }
    return Round(number=number, **(known | fields))


def here(**fields: Any) -> Here:
    return Here(**({"gpus": (CARD,), "driver_version": "580.159.04", "installed_version": "0.5.17"} | fields))


def inputs(history: Sequence[Round] = (), asked: Recipe | None = None, **fields: Any) -> PlanInputs:
    return plan_inputs(asked or recipe(), here=here(**fields), history=history)


def test_without_a_log_the_card_is_measured_and_the_weights_are_estimated() -> None:
    found = inputs()
    assert found.free_before.source is Source.MEASURED
    assert found.free_before.gib == pytest.approx(46.81, abs=0.01)
    assert found.free_after.source is Source.ESTIMATE
    sources = plan(found).sources
    assert (sources["sglang_version"], sources["free_after"]) == ("installed", "estimate")
    assert plan(found).mamba_slots_low is None


def test_a_rounds_boot_log_makes_the_next_plan_exact() -> None:
    found = inputs([earlier()])
    assert found.calibrated_by == "r1" and found.calibration_note == ""
    result = plan(found)
    assert (result.basis, result.mamba_slots, result.kv_tokens) == ("calibrated", 81, 220_711)
    assert result.sources["free_after"] == "boot log" and result.sources["context"] == "measured"
    assert {t.name: t.source for t in result.terms}["weights"] is Source.BOOT_LOG


def test_the_cards_own_reading_goes_into_runtime_and_context() -> None:
    found = inputs([earlier()])
    terms = sum(term.gib for term in plan(found).terms if term.name != "free")
    assert terms == pytest.approx((137_489 - 95_150) / 1024, abs=0.01)
    assert found.context_gib == pytest.approx((143_771 - 95_150) / 1024 - 46.896, abs=0.02)


def test_a_reading_that_something_else_on_the_card_has_spoilt_is_left_out() -> None:
    spoilt = inputs([earlier(vram_mib={"before": 20_000, "ready": 137_489})])
    plain = inputs([earlier(vram_mib={})])
    assert spoilt.runtime_gib == plain.runtime_gib and spoilt.context_gib == plain.context_gib


@pytest.mark.parametrize(
    ("now", "asked", "reason"),
    [
        ({"installed_version": "0.5.18"}, {}, "is of SGLang 0.5.17, this start would be 0.5.18"),
        ({"driver_version": "590.1"}, {}, "is of driver 580.159.04, here it is 590.1"),
        ({}, {"environment": {}}, "another setting of PyTorch's allocator"),
        ({}, {"tuner": TunerSettings(model_shape="hybrid-tiny")}, "is of another model"),
    ],
)
def test_a_calibration_is_void_when_its_conditions_change_and_the_operator_is_told(
    now: dict[str, Any], asked: dict[str, Any], reason: str
) -> None:
    first = inputs()
    kept = conditions(first.shape, "0.5.17", first.environment, driver_version="580.159.04", gpu_name="NVIDIA H200")
    wanted = msgspec.structs.replace(recipe(), **asked)
    found = inputs([earlier(conditions=kept)], wanted, **now)
    assert found.calibrated_by is None
    result = plan(found)
    assert result.basis == "formula"
    assert result.calibration_note.startswith("r1 does not calibrate this plan.") and reason in result.calibration_note


def test_a_log_of_one_card_calibrates_no_plan_for_two() -> None:
    for found in (
        inputs([earlier()], recipe(tp_size=2)),
        plan_inputs(recipe(tp_size=2), given=Given(boot=boot(), boot_name="r1"), here=here()),
    ):
        result = plan(found)
        assert (result.basis, result.calibrated_by) == ("formula", None)
        assert result.calibration_note == "r1 does not calibrate this plan. It ran on 1 card, this start is for 2."
        # Each card holds half of the weights.
        assert {term.name: term.gib for term in result.terms}["weights"] < 14


def test_the_server_has_the_last_word_on_the_version_of_its_log() -> None:
    kept = conditions(inputs().shape, "0.5.9", EXPANDABLE, driver_version="580.159.04")
    assert inputs([earlier(conditions=kept, sglang_version="0.5.17")]).calibrated_by == "r1"


def test_an_older_round_calibrates_where_the_newest_does_not_hold() -> None:
    newer = earlier(2, sglang_version="0.5.18")
    found = inputs([newer, earlier(1)])
    assert found.calibrated_by == "r1"
    assert found.calibration_note.startswith("r2 does not calibrate this plan.")


def test_a_log_that_fits_no_plan_of_its_flags_is_told_and_not_used() -> None:
    strange = msgspec.structs.replace(boot(), kv_tokens=900_000, kv_gib=900_000 * 32_768 / GIB, server_args={})
    found = inputs([earlier(boot=strange)])
    assert found.calibrated_by is None and "belongs to another start" in found.calibration_note


def test_memory_that_another_process_took_since_is_not_planned_with() -> None:
    busy = msgspec.structs.replace(CARD, used_mib=CARD.used_mib + 10_240, free_mib=CARD.free_mib - 10_240)
    found = inputs([earlier()], gpus=(busy,))
    assert found.calibrated_by == "r1" and found.free_before.source is Source.MEASURED
    assert "10.00 GiB less free than before r1" in found.calibration_note
    before = inputs([earlier()])
    assert found.free_before.gib == pytest.approx(before.free_before.gib - 10, abs=0.01)
    assert found.free_after.gib == pytest.approx(before.free_after.gib - 10, abs=0.01)


def test_what_our_own_server_holds_counts_as_free() -> None:
    serving = msgspec.structs.replace(CARD, used_mib=137_489, free_mib=143_771 - 137_489)
    found = inputs([earlier()], gpus=(serving,), server_holds_gib=(137_489 - 95_150) / 1024)
    assert found.calibration_note == "" and plan(found).kv_tokens == 220_711


def test_what_the_operator_says_goes_before_a_boot_log_and_leaves_the_weights_alone() -> None:
    given = Given(free_before_gib=60.0)
    found = plan_inputs(recipe(), given=given, here=here(), history=[earlier()])
    assert found.free_before.source is Source.OPERATOR
    assert found.free_before.gib - found.free_after.gib == pytest.approx(27.54, abs=0.01)
    result = plan(plan_inputs(recipe(), given=Given(free_before_gib=46.83, free_after_gib=19.29)))
    assert (result.sources["free_before"], result.sources["free_after"]) == ("operator", "operator")
    assert {t.name: t.source for t in result.terms}["weights"] is Source.OPERATOR


def test_a_weight_of_every_rank_is_not_divided_by_the_ranks() -> None:
    one, two = (plan_inputs(recipe(tp_size=ranks), given=Given(free_before_gib=100.0)) for ranks in (1, 2))
    whole = one.shape.whole_bytes / GIB
    assert whole == pytest.approx(88 / 1024)
    weights = [100.0 - found.free_after.gib for found in (one, two)]
    assert weights[1] == pytest.approx((weights[0] - whole) / 2 + whole)


def test_a_draft_counts_only_where_the_version_loads_it_before_the_pools() -> None:
    given = Given(free_before_gib=46.83)
    spec = recipe(speculative_algorithm="NEXTN", speculative_num_steps=1)
    with_draft, without = (
        plan_inputs(spec, given=msgspec.structs.replace(given, sglang_version=version))
        for version in ("0.5.17", "0.5.12")
    )
    assert with_draft.free_after_has_draft is True and without.free_after_has_draft is False
    assert without.free_after.gib - with_draft.free_after.gib == pytest.approx(5.527, abs=0.01)


def test_flags_that_cannot_be_read_still_give_inputs_so_that_a_slider_can_mend_them() -> None:
    found = plan_inputs(recipe(mem_fraction_static=7, tp_size="two"), given=Given(free_before_gib=46.83))
    with pytest.raises(CannotPlan):
        plan(found)
    assert plan(msgspec.structs.replace(found, flags=FLAGS)).mamba_slots == 81


def test_variables_of_this_shell_that_size_memory_are_planned_with() -> None:
    found = inputs(environ={"SGLANG_MAMBA_SSM_DTYPE": "float32", "HOME": "/root", "PYTORCH_ALLOC_CONF": "x"})
    assert found.environment == EXPANDABLE | {"SGLANG_MAMBA_SSM_DTYPE": "float32", "PYTORCH_ALLOC_CONF": "x"}


def test_absurd_sizes_are_told_in_one_sentence(tmp_path: Path) -> None:
    huge = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 10**7, "hidden_size": 4_000_000,
        "num_hidden_layers": 4000, "num_attention_heads": 4, "intermediate_size": 4_000_000,
    }  # fmt: skip
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(huge))
    with pytest.raises(CannotPlan, match="the sizes in its config are damaged"):
        plan_inputs(recipe(), given=Given(model=str(tmp_path), free_before_gib=40.0))
