"""Which requests run together: numbers worked out by hand from ``PrefillAdder`` and ``ReqToTokenPool`` of 0.5.17."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planner_cases import inputs_for

from tuner.planner.admission import rows_needed, tokens_together
from tuner.planner.forward import plan
from tuner.planner.need import Need, rows_of


@pytest.mark.parametrize(
    ("agents", "input_tokens", "chunk", "rows"),
    [
        # Three inputs in chunks: with the second in hand, 3 - 2 rows are free and one request is in the batch.
        (3, 88_165, 4096, 4),
        (5, 90_000, 8192, 6),
        # An empty running batch is replaced with its flag, so the second of two is let in.
        (2, 88_165, 4096, 2),
        (1, 88_165, 4096, 1),
        # All in one prefill batch, or no chunks at all: nothing is cut.
        (3, 1_000, 4096, 3),
        (3, 88_165, -1, 3),
        # Only the last one is cut, and nobody waits behind it.
        (3, 2_000, 4096, 3),
        (3, 2_100, 4096, 4),
    ],
)
def test_a_row_to_spare_is_needed_where_inputs_are_cut(agents: int, input_tokens: int, chunk: int, rows: int) -> None:
    assert rows_needed(agents, input_tokens, chunk, counted_twice=True) == rows
    assert rows_needed(agents, input_tokens, chunk, counted_twice=False) == agents


@given(agents=st.integers(1, 6), input_tokens=st.integers(1, 900), chunk=st.sampled_from([-1, 64, 256, 512]))
@settings(max_examples=150)
def test_as_many_rows_let_all_inputs_in_whatever_their_length_and_one_less_does_not(
    agents: int, input_tokens: int, chunk: int
) -> None:
    rows = rows_needed(agents, input_tokens, chunk, counted_twice=True)
    assert _together(agents, input_tokens, chunk, rows) == agents
    # Where every chunk ends with an input none is cut; a row is asked for all the same.
    assert rows == agents or chunk % input_tokens == 0 or _together(agents, input_tokens, chunk, agents) < agents


def _together(agents: int, input_tokens: int, chunk: int, rows: int) -> int:
    """``get_next_batch_to_run`` and ``_get_new_batch_prefill_raw`` of 0.5.17, of requests that never end."""
    waiting = [input_tokens] * agents
    running, full, cut = 0, False, 0
    while waiting or cut:
        if (full or not waiting) and not cut:
            break
        if not cut and rows <= running:
            break
        room = chunk if chunk > 0 else input_tokens * agents
        batch = held = 0
        if cut:
            batch, held, step = 1, 1, min(cut, room)
            cut, room = cut - step, room - step
        while waiting:
            if batch >= rows - running - held:
                full = True
                break
            if room <= 0:
                break
            batch += 1
            step = min(waiting.pop(0), room)
            room -= step
            cut = input_tokens - step
        # The next look: what is cut leaves the batch, the rest joins those that run, and with them their flag.
        if cut:
            batch, full = batch - 1, False
        if batch and not running:
            full = False
        running += batch
    return running


@pytest.mark.parametrize(
    ("version", "flags", "twice"),
    [
        # Without pipeline stages the free rows are not asked for before 0.5.12.
        ("0.5.9", {}, False),
        ("0.5.11", {}, False),
        ("0.5.11", {"pp_size": 2, "mem_fraction_static": 0.8}, True),
        ("0.5.12", {}, True),
        ("0.5.17", {}, True),
        ("0.5.22", {}, True),
        # Rows that the batch holds already are added back.
        ("0.5.23", {}, False),
        ("0.5.17", {"enable_mixed_chunk": True}, False),
    ],
)
def test_a_request_in_chunks_counts_twice_in_some_versions(version: str, flags: dict[str, Any], twice: bool) -> None:
    need = Need(input_tokens=10_000, agents=3)
    asked = {"max_running_requests": 4, "mem_fraction_static": 0.9, "chunked_prefill_size": 4096} | flags
    planned = plan(inputs_for("qwen3.8-27b-fp8", version, 90.0, 60.0, **asked))
    assert planned.chunk_counts_twice is twice
    assert rows_of(need, planned) == 3 + twice


@pytest.mark.parametrize(
    ("agents", "input_tokens", "output_tokens", "page", "ahead", "tokens"),
    [
        # To its end: 3 * (88,165 + 64 + 4).
        (3, 88_165, 64, 1, 4, 264_699),
        # Let in: 3 * 100 + 2 * (50 + 1) + ceil(0.7 * 50) + 1 = 438; to the end: 3 * 151 = 453.
        (3, 100, 50, 1, 1, 453),
        # One token each: let in needs 3 * 100 + 2 * 2 + 1 + 1 = 306, as much as three times 102.
        (3, 100, 1, 1, 1, 306),
        # An answer longer than is ever reserved still has to be held.
        (2, 1_000, 10_000, 1, 1, 22_002),
        # Whole pages: 2 * 128 to the end; let in: 64 + 64 + 2 * (1 + 64) + 1.
        (2, 64, 1, 64, 1, 259),
        # Alone: input, answer, a page, and more than that.
        (1, 100, 10, 1, 1, 112),
    ],
)
def test_the_pool_holds_inputs_answers_and_what_admission_reserves(
    agents: int, input_tokens: int, output_tokens: int, page: int, ahead: int, tokens: int
) -> None:
    assert tokens_together(agents, input_tokens, output_tokens, page, ahead) == tokens


def test_a_rank_of_attention_dp_has_its_share_of_the_chunk() -> None:
    asked = {"tp_size": 4, "dp_size": 4, "enable_dp_attention": True, "max_running_requests": 16}
    flags = asked | {"mem_fraction_static": 0.9, "chunked_prefill_size": 8192}
    planned = plan(inputs_for("qwen3.8-27b-fp8", "0.5.17", 90.0, 60.0, **flags))
    assert planned.in_force["chunked_prefill_size"] == 2048
    # 3 x 3,000 tokens: two fit into 8,192, and not into 2,048.
    assert rows_of(Need(input_tokens=3_000, agents=3), planned) == 4
