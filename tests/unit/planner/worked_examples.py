"""The worked examples of the reference (its section 1.12) as cases and as a table."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
from planner_cases import inputs_for, shape

from tuner.planner import plan
from tuner.planner.model import Plan, Source, Sourced

H100_GIB = 81559 / 1024
NEXTN = {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_eagle_topk": 1}
BY_HAND = NEXTN | {"max_running_requests": 48, "mamba_scheduler_strategy": "extra_buffer"}


class Example(NamedTuple):
    """``expected``: slots, KV tokens, requests admitted, slots per request. GiB per rank."""

    model: str
    version: str
    flags: dict[str, Any]
    fraction: float
    expected: tuple[int, int, int, int]
    draft: float = 0.0


NEXT_80B = "qwen3-next-80b-a3b-fp8"
VL = "qwen3.8-27b-fp8"
TEXT = "qwen3.8-27b-fp8-text"
EXTRA = {"mem_fraction_static": 0.83, "mamba_radix_cache_strategy": "extra_buffer"}
SPEC = EXTRA | NEXTN | {"max_running_requests": 48}

EXAMPLES = (
    Example(NEXT_80B, "0.5.9", {}, 0.834, (346, 1_211_947, 115, 3)),
    Example(NEXT_80B, "0.5.12", {}, 0.834, (346, 1_211_947, 115, 3)),
    Example(NEXT_80B, "0.5.17", {}, 0.828, (339, 1_189_812, 67, 5)),
    Example(NEXT_80B, "0.5.23", {}, 0.828, (339, 1_189_812, 67, 5)),
    Example(NEXT_80B, "0.5.17", NEXTN | {"max_running_requests": 48}, 0.828, (177, 1_141_546, 35, 5), 1.2),
    Example(NEXT_80B, "0.5.12", BY_HAND, 0.783, (203, 709_397, 40, 5)),
    Example(NEXT_80B, "0.5.9", BY_HAND, 0.809, (229, 805_317, 48, 4)),
    Example(VL, "0.5.9", {}, 0.7722, (105, 275_894, 35, 3)),
    Example(VL, "0.5.12", {}, 0.7722, (105, 275_894, 35, 3)),
    Example(VL, "0.5.17", {}, 0.7676, (103, 272_289, 20, 5)),
    Example(VL, "0.5.23", {}, 0.7676, (102, 273_032, 20, 5)),
    Example(VL, "0.5.17", EXTRA, 0.83, (119, 315_120, 23, 5)),
    Example(TEXT, "0.5.23", EXTRA, 0.83, (119, 315_120, 23, 5)),
    Example(TEXT, "0.5.17", {"mem_fraction_static": 0.83}, 0.83, (119, 315_120, 39, 3)),
    Example(VL, "0.5.17", EXTRA | {"max_mamba_cache_size": 64}, 0.83, (64, 444_315, 12, 5)),
    Example(VL, "0.5.17", EXTRA | {"max_mamba_cache_size": 96}, 0.83, (96, 369_147, 19, 5)),
    Example(VL, "0.5.17", EXTRA | {"max_mamba_cache_size": 128}, 0.83, (128, 293_979, 25, 5)),
    Example(VL, "0.5.17", EXTRA | {"mamba_full_memory_ratio": 0.3}, 0.83, (57, 460_758, 11, 5)),
    Example(VL, "0.5.17", EXTRA | {"mamba_full_memory_ratio": 0.5}, 0.83, (83, 399_684, 16, 5)),
    Example(VL, "0.5.17", EXTRA | {"mamba_full_memory_ratio": 1.5}, 0.83, (151, 239_952, 30, 5)),
    Example(VL, "0.5.17", EXTRA | {"mamba_full_memory_ratio": 3}, 0.83, (189, 150_690, 37, 5)),
    Example(VL, "0.5.17", EXTRA | {"mamba_ssm_dtype": "bfloat16"}, 0.83, (235, 314_508, 47, 5)),
    Example(VL, "0.5.17", EXTRA | {"kv_cache_dtype": "fp8_e4m3"}, 0.83, (119, 630_240, 23, 5)),
    Example(
        VL, "0.5.17", EXTRA | {"disable_radix_cache": True, "max_running_requests": 64}, 0.83, (64, 444_315, 64, 1)
    ),
    Example(VL, "0.5.17", SPEC, 0.83, (62, 312_119, 12, 5), 0.9),
    Example(TEXT, "0.5.17", SPEC | {"speculative_draft_model_path": "/draft"}, 0.83, (62, 293_759, 12, 5), 0.9),
    Example(VL, "0.5.17", SPEC | {"speculative_draft_model_path": "/draft"}, 0.83, (62, 62_423, 12, 5), 0.9),
)


def planned(example: Example) -> Plan:
    """The plan of an example, with the free memory that the reference assumes."""
    before, weights, ranks = (78.20, 38.90, 2) if example.model == NEXT_80B else (78.60, 28.80, 1)
    inputs = inputs_for(
        # The examples take the model's own KV dtype, not the one that a checkpoint may ask for.
        msgspec.structs.replace(shape(example.model), kv_cache_dtype=None),
        example.version,
        before,
        before - weights - example.draft,
        loss=0.0,
        card_gib=H100_GIB,
        draft_weights=Sourced(example.draft, Source.OPERATOR),
        tp_size=ranks,
        **example.flags,
    )
    return plan(inputs)


def found(example: Example) -> tuple[int, int, int, int]:
    result = planned(example)
    return result.mamba_slots, result.kv_tokens, result.max_running_requests, result.slots_per_request


def table() -> str:
    lines = [
        "WORKED EXAMPLES OF THE REFERENCE (slots, KV tokens, requests, slots per request)",
        f"{'model':24} {'version':8} {'expected':>28} {'planned':>28}        flags",
    ]
    for example in EXAMPLES:
        told, came = (", ".join(f"{n:,}" for n in numbers) for numbers in (example.expected, found(example)))
        flags = " ".join(f"{name}={value}" for name, value in example.flags.items())
        mark = "exact" if told == came else "OFF"
        lines.append(f"{example.model:24} {example.version:8} {told:>28} {came:>28} {mark:6} {flags}")
    return "\n".join(lines)
