"""Which requests run together: numbers worked out by hand from ``PrefillAdder`` and ``ReqToTokenPool`` of 0.5.17."""

from __future__ import annotations

import pytest

from tuner.planner.admission import rows_needed, tokens_together


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
    ],
)
def test_a_row_to_spare_is_needed_where_inputs_are_cut(agents: int, input_tokens: int, chunk: int, rows: int) -> None:
    assert rows_needed(agents, input_tokens, chunk) == rows


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
