"""Every worked example of the reference, number for number, for each version it names."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from planner_cases import inputs_for, shape

from tuner.modelcard import ModelShape
from tuner.planner import plan
from tuner.planner.model import Source, Sourced

H100_GIB = 81559 / 1024
NEXTN = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_eagle_topk": 1}

NEXT_80B: list[tuple[str, str, dict[str, Any], float, float, tuple[int, int, int, int]]] = [
    ("0.5.9", "no_buffer", {}, 0.0, 0.834, (346, 1_211_947, 115, 3)),
    ("0.5.12", "no_buffer", {}, 0.0, 0.834, (346, 1_211_947, 115, 3)),
    ("0.5.17", "extra_buffer", {}, 0.0, 0.828, (339, 1_189_812, 67, 5)),
    ("0.5.23", "extra_buffer", {}, 0.0, 0.828, (339, 1_189_812, 67, 5)),
    ("0.5.17", "extra_buffer", NEXTN | {"max_running_requests": 48}, 1.2, 0.828, (177, 1_141_546, 35, 5)),
    (
        "0.5.12",
        "extra_buffer",
        NEXTN | {"max_running_requests": 48, "mamba_scheduler_strategy": "extra_buffer"},
        0.0,
        0.783,
        (203, 709_397, 40, 5),
    ),
    (
        "0.5.9",
        "extra_buffer",
        NEXTN | {"max_running_requests": 48, "mamba_scheduler_strategy": "extra_buffer"},
        0.0,
        0.809,
        (229, 805_317, 48, 4),
    ),
]


@pytest.mark.parametrize(("version", "strategy", "flags", "draft", "fraction", "expected"), NEXT_80B)
def test_the_80b_example_comes_out_exactly(
    version: str,
    strategy: str,
    flags: dict[str, Any],
    draft: float,
    fraction: float,
    expected: tuple[int, int, int, int],
) -> None:
    result = plan(
        inputs_for(
            "qwen3-next-80b-a3b-fp8",
            version,
            78.20,
            78.20 - 38.90 - draft,
            loss=0.0,
            tp_size=2,
            card_gib=H100_GIB,
            draft_weights=Sourced(draft, Source.OPERATOR),
            **flags,
        )
    )
    assert result.in_force["mem_fraction_static"] == pytest.approx(fraction, abs=1e-9)
    assert result.strategy == strategy
    assert (
        result.mamba_slots,
        result.kv_tokens,
        result.max_running_requests,
        result.slots_per_request,
    ) == expected


VL = "qwen3.8-27b-fp8"
TEXT = "qwen3.8-27b-fp8-text"
EXTRA = {"mem_fraction_static": 0.83, "mamba_radix_cache_strategy": "extra_buffer"}
SPEC = EXTRA | NEXTN | {"max_running_requests": 48}

DENSE_27B: list[tuple[str, str, dict[str, Any], float, tuple[int, int, int, int]]] = [
    (VL, "0.5.9", {}, 0.7722, (105, 275_894, 35, 3)),
    (VL, "0.5.12", {}, 0.7722, (105, 275_894, 35, 3)),
    (VL, "0.5.17", {}, 0.7676, (103, 272_289, 20, 5)),
    (VL, "0.5.23", {}, 0.7676, (102, 273_032, 20, 5)),
    (VL, "0.5.17", EXTRA, 0.83, (119, 315_120, 23, 5)),
    (TEXT, "0.5.23", EXTRA, 0.83, (119, 315_120, 23, 5)),
    (TEXT, "0.5.17", {"mem_fraction_static": 0.83}, 0.83, (119, 315_120, 39, 3)),
    (VL, "0.5.17", EXTRA | {"max_mamba_cache_size": 64}, 0.83, (64, 444_315, 12, 5)),
    (VL, "0.5.17", EXTRA | {"max_mamba_cache_size": 96}, 0.83, (96, 369_147, 19, 5)),
    (VL, "0.5.17", EXTRA | {"max_mamba_cache_size": 128}, 0.83, (128, 293_979, 25, 5)),
    (VL, "0.5.17", EXTRA | {"mamba_full_memory_ratio": 0.3}, 0.83, (57, 460_758, 11, 5)),
    (VL, "0.5.17", EXTRA | {"mamba_full_memory_ratio": 0.5}, 0.83, (83, 399_684, 16, 5)),
    (VL, "0.5.17", EXTRA | {"mamba_full_memory_ratio": 1.5}, 0.83, (151, 239_952, 30, 5)),
    (VL, "0.5.17", EXTRA | {"mamba_full_memory_ratio": 3}, 0.83, (189, 150_690, 37, 5)),
    (VL, "0.5.17", EXTRA | {"mamba_ssm_dtype": "bfloat16"}, 0.83, (235, 314_508, 47, 5)),
    (VL, "0.5.17", EXTRA | {"kv_cache_dtype": "fp8_e4m3"}, 0.83, (119, 630_240, 23, 5)),
    (VL, "0.5.17", EXTRA | {"disable_radix_cache": True, "max_running_requests": 64}, 0.83, (64, 444_315, 64, 1)),
    (VL, "0.5.17", SPEC, 0.83, (62, 312_119, 12, 5)),
    (TEXT, "0.5.17", SPEC | {"speculative_draft_model_path": "/draft"}, 0.83, (62, 293_759, 12, 5)),
    (VL, "0.5.17", SPEC | {"speculative_draft_model_path": "/draft"}, 0.83, (62, 62_423, 12, 5)),
]


def with_the_models_own_kv_dtype(model: str) -> ModelShape:
    return msgspec.structs.replace(shape(model), kv_cache_dtype=None)


@pytest.mark.parametrize(("model", "version", "flags", "fraction", "expected"), DENSE_27B)
def test_the_27b_example_comes_out_exactly(
    model: str, version: str, flags: dict[str, Any], fraction: float, expected: tuple[int, int, int, int]
) -> None:
    draft = 0.9 if "speculative_algorithm" in flags else 0.0
    result = plan(
        inputs_for(
            with_the_models_own_kv_dtype(model),
            version,
            78.60,
            78.60 - 28.80 - draft,
            loss=0.0,
            card_gib=H100_GIB,
            draft_weights=Sourced(draft, Source.OPERATOR),
            **flags,
        )
    )
    assert result.in_force["mem_fraction_static"] == pytest.approx(fraction, abs=5e-5)
    assert (
        result.mamba_slots,
        result.kv_tokens,
        result.max_running_requests,
        result.slots_per_request,
    ) == expected
