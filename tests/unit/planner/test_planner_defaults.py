"""What SGLang fills in: fractions, chunk sizes and graph sizes by card and version."""

from __future__ import annotations

from typing import Any

import pytest
from planner_cases import inputs_for

from tuner.planner import CannotPlan, plan
from tuner.planner.graphs import decode_sizes, prefill_sizes

CARDS = {
    81_559: (0.835, 0.830, 0.830),
    143_771: (0.907, 0.903, 0.903),
    46_068: (0.851, 0.843, 0.843),
    24_564: (0.847, 0.833, 0.704),
    97_887: (0.863, 0.858, 0.858),
    183_359: (0.857, 0.854, 0.854),
}


@pytest.mark.parametrize(
    ("card", "version", "fraction"),
    [
        (card, version, fractions[index])
        for card, fractions in CARDS.items()
        for index, version in enumerate(("0.5.12", "0.5.17", "0.5.23"))
    ]
    + [(card, "0.5.9", fractions[0]) for card, fractions in CARDS.items()],
)
def test_the_default_fraction_is_the_versions_own(card: int, version: str, fraction: float) -> None:
    result = plan(inputs_for("qwen3-next-80b-a3b-fp8", version, 200.0, 180.0, card_gib=card / 1024))
    assert result.in_force["mem_fraction_static"] == pytest.approx(fraction, abs=1e-9)
    assert result.sources["mem_fraction_static"] == "SGLang's default"


def test_without_fraction_and_card_there_is_no_plan_but_a_sentence() -> None:
    with pytest.raises(CannotPlan, match="mem_fraction_static is not set"):
        plan(inputs_for("qwen3-dense-small", "0.5.17", 40.0, 30.0))


def test_prefill_graph_sizes_are_those_of_the_recordings() -> None:
    assert len(prefill_sizes(8192)) == 58
    assert len(prefill_sizes(4096)) == 50
    assert len(prefill_sizes(2048)) == 42
    assert len(prefill_sizes(16_384)) == 74


def test_decode_graph_sizes_are_those_of_the_recordings() -> None:
    assert decode_sizes(256, True, False)[:12] == (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16)
    assert decode_sizes(24, False, False) == (1, 2, 4, 8, 12, 16, 24)
    assert decode_sizes(3, False, False) == (1, 2, 3)


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        ({"mem_fraction_static": 1.5}, "mem_fraction_static is 1.5: it must be above 0 and at most 1."),
        ({"mem_fraction_static": "much"}, "mem_fraction_static is 'much': a number was expected."),
        ({"max_running_requests": "many"}, "max_running_requests is 'many': a whole number was expected."),
        ({"max_running_requests": 0}, "max_running_requests is 0: it must be at least 1."),
        ({"kv_cache_dtype": "fp3"}, "kv_cache_dtype is 'fp3'"),
        ({"mamba_ssm_dtype": "int4"}, "mamba_ssm_dtype is 'int4'"),
        ({"mamba_radix_cache_strategy": "lots"}, "mamba_radix_cache_strategy is 'lots'"),
        ({"tp_size": 3}, "do not divide over 3 ranks"),
        ({"dp_size": 3, "tp_size": 8, "enable_dp_attention": True}, "3 attention replicas do not divide 8"),
        ({"context_length": 1_000_000}, "context_length 1,000,000 is above the model's 262,144"),
        ({"disable_radix_cache": "perhaps"}, "true or false was expected"),
    ],
)
def test_a_flag_that_no_server_takes_is_told_in_one_sentence(flags: dict[str, Any], sentence: str) -> None:
    with pytest.raises(CannotPlan) as caught:
        plan(inputs_for("qwen3.8-27b-fp8-text", "0.5.17", 46.83, 19.29, **({"mem_fraction_static": 0.86} | flags)))
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_memory_figures_that_were_exchanged_are_told() -> None:
    with pytest.raises(CannotPlan, match="were the two exchanged"):
        plan(inputs_for("qwen3-dense-small", "0.5.17", 19.29, 46.83, mem_fraction_static=0.8))
