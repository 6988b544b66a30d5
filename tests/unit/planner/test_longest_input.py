"""The longest prompt that a server answers: one token less than what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from planner_cases import inputs_for

from tuner.planner import plan
from tuner.planner.forward import longest_input


def longest(**flags: Any) -> int:
    # A pool far larger than the context, so that only the context limits.
    wide = {"mem_fraction_static": 0.9, "kv_cache_dtype": "fp8_e4m3", "max_running_requests": 4}
    return plan(inputs_for("qwen3.8-27b-fp8-text", "0.5.17", 139.0, 105.0, **(wide | flags))).longest_input_tokens


def test_a_full_context_takes_one_token_less_than_the_servers_own_limit() -> None:
    assert longest() == 262_138 - 1


def test_a_pool_below_the_context_is_the_limit() -> None:
    assert longest(max_total_tokens=100_000) == 100_000 - 7


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        # Few drafts: the scheduler's limit is the smaller one.
        ({"speculative_algorithm": "NEXTN", "speculative_num_steps": 1}, 262_137),
        # Eight reserved tokens: the tokenizer refuses a prompt of 262,136 first.
        ({"speculative_algorithm": "NEXTN", "speculative_num_steps": 7}, 262_144 - 1 - 8),
        # Topk times steps, where that is more than the draft tokens.
        (
            {"speculative_algorithm": "EAGLE", "speculative_num_steps": 5, "speculative_eagle_topk": 4,
             "speculative_num_draft_tokens": 8},
            262_144 - 1 - 20,
        ),
        ({"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 12}, 262_137),
    ],
)  # fmt: skip
def test_drafts_reserve_tokens_of_the_context(spec: dict[str, Any], expected: int) -> None:
    assert longest(**spec) == expected


def test_a_pool_of_a_handful_of_tokens_takes_nothing() -> None:
    assert longest_input(262_144, 7) == 0
    assert longest_input(262_144, 8) == 1
